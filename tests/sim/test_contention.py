"""What launches of a session share, in closed forms: memories, engines above their units, slots, caches."""

from __future__ import annotations

from typing import Any

import pytest
from tests.sim.test_caches import cached
from tests.sim.toys import toy

from megatile.core.expr import Const, member, table, unit
from megatile.hda import HDA, machine
from megatile.plan.build import PlanBuilder
from megatile.plan.model import Plan
from megatile.sim import Session, machine_run, simulate


def reader(first: int, nbytes: int = 4096, scale: str = "core", **memories: str) -> Plan:
    """One unit that reads from a memory above it."""
    far, near = memories.get("far", "common"), memories.get("near", "local")
    b = PlanBuilder(f"read{first}", scale=scale, units=1, placement=unit + first)
    x = b.tile(f"x{first}", (nbytes,), "u8", memory=far, role="input", owner=unit * 0, owners=1)
    t = b.tile(f"t{first}", (nbytes,), "u8", memory=near)
    b.copy(t, x)
    return b.finish()


def ends(hda: HDA | str, *plans: Plan, **options: Any) -> list[int]:
    s = Session(hda, **options)
    handles = [s.submit(plan) for plan in plans]
    s.wait()
    return [h.end_ps for h in handles]


@pytest.mark.parametrize("engine", ["plain", "compiled"])
def test_two_launches_that_read_one_memory_take_the_sum_of_their_service(engine: str) -> None:
    """20 startup, 4096 B at 2 B/ps, 50 + 10 of latency; the second one is served after the first."""
    alone = 20 + 2048 + 60
    assert simulate(reader(0), machine=toy(4)).time_ps == alone
    assert ends(toy(4), reader(0), reader(1), reader(3), engine=engine) == [alone, alone + 2048, alone + 4096]


def test_as_one_plan_of_two_units() -> None:
    b = PlanBuilder("both", scale="core", units=2)
    x = b.tile("x", (4096,), "u8", memory="common", role="input", owner=unit * 0, owners=1)
    b.copy(b.tile("t", (4096,), "u8", memory="local"), x)
    assert max(ends(toy(4), reader(0), reader(1))) == simulate(b.finish(), machine=toy(4)).time_ps


def test_each_sip_has_memories_of_its_own() -> None:
    """PEs of one cube wait for its SRAM; those of two SIPs do not wait for each other."""

    def plan(pe: int) -> Plan:
        return reader(pe, 1 << 16, scale="pe", far="sram", near="tcm")

    alone = simulate(plan(0), machine="ahbm").time_ps
    assert ends("ahbm", plan(0), plan(128)) == [alone, alone]
    first, second = ends("ahbm", plan(0), plan(1))
    assert first == alone
    assert second > alone


@pytest.mark.parametrize("kind", ["vector", "dma"])
def test_an_engine_above_units_does_one_thing_at_a_time(kind: str) -> None:
    hda = toy(4, **{kind: {"level": "box"}})

    def plan(core: int) -> Plan:
        b = PlanBuilder(f"p{core}", scale="core", units=1, placement=unit + core)
        x, y = (b.tile(f"{name}{core}", (64,), "f32", memory="local") for name in "xy")
        b.compute("add", x, [x, x]) if kind == "vector" else b.copy(y, x)
        return b.finish()

    alone = simulate(plan(0), machine=hda).time_ps
    first, second = ends(hda, plan(0), plan(2))
    service = {"vector": 5 + 64, "dma": 20 + 64}[kind]
    assert (first, second) == (alone, alone + service)
    assert ends(toy(4), plan(0), plan(2)) == [alone, alone], "each core has its own"


def test_launches_queue_for_slots_and_take_those_that_are_free() -> None:
    """Two cores with one slot; blocks of 25 and 75 ps, then a launch of one that takes the core of the
    first, and one that needs both."""

    def blocks(*adds: int) -> Plan:
        b = PlanBuilder("blocks", scale="device", units=1)
        level = b.level("block", scale="core", grid=len(adds), slots=1)
        t = b.tile("t", (20,), "f32", memory="local", level=level)
        with b.stream(level=level), b.loop(0, table(list(adds), unit)):
            b.compute("add", t, [t, t])
        return b.finish()

    plans = blocks(1, 3), blocks(1), blocks(2, 2)
    assert ends(toy(2), *plans) == [75, 50, 125]
    s = Session(toy(2))
    for plan in plans:
        s.submit(plan)
    s.wait()
    found = [(e.unit, e.start_ps) for e in s.trace if e.operation == "add"]
    assert found.count(("core0/block0", 25)) == 1, "the second launch has the core that the first has left"


def read_row(row: int, rows: int = 1, name: str = "x") -> Plan:
    b = PlanBuilder(f"row{row}", scale="core", units=1)
    x = b.tile(name, (8, 16), "f32", memory="common", role="inout", owner=unit * 0, owners=1)
    t = b.tile("t", (1, 16), "f32", memory="local")
    with b.loop(row, row + rows) as loop:
        b.copy(t, x[loop.index])
    return b.finish()


