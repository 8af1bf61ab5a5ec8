"""Times worked out by hand on the toy machine (see toys.py for its figures).

A transfer of 256 bytes from local memory over one link: 20 start of the DMA engine + 10 out of the memory
+ 100 on the link + 10 into the memory + 256 for its bytes = 396 ps; the sender is free after 20 + 256 ps.
"""

from __future__ import annotations

import pytest
from tests.sim.toys import first_arrivals, toy

from megatile.core.expr import Const, eq, member, select, unit
from megatile.plan.build import PlanBuilder
from megatile.plan.model import Plan
from megatile.sim import TimingError, simulate
from megatile.sim.launch_rows import LaunchRows
from megatile.sim.sharing import find_shared
from megatile.sim.simulation import Simulation

ENGINES = ("plain", "compiled")


def messages(n: int, pairs: list[tuple[int, int]], size: int = 64) -> Plan:
    """Every pair (sender, receiver) exchanges one message of ``size`` floats on a queue of its own."""
    b = PlanBuilder("messages", scale="core", units=n)
    x = b.tile("x", (size,), "f32", memory="local", role="input")
    channels = [
        b.channel(f"c{i}", source=select(eq(unit, to), frm, -1), slot_bytes=4 * size, memory="local")
        for i, (frm, to) in enumerate(pairs)
    ]
    for channel, (frm, to) in zip(channels, pairs, strict=True):
        with b.when(eq(unit, frm)):
            b.send(channel, x, to=to)
    for channel, (_, to) in zip(channels, pairs, strict=True):
        with b.when(eq(unit, to)):
            b.receive(channel, (size,), "f32")
    return b.finish()


def arrivals(plan: Plan, hda) -> list[int]:
    """When each queue's first message arrives, the same by every evaluator."""
    results = []
    for engine in ENGINES:
        r = simulate(plan, machine=hda, engine=engine)
        results.append((r.time_ps, [first for _, first in sorted(first_arrivals(r.record).items())]))
    assert results[0] == results[1]
    return results[0][1]


@pytest.mark.parametrize(("to", "expected"), [(1, 396), (2, 496), (3, 596), (7, 396)])
def test_one_hop_two_hops(to: int, expected: int) -> None:
    assert arrivals(messages(8, [(0, to)]), toy(8)) == [expected]


def test_a_shared_link_serves_in_turns() -> None:
    """0→2 meets 1→2 on link 1→2: its head is there at 130, the other has it from 30 to 286."""
    assert arrivals(messages(3, [(0, 2), (1, 2)]), toy(3, "line")) == [286 + 256 + 110, 396]


