"""Launches: the seed's examples, inference, seats, residency, waves, and contradictory views."""

import threading

import pytest
from hypothesis import given, strategies as st
from tests.hda.shared import H100, SEED, flat, launch
from tests.hda.small import SMALL

from megatile.core.errors import InstanceError, MegatileError
from megatile.hda import HDA, Instance, ScaleView, machine

# the seed's four examples


def test_512_blocks_per_gpu() -> None:
    inst = launch(SEED, ScaleView(name="gpu", instance_num=-1), flat("block", 512), flat("thread", 256))
    assert (inst.names, inst.shape) == (("gpu", "block", "thread"), (8, 512, 256))
    assert inst.size == inst.total("thread") == 8 * 512 * 256


# inference


def test_several_dimensions() -> None:
    inst = launch(H100, flat("block", (4, 3)), flat("thread", 64))
    assert inst.extents("block") == (4, 3)
    assert inst.shape == (12, 64)
    assert inst.coords("block", 5) == ((1, 1),)
    assert inst.rank("thread", ((1, 1), 7)) == 5 * 64 + 7
    assert inst.rank("thread", (5, 7)) == 5 * 64 + 7


LAUNCHES = [
    launch(SEED, ScaleView("gpu"), flat("block", (5, 7, 2)), flat("thread", 256)),
    launch(H100, flat("block", 4096), flat("thread", 128)),
    launch(
        SEED, flat("block", -1), ScaleView("warp_group", instance_num=3), ScaleView("warp", instance_num=4)
    ),
    launch(machine("cerebras-wse2"), ScaleView("core")),
]


@given(st.sampled_from(LAUNCHES), st.data())
def test_coordinates_and_rank_are_inverse(inst: Instance, data: st.DataObject) -> None:
    scale = data.draw(st.sampled_from([*inst.names, *(n for n, d in inst.inferred.items() if not d.problem)]))
    rank = data.draw(st.integers(0, inst.total(scale) - 1))
    assert inst.rank(scale, inst.coords(scale, rank)) == rank


@pytest.mark.parametrize("rank", [-1, 12 * 64, True, 1.5])
def test_ranks_that_do_not_exist(rank: int) -> None:
    inst = launch(H100, flat("block", 12), flat("thread", 64))
    for ask in (inst.coords, inst.seat):
        with pytest.raises(InstanceError, match=r"there is no thread .*there are 768, from 0"):
            ask("thread", rank)


def test_coordinates_that_do_not_exist() -> None:
    inst = launch(H100, flat("block", (4, 3)), flat("thread", 64))
    with pytest.raises(InstanceError, match="2 scales"):
        inst.rank("thread", (1,))
    for wrong in ((4, 0), (0, 3), (0,), 12, -1):
        with pytest.raises(InstanceError, match="outside the 4×3 blocks"):
            inst.rank("block", (wrong,))


# seats


@pytest.mark.parametrize(
    ("hda", "views", "memory"),
    [
        (H100, [ScaleView("gpu", instance_num=2), flat("block", 300), flat("thread", 1024)], None),
        (H100, [flat("block", 2000), flat("thread", 1024)], {"shared": 120_000}),
        (H100, [flat("cluster", 150), flat("block", 16), flat("thread", 1024)], None),
        (SEED, [flat("block", 2500), flat("thread", 32)], None),
        (machine("ahbm"), [flat("pe", 300)], None),
    ],
    ids=["two-gpus", "shared", "clusters", "seed", "ahbm"],
)
def test_every_block_has_its_own_seat(
    hda: HDA, views: list[ScaleView], memory: dict[str, int] | None
) -> None:
    inst = hda.instantiate(views)
    seats = [inst.seat("block", rank, memory) for rank in range(inst.total("block"))]
    assert len(set(seats)) == len(seats), "no two blocks of one wave share a unit and slot"
    assert max(seat.wave for seat in seats) + 1 == inst.waves(memory)
    assert max(seat.slot for seat in seats) < inst.residency(memory)
    assert all(seat.unit in hda.units("block") for seat in seats)


def test_blocks_fill_every_unit_once_before_any_twice() -> None:
    inst = launch(H100, ScaleView("gpu", instance_num=1), flat("block", 264), flat("thread", 256))
    seats = [inst.seat("block", rank) for rank in range(264)]
    assert [s.slot for s in seats] == [0] * 132 + [1] * 132
    assert {s.wave for s in seats} == {0}