MISS, HIT = 20 + 64 + 100 + 15, 20 + 32 + 15
"""See `test_caches`."""


@pytest.mark.parametrize("renewed", [False, True])
def test_caches_keep_their_blocks_between_launches(renewed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four blocks the one used longest ago is gone; also where the engine's memory is made anew."""
    if renewed:
        monkeypatch.setattr(machine_run, "LARGE", 0)
    with Session(cached(blocks=4)) as s:
        took = [s.launch(read_row(row)).time_ps for row in (0, 0, 1, 2, 3, 0, 4, 1, 0)]
    assert took == [MISS, HIT, MISS, MISS, MISS, HIT, MISS, MISS, HIT]


def test_other_tensors_and_scratch_are_not_found_in_caches() -> None:
    b = PlanBuilder("scratch", scale="core", units=1)
    x = b.tile("x", (1, 16), "f32", memory="common")
    b.copy(b.tile("t", (1, 16), "f32", memory="local"), x)
    scratch = b.finish()
    with Session(cached(blocks=8)) as s:
        s.launch(read_row(0))
        assert s.launch(read_row(0, name="y")).time_ps == MISS
        assert [s.launch(scratch).time_ps for _ in range(2)] == [MISS, MISS]
        assert s.launch(read_row(0)).time_ps == HIT
        s.free("x")
        assert s.launch(read_row(0)).time_ps == MISS, "another tensor of the same name"


def test_what_is_written_back_is_there_for_the_next_launch() -> None:
    def write() -> Plan:
        b = PlanBuilder("write", scale="core", units=1)
        x = b.tile("x", (8, 16), "f32", memory="common", role="inout", owner=unit * 0, owners=1)
        b.copy(x[Const(0)], b.tile("t", (1, 16), "f32", memory="local"))
        return b.finish()

    with Session(cached(write="write_back")) as s:
        s.launch(write())
        result = s.launch(read_row(0))
    assert result.time_ps == HIT
    assert result.traffic["front"][2:] == (1, 0), "hits and misses are those of the launch"


def test_launches_beside_each_other_share_a_cache() -> None:
    """Both cores of one plan, as launches of their own: the second finds the first one's block coming."""
    b = PlanBuilder("pair", scale="core", units=2)
    x = b.tile("x", (8, 16), "f32", memory="common", role="input", owner=unit * 0, owners=1)
    b.copy(b.tile("t", (1, 16), "f32", memory="local"), x[Const(0)])
    plan = b.finish()
    whole = simulate(plan, machine=cached())
    s = Session(cached())
    results = [s.submit(plan.part([u])) for u in range(2)]
    s.wait()
    assert max(r.end_ps for r in results) == whole.time_ps


@pytest.mark.parametrize("engine", ["plain", "compiled"])
@pytest.mark.parametrize("readers", [1, 2, 3, 8])
def test_readers_of_one_slice_take_turns(readers: int, engine: str) -> None:
    """HBM of 1.2 TB/s in 8 slices: 16 KiB of one take 109.227 ns, for each who reads, its own PE too."""
    b = PlanBuilder("hot", scale="pe", units=8)
    x = b.tile("x", (16384,), "u8", memory="hbm", role="input")
    with b.when(unit < readers):
        b.copy(b.tile("t", (16384,), "u8", memory="tcm"), x.whole().at(0))
    took = simulate(b.finish(), machine="ahbm", engine=engine).time_ps
    before = 783_000 + 5_000 + 110_000 + 3_000  # launch, start of the DMA engine, latencies of HBM and TCM
    service = -(-16384 * 10**12 // 150_000_000_000)
    near = simulate(reader(0, 16384, scale="pe", far="hbm", near="tcm"), machine="ahbm").time_ps
    assert near == before + service
    if readers == 1:
        assert took == near
    else:  # the last one's first byte passes a link of the NoC or two while others are served
        assert before + readers * service <= took <= before + readers * service + 10_000


def test_messages_over_one_link_of_a_switch_are_served_one_after_another() -> None:
    """Two devices send to a third; in the other plan only one does."""

    def ps(senders: int, nbytes: int = 1 << 22) -> int:
        b = PlanBuilder("both", scale="device", units=3)
        c = b.channel("c", source=member, slot_bytes=nbytes, memory="hbm", members=2)
        x = b.tile("x", (nbytes,), "u8", memory="hbm")
        for number in range(2):
            with b.stream([number]):
                if number < senders:
                    b.send(c, x, to=2, member=number)
        with b.stream([2]):
            for number in range(senders):
                b.receive(c, (nbytes,), "u8", member=number)
        return simulate(b.finish(), machine="dgx-h100", launch=False).time_ps

    hda = machine("dgx-h100")
    link = next(n for n in hda.networks if n.connects == hda.scale("device").level)
    assert ps(2) - ps(1) >= (1 << 22) / link.bandwidth * 1e12
