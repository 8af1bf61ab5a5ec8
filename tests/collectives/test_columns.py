"""``collectives/columns.py``: run one plan in several groups of units at the same time."""

import pytest
from tests.collectives.shared import alone

import megatile as mt
import megatile.language as T


def reduced(grid, axis, nbytes):
    """A program in which every group along an axis of the devices reduces at once."""
    each, count = nbytes // 4, grid[0] * grid[1]

    @T.program
    def only(X: T.Tensor((count * each,), "f32")):
        with T.Kernel(device=grid), T.Scale("device"):
            T.allreduce(T.view(X, layout=T.FullRow), axis=axis)

    return only


@pytest.mark.parametrize("nbytes", [1 << 16, 16 << 20])
@pytest.mark.parametrize(
    ("machine", "axis", "ranks"),
    [
        ("dgx-h100", 0, (0, 1, 2, 3)),
        ("dgx-h100", 1, (0, 4)),
        ("mi300x-8", 1, (0, 4)),
        ("mi300x-8", 0, (0, 1, 2, 3)),
        ("l20-8", 0, (0, 1, 2, 3)),
    ],
)
def test_groups_that_share_no_links_do_not_slow_each_other_down(machine, axis, ranks, nbytes) -> None:
    together = mt.simulate(reduced((4, 2), axis, nbytes), machine=machine, launch=False)
    one = alone(machine, ranks, nbytes)
    assert (together.time_ps, together.model) == (one.time_ps, one.model)


def test_groups_that_share_links_do() -> None:
    """Four pairs of cards over the link between the sockets, which carries two of them at full rate."""
    together = mt.simulate(reduced((4, 2), 1, 16 << 20), machine="l20-8", launch=False)
    one = alone("l20-8", (0, 4), 16 << 20)
    assert 1.5 * one.time_ps < together.time_ps < 4 * one.time_ps
    assert together.model == one.model


def test_data_parallel_groups_at_once_have_a_network_card_each() -> None:
    """Every device of two nodes with its partner in the other node."""
    each = (16 << 20) // 4

    @T.program
    def only(X: T.Tensor((8 * each,), "f32")):
        with T.Kernel(node=2, device=4), T.Scale("node"), T.Scale("device"):
            t = T.alloc((each,), "f32", level="hbm")
            T.allreduce(t, scale="node")
            T.copy(X[0], t)

    result = mt.simulate(only, machine="h100-cluster", launch=False)
    one = alone("h100-cluster", (0, 8), 16 << 20)
    reduced_by = max(
        e.end_ps for e in result.trace if e.operation in ("add", "copy") and e.engine == "vector"
    )
    assert reduced_by == pytest.approx(one.time_ps, rel=0.01)


def test_groups_have_the_links_between_them_where_links_are_listed() -> None:
    """The cube mesh of a DGX-1 has two links between GPUs 0 and 4 and one between 2 and 6."""
    two, one, usual = (alone("v100-8", ranks, 64 << 20) for ranks in ((0, 4), (2, 6), (0, 1)))
    assert one.time_ps == usual.time_ps
    assert one.time_ps == pytest.approx(2 * two.time_ps, rel=0.06)
    assert [found.plan.transports[0].links for found in (two, one)] == [2, 0]
