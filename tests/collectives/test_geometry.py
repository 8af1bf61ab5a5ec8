"""``collectives/geometry.py``: which units are ranks, how they nest, and where their buffers lie."""

import pytest

import megatile as mt
from megatile.collectives.geometry import BUFFERS, buffer_memory, near_memory, nearest_memory, survey
from megatile.collectives.job import CollectiveError

CLUSTER, DGX = mt.machine("h100-cluster", nodes=4), mt.machine("dgx-h100")


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        (0, "a collective needs at least one rank"),
        (9, "dgx-h100 has 8 units of scale 'device', from 0; there is no unit 8"),
        ([0, 0], "a unit cannot be two ranks of the same group"),
        ("all", "'all' is not a number or list of ranks.*give their number, or a list such as"),
        ({0, 1}, "is not a number or list of ranks"),
        ([0, 1.5], "is not a number or list of ranks"),
    ],
)
def test_ranks_that_cannot_be(ranks: object, message: str) -> None:
    with pytest.raises(CollectiveError, match=message):
        survey(DGX, "device", ranks)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ranks", "levels"),
    [(None, (8, 4)), (16, (8, 2)), ([0, 8, 16, 24], (4,)), (3, (3,)), ([0, 1, 8], (3,)), ([5], (1,))],
    ids=["all", "two nodes", "one of each node", "part of a node", "uneven", "one"],
)
def test_ranks_nest_in_equal_groups_of_nodes(ranks: object, levels: tuple[int, ...]) -> None:
    assert survey(CLUSTER, "device", ranks).levels == levels  # type: ignore[arg-type]


def test_places_of_ranks_are_those_asked_for() -> None:
    for ranks in ([1, 3, 5], [7, 2, 4]):
        place = survey(DGX, "device", ranks).place
        assert [int(place.evaluate({"unit": rank})) for rank in range(3)] == ranks


def test_buffers_lie_in_the_nearest_memory_that_holds_them() -> None:
    assert buffer_memory(DGX, "device", 1 << 30) == "hbm"
    assert buffer_memory(DGX, "block", 1 << 10) == "shared"
    assert nearest_memory(DGX, "block", 1 << 20).name == "hbm", "more than shared memory has"
    with pytest.raises(
        CollectiveError, match=r"a buffer of \d+ bytes fits no memory of 'dgx-h100': 'hbm' has"
    ):
        buffer_memory(DGX, "device", 1 << 40)


def test_a_unit_has_a_memory_nearer_than_its_buffers_or_none() -> None:
    near = near_memory(DGX, "block", "hbm")
    assert near is not None
    assert near.name == "shared"
    assert near_memory(DGX, "block", "shared") is None
    assert near_memory(DGX, "device", "hbm") is None


def test_a_buffer_may_be_as_large_as_the_memory() -> None:
    memory = nearest_memory(DGX, "device", 1 << 60)
    assert buffer_memory(DGX, "device", BUFFERS * memory.available) == memory.name
    with pytest.raises(CollectiveError, match="fits no memory of 'dgx-h100'"):
        buffer_memory(DGX, "device", BUFFERS * (memory.available + 1))