def test_instances_sit_inside_their_parents() -> None:
    inst = launch(H100, ScaleView("gpu"), flat("block", 200), flat("thread", 256))
    for gpu in (0, 3, 7):
        for block in (0, 131, 199):
            seat = inst.seat("block", inst.rank("block", (gpu, block)))
            assert H100.parent(seat.unit, "gpu") == inst.seat("gpu", gpu).unit
            thread = inst.seat("thread", inst.rank("thread", (gpu, block, 255)))
            warp = inst.seat("warp", inst.rank("warp", (gpu, block, 7)))
            assert H100.parent(thread.unit, "sm") == seat.unit
            assert H100.parent(thread.unit, "subcore") == warp.unit


@pytest.mark.parametrize(
    ("threads", "memory", "resident"),
    [
        (32, None, 32),  # blocks
        (256, None, 8),  # threads
        (1024, None, 2),
        (96, None, 21),  # warps: 64 of 3
        (256, {"shared": 100 * 1024}, 2),
        (256, {"l1": 227 * 1024}, 1),
        (256, {"shared": 0}, 8),
        (256, {"registers": 256 * 1024}, 1),
        (256, {"hbm": 10**9}, 8),
    ],
)
def test_residency(threads: int, memory: dict[str, int] | None, resident: int) -> None:
    assert launch(H100, flat("block", 10), flat("thread", threads)).residency(memory) == resident


def test_waves() -> None:
    inst = launch(H100, ScaleView("gpu"), flat("block", 132 * 2 + 1), flat("thread", 1024))
    assert inst.waves() == 2
    assert inst.waves({"shared": 200 * 1024}) == 3
    assert launch(SEED, flat("block", 1152 * 3)).waves() == 3
    assert launch(H100, ScaleView("gpu")).waves() == 1


def test_what_does_not_fit_one_unit() -> None:
    inst = launch(H100, flat("block", 4), flat("thread", 256))
    with pytest.raises(InstanceError, match="one block asks for 300 KiB of 'shared', but a sm has 227 KiB"):
        inst.residency({"shared": 300 * 1024})
    with pytest.raises(MegatileError, match="no memory 'shard'"):
        inst.residency({"shard": 1})


# contradictions


def test_a_group_larger_than_the_machine() -> None:
    inst = launch(HDA.from_dict(SMALL), flat("cluster", 1), flat("block", 50))
    with pytest.raises(InstanceError, match="does not fit: there is room for 12"):
        inst.waves()


def test_an_unnamed_scale_is_named_in_the_error() -> None:
    with pytest.raises(InstanceError, match=r"this launch has no scale 'thread'.*block"):
        launch(H100, flat("block", 4)).count("thread")


# context


def test_contexts_nest_and_end() -> None:
    outer, inner = launch(H100, flat("block", 4)), launch(H100, flat("block", 8))
    assert Instance.current() is None
    with outer as entered:
        assert entered is Instance.current() is outer
        with inner, outer:
            assert Instance.current() is outer
        assert Instance.current() is outer
    assert Instance.current() is None
    with pytest.raises(ZeroDivisionError), outer:
        1 / 0  # noqa: B018
    assert Instance.current() is None


def test_one_instance_in_two_threads() -> None:
    inst = launch(H100, flat("block", 4))
    inside, leave, problems = threading.Event(), threading.Event(), []

    def other() -> None:
        try:
            with inst:
                inside.set()
                leave.wait(5)
        except Exception as problem:
            problems.append(problem)

    thread = threading.Thread(target=other)
    with inst:
        thread.start()
        inside.wait(5)
    leave.set()
    thread.join()
    assert problems == []
    assert Instance.current() is None


def test_a_wafer_is_launched_without_enumeration() -> None:
    inst = machine("cerebras-wse2").instantiate([ScaleView("core")])
    assert inst.shape == (850_000,)
    assert inst.seat("core", 849_999).unit.index == 849_999


def test_memory_of_a_block_is_a_size() -> None:
    launch = machine("dgx-h100").instantiate([ScaleView("block", instance_num=8, is_flatten=True)])
    assert launch.residency({"shared": "100 KiB"}) == launch.residency({"shared": 100 * 1024}) == 2
    for odd in (-5, "100 kb/s", 1e5, None, True):
        with pytest.raises(MegatileError):
            launch.residency({"shared": odd})  # type: ignore[dict-item]


def test_caches_hold_no_allocations() -> None:
    launch = machine("dgx-h100").instantiate([ScaleView("block", instance_num=8, is_flatten=True)])
    with pytest.raises(InstanceError, match="'l1_cache' is a cache"):
        launch.residency({"l1_cache": 1024})
