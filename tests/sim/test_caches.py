"""Caches: hits, fills, blocks on their way and writes in figures worked out by hand; what results count."""

from __future__ import annotations

import math
from typing import Any

import pytest
from tests.sim.toys import toy

from megatile.core.expr import unit
from megatile.cost.price import price
from megatile.hda import HDA, machine
from megatile.plan.build import PlanBuilder
from megatile.plan.model import Plan
from megatile.sim import Session, machine_run, simulate
from megatile.timing.caches import brick


def cached(blocks: int = 4, cores: int = 2, **options: Any) -> HDA:
    """Memory of 1 B/ps behind 100 ps, a cache of 64 B blocks at 2 B/ps behind 10 ps, scratch of 4 B/ps."""
    memory: list[dict[str, Any]] = [
        {"name": "local", "level": "core", "size": "1 GiB", "bandwidth": "4000 GB/s", "latency": "5 ps"},
        {"name": "common", "level": "box", "size": "8 GiB", "bandwidth": "1000 GB/s", "latency": "100 ps"},
        {
            "name": "front", "level": "box", "size": f"{64 * blocks} B", "bandwidth": "2000 GB/s",
            "latency": "10 ps", "cache": True, "of": "common", "block": "64 B", **options,
        },
    ]  # fmt: skip
    return toy(cores, memory=memory)


def rows(order: list[int], cores: int = 1, write: bool = False) -> Plan:
    """Every core reads (or writes) rows of 16 floats, one block each, one after another."""
    b = PlanBuilder("rows", scale="core", units=cores)
    x = b.tile("x", (8, 16), "f32", memory="common", role="inout", owner=unit * 0, owners=1)
    t = b.tile("t", (1, 16), "f32", memory="local")
    for row in order:
        b.copy(x[row : row + 1, 0:16], t) if write else b.copy(t, x[row : row + 1, 0:16])
    return b.finish()


def times(plan: Plan, hda: HDA) -> list[tuple[int, int]]:
    return [(e.start_ps, e.end_ps) for e in simulate(plan, machine=hda).trace]


def test_a_miss_fills_and_a_hit_does_not() -> None:
    """Startup 20. A miss: 64 served behind + 100 latency, then 10 + 5; a hit: 32 at the cache, 10 + 5. The
    second copy waits for the first one's write of the same tile."""
    assert times(rows([0, 0]), cached()) == [(0, 20 + 64 + 100 + 15), (199, 199 + 20 + 32 + 15)]


def test_the_block_used_longest_ago_makes_room() -> None:
    result = simulate(rows([0, 1, 0, 2, 0, 1]), machine=cached(blocks=2))
    assert result.traffic["front"][2:] == (2, 4)
    assert result.traffic["common"].read_bytes == 4 * 64
    assert result.traffic["front"].read_bytes == 6 * 64


def test_a_block_on_its_way_is_a_hit_that_waits() -> None:
    """Both cores ask at 20; the second one finds the block coming and gets it when it is filled, at 184; its
    head has gone ahead through the cache (32 ps after nobody)."""
    result = simulate(rows([0], cores=2), machine=cached())
    assert result.traffic["front"][2:] == (1, 1)
    assert [e.end_ps for e in result.trace] == [184 + 15, 184 + 15]


def test_writes_back_and_through() -> None:
    """Written back, a copy is in the cache after 20 + 32 + 15 and memory sees it when it makes room; written
    through, it is there after 20 + 5 + 64 + 100 as well."""
    back, through = cached(blocks=1), cached(blocks=1, write="write_through")
    assert times(rows([0], write=True), back) == [(0, 67)]
    assert times(rows([0], write=True), through) == [(0, 189)]
    traffic = simulate(rows([0, 1, 2], write=True), machine=back).traffic
    assert traffic["front"].written_bytes == 3 * 64
    assert traffic["common"].written_bytes == 2 * 64