@pytest.mark.parametrize(("far", "flows"), [(False, 1), (True, 2)])
def test_members_into_which_nothing_is_sent_use_no_links(
    far: bool, flows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Member 0 comes from the unit before, member 1 from the one before that: both cross a link to 2."""
    b = PlanBuilder("members", scale="core", units=3)
    x = b.tile("x", (64,), "f32", memory="local", role="input")
    c = b.channel("c", source=unit - 1 - member, slot_bytes=256, memory="local", members=2)
    with b.when(unit < 2):
        b.send(c, x, to=unit + 1)
    with b.when(unit > 0):
        b.receive(c, (64,), "f32")
    if far:
        with b.when(eq(unit, 0)):
            b.send(c, x, to=2, member=unit + 1)
        with b.when(eq(unit, 2)):
            b.receive(c, (64,), "f32", member=1)
    found: list[int] = []

    def counted(simulation: Simulation, launched: LaunchRows) -> None:
        find_shared(simulation, launched)
        found.extend(users.max() for _, _, users in filter(None, simulation.paths.grids.values()))

    monkeypatch.setattr("megatile.sim.simulation.find_shared", counted)
    simulate(b.finish(), machine=toy(3, "line"))
    assert found == [flows]


def test_the_link_is_not_reserved_before_the_head_arrives() -> None:
    """0→3 is on link 2→3 only from 230 on; 2→3 sent at the same time goes first and is not delayed."""
    assert arrivals(messages(4, [(0, 3), (2, 3)]), toy(4, "line")) == [286 + 256 + 110, 396]


@pytest.mark.parametrize(("duplex", "expected"), [("full", [396, 396]), ("half", [396, 652])])
def test_duplex(duplex: str, expected: list[int]) -> None:
    assert arrivals(messages(2, [(0, 1), (1, 0)]), toy(2, "line", network={"duplex": duplex})) == expected


def test_a_switch_port_is_shared() -> None:
    """Two links each; both heads are at the port to unit 2 at 130."""
    assert arrivals(messages(3, [(0, 2), (1, 2)]), toy(3, "switch")) == [130 + 256 + 110, 386 + 256 + 110]


def test_a_switch_adds_its_overhead_between_links() -> None:
    hda = toy(3, "switch", network={"hop_overhead": "7 ps"})
    assert arrivals(messages(3, [(0, 2)]), hda) == [20 + 10 + 100 + 107 + 10 + 256]


def test_granules_let_a_short_message_through() -> None:
    """4096 bytes on link 0→1 from 30 on; 64 bytes of another queue are asked for at 30 + 84 later."""
    plan = _long_and_short()
    whole = simulate(plan, machine=toy(3, "line")).trace
    cut = simulate(plan, machine=toy(3, "line", network={"granule": "256 B"})).trace
    waiting = {"whole": _short_arrival(whole), "cut": _short_arrival(cut)}
    assert waiting["whole"] == 130 + 4096 + 64 + 110
    # Pieces of 256 bytes are at link 1→2 from 130 on; the short one waits for at most one of them.
    assert waiting["cut"] <= 130 + 256 + 256 + 64 + 110


def _long_and_short() -> Plan:
    b = PlanBuilder("granules", scale="core", units=3)
    big = b.tile("big", (1024,), "f32", memory="local", role="input")
    small = b.tile("small", (16,), "f32", memory="local", role="input")
    long = b.channel("long", source=select(eq(unit, 2), 0, -1), slot_bytes=4096, memory="local")
    short = b.channel("short", source=select(eq(unit, 2), 1, -1), slot_bytes=64, memory="local")
    with b.when(eq(unit, 0)):
        b.send(long, big, to=2)
    with b.when(eq(unit, 1)):
        b.compute("exp", small, [small])
        b.send(short, small, to=2)
    with b.when(eq(unit, 2)):
        b.receive(short, (16,), "f32")
        b.receive(long, (1024,), "f32")
    return b.finish()


def _short_arrival(trace) -> int:
    sends = {trace[a].bytes: trace[b].end_ps for a, b in trace.flows.tolist()}
    return sends[64]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_shared_memory_serves_in_turns(engine: str) -> None:
    """128 ps each in the shared memory, from 20 on; then 50 + 10 of latency."""
    b = PlanBuilder("loads", scale="core", units=2)
    x = b.tile("x", (64,), "f32", memory="common", role="input")
    y = b.tile("y", (64,), "f32", memory="local", role="output")
    b.copy(y, x)
    r = simulate(b.finish(), machine=toy(2), engine=engine)
    assert r.time_ps == 20 + 128 + 128 + 60
    ends = sorted(e.end_ps for e in r.trace)
    assert ends == [208, 336]


@pytest.mark.parametrize(("slots", "expected"), [(1, 5 * 581 + 465), (2, 1903), (4, 1845)])
@pytest.mark.parametrize("engine", ENGINES)
def test_credits(slots: int, expected: int, engine: str) -> None:
    """Six messages; each is added for 69 ps, then its credit travels 116 ps back.

    One slot: a message every 396 + 69 + 116 = 581 ps. Two: starts at 0, 276, 581, 857, 1162, 1438. Four: the
    DMA engine never waits, starts every 276.
    """
    b = PlanBuilder("credits", scale="core", units=2)
    x = b.tile("x", (64,), "f32", memory="local", role="input")
    y = b.tile("y", (64,), "f32", memory="local", role="inout")
    c = b.channel("c", source=select(eq(unit, 1), 0, -1), slot_bytes=256, memory="local", slots=slots)
    with b.loop(0, 6):
        with b.when(eq(unit, 0)) as branch:
            b.send(c, x, to=1)
        with branch.otherwise():
            m = b.receive(c, (64,), "f32")
            b.compute("add", y, [y, m])
    assert simulate(b.finish(), machine=toy(2), engine=engine).time_ps == expected


def test_control_path() -> None:
    """600 latency + 1000 for 64 bytes + 300 driver + 40 core; twice when queues have to be installed."""
    b = PlanBuilder("add", scale="core", units=2)
    x = b.tile("x", (64,), "f32", memory="local", role="inout")
    b.compute("add", x, [x, x])
    r = simulate(b.finish(), machine=toy(2, control=True))
    assert r.time_ps == 1940 + 69
    assert [(e.operation, e.end_ps) for e in r.trace if e.unit == "core0"] == [
        ("launch add", 1940),
        ("add", 2009),
    ]
    with_queue = simulate(messages(2, [(0, 1)]), machine=toy(2, control=True))
    assert with_queue.time_ps == 2 * 1940 + 396


@pytest.mark.parametrize(("versions", "expected"), [(1, 4 * (94 + 517)), (2, 94 + 4 * 517)])
@pytest.mark.parametrize("engine", ENGINES)
def test_dma_and_compute_overlap(versions: int, expected: int, engine: str) -> None:
    """A copy takes 20 + 64 + 10, an exp of 64 floats 5 + 512: two buffers hide the copies."""
    b = PlanBuilder("pipeline", scale="core", units=1)
    x = b.tile("x", (4, 64), "f32", memory="local", role="input")
    y = b.tile("y", (4, 64), "f32", memory="local", role="output")
    a = b.tile("a", (1, 64), "f32", memory="local", versions=versions)
    with b.loop(0, 4) as loop:
        b.copy(a, x[loop.index], fresh=True)
        b.compute("exp", y[loop.index], [a])
    assert simulate(b.finish(), machine=toy(1, "line"), engine=engine).time_ps == expected


@pytest.mark.parametrize("engine", ENGINES)
def test_two_kernels_on_one_engine_take_turns(engine: str) -> None:
    """Two units of the plan stand on one core: their adds of 69 ps alternate."""
    b = PlanBuilder("crowd", scale="core", units=2, placement=Const(0))
    x = b.tile("x", (64,), "f32", memory="local", role="inout")
    b.compute("add", x, [x, x])
    b.compute("add", x, [x, x])
    r = simulate(b.finish(), machine=toy(2), engine=engine)
    assert r.time_ps == 4 * 69
    starts = {e.unit: [] for e in r.trace}
    for event in r.trace:
        starts[event.unit].append(event.start_ps)
    assert starts == {"core0#0": [0, 138], "core0#1": [69, 207]}


@pytest.mark.parametrize("engine", ENGINES)
def test_barrier_and_signal(engine: str) -> None:
    """A barrier adds the way to the first unit and back: 2 * 100. A signal travels 100 + 8."""
    b = PlanBuilder("barrier", scale="core", units=2)
    z = b.tile("z", (64,), "f32", memory="local", role="inout")
    flag = b.flag("f")
    with b.when(eq(unit, 0)):
        b.compute("exp", z, [z])
        b.read_scalar(z[0:1], 1, name="s")
    b.barrier(b.group("all"))
    with b.when(eq(unit, 0)) as branch:
        b.signal(flag, to=1)
    with branch.otherwise():
        b.wait(flag, 1)
    r = simulate(b.finish(), machine=toy(2), engine=engine, assume={"s": 0})
    assert r.time_ps == 517 + 200 + 108


@pytest.mark.parametrize("engine", ENGINES)
def test_in_network_reduction(engine: str) -> None:
    """Up, down, and the bytes once: 2 * 200 + 256 over a switch that can add."""
    b = PlanBuilder("nvls", scale="core", units=3)
    z = b.tile("z", (64,), "f32", memory="local", role="inout")
    b.collective("all_reduce", b.group("all"), z, z)
    plan = b.finish()
    able = toy(3, "switch", network={"in_network_reduction": ["sum"]})
    assert simulate(plan, machine=able, engine=engine).time_ps == 400 + 256
    with pytest.raises(TimingError, match="does not reduce 'sum' by itself"):
        simulate(plan, machine=toy(3, "switch"), engine=engine)


def test_a_put_goes_over_the_links() -> None:
    b = PlanBuilder("put", scale="core", units=2)
    z = b.tile("z", (64,), "f32", memory="local", role="input")
    w = b.tile("w", (64,), "f32", memory="local", role="output")
    with b.when(eq(unit, 0)):
        b.copy(w.at(1), z)
    assert simulate(b.finish(), machine=toy(2)).time_ps == 396


def test_virtual_channels_keep_loads_apart_from_messages() -> None:
    """With two virtual channels a load and a send start together; with one the send waits 84 ps."""
    for channels, expected in ((2, 396), (1, 84 + 396)):
        b = PlanBuilder("vc", scale="core", units=2)
        x = b.tile("x", (64,), "f32", memory="local", role="input")
        y = b.tile("y", (64,), "f32", memory="local")
        c = b.channel("c", source=(unit + 1) % 2, slot_bytes=256, memory="local")
        b.copy(y, x)
        b.send(c, x, to=(unit + 1) % 2)
        b.receive(c, (64,), "f32")
        assert simulate(b.finish(), machine=toy(2, dma={"channels": channels})).time_ps == expected


@pytest.mark.parametrize("engine", ENGINES)
def test_a_reduction_waits_for_copies_of_what_it_writes(engine: str) -> None:
    """The copy of 16 KiB is done first where it reads the result's tile, else both go on together."""

    def time(read: str) -> int:
        b = PlanBuilder("nvls", scale="core", units=3)
        tiles = {n: b.tile(n, (4096,), "f32", memory="local", role="inout") for n in "xyz"}
        b.copy(tiles["x"], tiles[read])
        b.collective("all_reduce", b.group("all"), tiles["z"], tiles["z"])
        hda = toy(3, "switch", network={"in_network_reduction": ["sum"]})
        return simulate(b.finish(), machine=hda, engine=engine).time_ps

    reduction = 400 + 16384
    assert time("y") == reduction
    assert time("z") > reduction + 4096