def test_a_write_waits_for_the_changed_block_that_makes_room() -> None:
    """The engine takes a row every 52 ps, which is at the cache 20 ps later. One block: the second row has to
    wait until the first is in memory (64 ps from 72 on), the third for the turn after that."""
    assert times(rows([0, 1, 2], write=True), cached(blocks=1)) == [(0, 67), (52, 136 + 5), (104, 200 + 5)]
    assert times(rows([0, 1, 2], write=True), cached(blocks=2)) == [(0, 67), (52, 119), (104, 188 + 5)]
    assert times(rows([0, 1, 2], write=True), cached(blocks=3)) == [(0, 67), (52, 119), (104, 171)]


def test_writes_beyond_the_caches_take_the_time_of_the_memory() -> None:
    """Of 64 rows that eight cores write, all but the last four go to memory before the end."""
    b = PlanBuilder("stores", scale="core", units=8)
    x = b.tile("x", (64, 16), "f32", memory="common", role="output", owner=unit * 0, owners=1)
    t = b.tile("t", (1, 16), "f32", memory="local")
    with b.loop(0, 8) as loop:
        b.copy(x[unit * 8 + loop.index, 0:16], t)
    found = simulate(b.finish(), machine=cached(blocks=4, cores=8))
    assert found.traffic["common"].written_bytes == 60 * 64
    assert found.time_ps == 20 + 60 * 64 + 5


def test_stores_of_a_kernel_take_no_less_than_the_lower_bound() -> None:
    """128 MiB through an L2 cache of 50 MiB: at least 78 MiB go to memory before the end."""
    b = PlanBuilder("fill", scale="device", units=1)
    block = b.level("block", scale="block", grid=128 * 16, parent="device", slots=2)
    x = b.tile("x", (128 * 16 * 128, 128), "f32", memory="hbm", role="output")
    t = b.tile("t", (128, 128), "f32", memory="registers", level=block)
    with b.stream(level=block):
        b.copy(x[unit * 128 : unit * 128 + 128, 0:128], t)
    plan, hda = b.finish(), machine("dgx-h100")
    assert simulate(plan, machine=hda).time_ps > price(plan, machine=hda).lower_ps > 78 * 2**20 / 3.35


def test_a_fill_may_be_slower_than_the_memory() -> None:
    assert times(rows([0]), cached(fill="500 GB/s")) == [(0, 20 + 128 + 100 + 15)]


def test_cores_that_read_the_same_take_less_than_those_that_do_not() -> None:
    """A wave of 132 blocks of a product: rows of A are shared by none, columns of B by all."""
    found = []
    for shared in (True, False):
        b = PlanBuilder("loads", scale="device", units=1)
        block = b.level("block", scale="block", grid=132, parent="device", slots=1)
        x = b.tile("x", (132 * 64, 64), "f16", memory="hbm", role="input")
        t = b.tile("t", (64, 64), "f16", memory="shared", level=block, versions=2)
        with b.stream(level=block), b.loop(0, 32) as step:
            row = (step.index if shared else (unit + step.index) % 132) * 64
            b.copy(t, x[row : row + 64, 0:64], fresh=True)
        result = simulate(b.finish(), machine=machine("dgx-h100"))
        counts = result.traffic["l2_cache"]
        assert counts.hits + counts.misses == 132 * 32 * 2
        assert result.traffic["hbm"].read_bytes == counts.misses * 4096
        found.append((result.time_ps, counts.misses))
    assert found[0][1] == 64
    assert found[1][1] == 2 * 132


@pytest.mark.parametrize(
    ("shape", "least", "block", "expected"),
    [
        ((8192, 8192), (128, 64), 4096, (32, 64)),
        ((8192, 8192), (1, 8192), 4096, (1, 2048)),
        ((8192, 64), (16, 64), 4096, (32, 64)),
        ((3, 5), (3, 5), 4096, (3, 5)),
        ((7,), (0,), 64, (7,)),
    ],
)
def test_blocks_have_the_shape_of_what_is_used(
    shape: tuple[int, ...], least: tuple[int, ...], block: int, expected: tuple[int, ...]
) -> None:
    b = PlanBuilder("brick", scale="core", units=1)
    b.tile("x", shape, "f16", memory="local")
    (tile,) = b.finish().tiles
    assert brick(tile, least, block) == expected


@pytest.mark.parametrize("shape", [(2, 2, 16), (4, 8), (64,)])
def test_whole_tiles_of_any_dimensions_have_their_blocks(shape: tuple[int, ...]) -> None:
    """A copy of a whole tile has no bounds of its own; its blocks have the tile's dimensions."""
    b = PlanBuilder("whole", scale="core", units=2)
    x = b.tile("x", shape, "f32", memory="common", role="inout", owner=unit * 0, owners=1)
    t = b.tile("t", shape, "f32", memory="local")
    b.copy(t, x)
    b.copy(t, x)
    result = simulate(b.finish(), machine=cached(blocks=8))
    nbytes = 4 * math.prod(shape)
    assert result.traffic["front"].misses == nbytes // 64
    assert result.traffic["front"].hits == 3 * nbytes // 64


# --- what stays for the next launch ------------------------------------------------------------------------


def launched(plans: list[Plan], hda: HDA) -> list[tuple[int, Any, int]]:
    """Time, traffic of the cache and last event of launches one after another."""
    with Session(hda) as session:
        results = [session.launch(plan) for plan in plans]
        return [(r.time_ps, r.traffic["front"], max(e.end_ps for e in r.trace)) for r in results]


def test_a_second_launch_finds_what_the_first_one_read() -> None:
    first, second, third = launched([rows([0])] * 3, cached())
    assert first[0] - second[0] == (64 + 100) - 32
    assert first[1][2:] == (0, 1)
    assert second[1][2:] == third[1][2:] == (1, 0)
    assert second == third


@pytest.mark.parametrize("blocks", [2, 4])
def test_launches_timed_from_what_caches_hold_take_as_long_as_in_the_engine(
    blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = rows([0, 1, 2], cores=2), rows([2, 5, 0], cores=2, write=True)
    order = [one, one, two, one, two, one, two, one, one]
    options = {"write": "write_back"}
    timed: list[Any] = []
    alone = machine_run.time_alone
    monkeypatch.setattr(machine_run, "time_alone", lambda *given: (timed.append(given[0]), alone(*given))[1])
    quick = launched(order, cached(blocks, **options))
    assert 3 < len(timed) < len(order)  # what repeats itself is timed once
    monkeypatch.setattr(machine_run, "leaves_nothing", lambda _: False)
    assert launched(order, cached(blocks, **options)) == quick


def test_launches_beside_each_other_find_what_earlier_ones_read() -> None:
    halves = [rows([0, 1]), rows([2, 3])]
    with Session(cached(8, 1)) as session:
        cold = [session.launch(plan).time_ps for plan in halves]
        launches = [session.submit(plan) for plan in halves]  # both go to the engine
        session.wait()
        warm = [launch.result.time_ps for launch in launches]
        again = session.launch(halves[0]).time_ps
    assert warm[0] == again < cold[0]


def test_time_passes_in_wait_within_its_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[Any] = []
    alone = machine_run.time_alone
    monkeypatch.setattr(machine_run, "time_alone", lambda *given: (timed.append(given[0]), alone(*given))[1])
    with Session(cached()) as session:
        plan = rows([0])
        first = session.submit(plan)
        assert not timed
        session.wait(first)
        assert len(timed) == 1
        limited = session.submit(plan)
        took = session.wait(limited, seconds=600).time_ps  # in the engine, which can go on later
        assert len(timed) == 1
        again = session.launch(plan).time_ps
    assert took == again < first.took_ps
