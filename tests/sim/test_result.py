"""What a result says: figures, tables, critical path, trace, switches."""

from __future__ import annotations

import gc
from typing import Any
from weakref import ref

import numpy as np
import pytest
from tests.sim.toys import ring, toy

import megatile as mt
import megatile.language as T
from megatile.core.errors import MegatileError
from megatile.core.expr import eq, unit
from megatile.cost.price import price
from megatile.hda import machine
from megatile.language import tl
from megatile.lowering.explain import figures
from megatile.plan.build import PlanBuilder
from megatile.plan.check import check
from megatile.plan.execute import execute
from megatile.plan.model import Plan, Transport, with_transport
from megatile.sim import TimingError, simulate
from megatile.sim.sensitivity import Sensitivity, table
from megatile.trace import read_trace


def test_busy_links_and_exposed_communication() -> None:
    """Ring of 3, 64 floats: 2 adds, 4 sends, 2 copies per unit; every link carries 4 messages of 256 B."""
    r = simulate(ring(3, 64), machine=toy(3))
    assert r.time_ps == 1910
    assert r.time_ns == 1.91
    assert r.busy == {"dma": 3 * (4 * 276 + 2 * 94), "vector": 3 * 2 * 69}
    assert len(r.links) == 3
    assert all(share == pytest.approx(4 * 256 / 1910) for share in r.links.values())
    assert r.exposed_ns == pytest.approx((1910 - 2 * 69) / 1000)


def test_shared_memories_have_their_use() -> None:
    b = PlanBuilder("loads", scale="core", units=2)
    x = b.tile("x", (64,), "f32", memory="common", role="input")
    y = b.tile("y", (64,), "f32", memory="local", role="output")
    b.copy(y, x)
    r = simulate(b.finish(), machine=toy(2))
    assert r.memories == {"memory common[0]": pytest.approx(256 / 336)}


def test_summary_and_repr() -> None:
    r = simulate(ring(3, 64), machine=toy(3))
    lines = r.summary().splitlines()
    assert lines[0] == "ring on toy: 1.91 ns, 3 units, exposed communication 1.772 ns (queues in memory)"
    assert any(line.split()[:2] == ["engine", "vector"] for line in lines)
    assert any("net 0->1" in line and "1 KiB" in line for line in lines)
    assert repr(r) == "Result(ring on toy: 1.91 ns)"
    assert {origin.kind for origin in r.origins.values()} == {"assumed"}  # the toy's file names no source
    assert any(line.startswith("times of add on vector: assumed (") for line in lines)
    real = simulate(ring(3, 64, scale="pe", memory="tcm"), machine="ahbm").summary()
    assert "rule (pe_math: topology.yaml of the KernBench design" in real


def test_the_critical_path_adds_up_and_is_a_chain() -> None:
    r = simulate(ring(5, 64), machine=toy(5, control=True))
    assert sum(step.adds_ps for step in r.critical_path) == r.time_ps
    assert r.critical_path[0].event.operation == f"launch {r.plan.name}"
    for before, after in zip(r.critical_path, r.critical_path[1:], strict=False):
        assert after.event.cause == before.event.index
        assert before.event.start_ps <= after.event.end_ps
    assert r.why_slow().startswith(f"critical path: {len(r.critical_path)} events")


def test_a_slow_reader_is_the_cause_of_a_late_send() -> None:
    """One slot: every send after the first waits for the add that holds the slot."""
    b = PlanBuilder("credits", scale="core", units=2)
    x = b.tile("x", (64,), "f32", memory="local", role="inout")
    c = b.channel("c", source=(unit + 1) % 2, slot_bytes=256, memory="local", slots=1)
    with b.loop(0, 2):
        with b.when(eq(unit, 0)) as branch:
            b.send(c, x, to=1)
        with branch.otherwise():
            m = b.receive(c, (64,), "f32")
            b.compute("add", x, [x, m])
    trace = simulate(b.finish(), machine=toy(2)).trace
    second = trace[int(trace.select(operation="send")[1])]
    assert second.start_ps == 581
    assert trace[second.cause].operation == "add"


def test_flows_counters_and_operands(tmp_path) -> None:
    r = simulate(ring(3, 64), machine=toy(3))
    trace = r.trace
    assert len(trace.flows) == 12
    for sender, receiver in trace.flows.tolist():
        assert trace[sender].operation == "send"
        assert trace[receiver].operation.startswith("receive")
        assert trace[sender].end_ps < trace[receiver].end_ps
    names = [c.name for c in trace.counters]
    assert "queue core1 ring[0]" in names
    assert "messages on links" in names
    for counter in trace.counters:
        assert counter.value.min() >= 0
        assert counter.value[-1] == 0
        assert (np.diff(counter.time_ps) > 0).all()
    assert trace[int(trace.select(operation="add")[0])].operand == (
        "local:x[2:3, 0:64], local:ring -> local:x[2:3, 0:64]"
    )
    assert read_trace(r.write_trace(tmp_path / "r.json.gz")) == trace
    assert read_trace(r.write_trace(tmp_path / "r.jsonl")) == trace
    assert [e.start_ps for e in r.op_log] == sorted(e.start_ps for e in r.op_log)


def test_the_switch_prints_every_message(monkeypatch, capsys) -> None:
    simulate(ring(3, 64), machine=toy(3))
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("MEGATILE_TRACE", "comm")
    simulate(ring(3, 64), machine=toy(3))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 12
    assert lines[0].startswith("[comm] 0 ps core0 -> core1 256 B, there at 396 ps")


def data_dependent() -> PlanBuilder:
    b = PlanBuilder("moe", scale="core", units=2)
    counts = b.tile("counts", (1,), "i32", memory="local", role="input")
    z = b.tile("z", (64,), "f32", memory="local", role="inout")
    n = b.read_scalar(counts[0:1], 8, name="n")
    with b.loop(0, n):
        b.compute("add", z, [z, z])
    return b


def test_data_decides_the_time_or_is_assumed() -> None:
    plan, hda = data_dependent().finish(), toy(2)
    inputs = {"counts": np.array([[3], [5]], "i4"), "z": np.ones((2, 64), "f4")}
    for engine in ("plain", "compiled"):
        r = simulate(plan, inputs, machine=hda, engine=engine)
        assert r.time_ps == 5 * 69
        assert r.outputs["z"][:, 0].tolist() == [8.0, 32.0]
        assert simulate(plan, data=inputs, machine=hda, engine=engine).time_ps == 5 * 69
    assert simulate(plan, machine=hda, assume={"n": 4}).time_ps == 4 * 69
    assert simulate(plan, machine=hda, assume={"n": [1, 2]}).time_ps == 2 * 69
    with pytest.raises(TimingError, match=r"depends on the value of 'n'.*assume=\{'n': 8\}"):
        simulate(plan, machine=hda)
    for wrong, message in (
        (99, "assumed to be 99, outside 0..8"),
        ([1, -1], "assumed to be -1"),
        ("four", "takes a number"),
        ([1], "none for unit 1"),
    ):
        with pytest.raises(TimingError, match=message):
            simulate(plan, machine=hda, assume={"n": wrong})


WRONG = {
    "x <- neg(y)": "there is no tile 'y' here",
    "if q: pass": "'q' is not an integer that is known in if q",
    "wait(f, value=1)": "there is no flag 'f'",
    'collective("meet", g)': "there is no collective 'meet'",
    "m, k <- receive_any(c, f32[4], members=(9,), bytes=16)": "names member 9",
    "x <- add(x)": "takes 2 operands, not 1",
}


@pytest.mark.parametrize("engine", [None, "plain", "compiled"])
@pytest.mark.parametrize("command", WRONG)
def test_a_plan_that_does_not_hang_together_is_refused(command: str, engine: str | None) -> None:
    plan = Plan.from_text(f"""plan("p", scale="core", grid=(2,))
x = tile(f32, (4,), memory="local", role="inout")
c = channel(source=1 - unit, slots=1, slot_bytes=16, memory="local")
g = group(0)
with units((0, 2, 1)):
    {command}
""")
    with pytest.raises(MegatileError, match=WRONG[command]):
        simulate(plan, machine=toy(2), engine=engine)
    with pytest.raises(MegatileError, match=WRONG[command]):
        execute(plan, {"x": np.ones((2, 4))})


ODD = {
    "which it does not feed": (
        "send(c, x, to=(unit + 2) % 3, bytes=16)",
        "m <- receive(c, f32[4], bytes=16)",
    ),
    "unit 2 sends to unit 3, which does not exist": ("send(c, x, to=unit + 1, bytes=16)",),
    "does not fit a slot of 16": (
        "send(c, y, to=(unit + 1) % 3, bytes=32)",
        "m <- receive(c, f32[8], bytes=32)",
    ),
    "1 message from unit 2 is never received on c": ("send(c, x, to=(unit + 1) % 3, bytes=16)",),
    "expects 8 bytes, the message has 16": (
        "send(c, x, to=(unit + 1) % 3, bytes=16)",
        "m <- receive(c, f32[2], bytes=8)",
    ),
    "takes root 3 of a group of 3": ('collective("broadcast", g, read=x, write=x, root=3, bytes=16)',),
    "unit 0 receives on channel 'd', where it has no neighbour": ("m <- receive(d, f32[4], bytes=16)",),
}


@pytest.mark.parametrize("engine", [None, "plain", "compiled"])
@pytest.mark.parametrize("text", ODD)
def test_queues_are_checked_without_data_too(text: str, engine: str | None) -> None:
    commands = "\n    ".join(ODD[text])
    plan = Plan.from_text(f"""plan("p", scale="core", grid=(3,))
x = tile(f32, (4,), memory="local", role="inout")
y = tile(f32, (8,), memory="local", role="inout")
c = channel(source=(unit - 1) % 3, slots=2, slot_bytes=16, memory="local")
d = channel(source=unit - 1, slots=2, slot_bytes=16, memory="local")
g = group(0)
with units((0, 3, 1)):
    {commands}
""")
    with pytest.raises(MegatileError, match=text) as found:
        simulate(plan, machine=toy(3), engine=engine, data=False)
    with pytest.raises(type(found.value), match=text):
        check(plan)


def test_arguments_of_the_wrong_kind() -> None:
    for plan, where in ((ring(3, 4), None), (ring(3, 4), 3), ("ring", "ahbm")):
        with pytest.raises(MegatileError, match="takes a Plan"):
            simulate(plan, machine=where)  # type: ignore[arg-type]


def test_simulating_leaves_the_plan_and_the_machine_alone() -> None:
    plan, hda = ring(3, 16), toy(3)
    before = (plan, str(plan), hda.fingerprint())
    simulate(plan, machine=hda).summary()
    assert (plan, str(plan), hda.fingerprint()) == before


def test_check_and_price_know_machines_by_name_too() -> None:
    plan = tl.read_kernel(copy_back, [tl.Tensor("t", (8,))], world_size=2)
    assert check(plan, "ahbm") == check(plan, machine("ahbm"))
    assert price(plan, "ahbm") == price(plan, machine("ahbm"))


def copy_back(t_ptr, tl):
    mine = t_ptr + tl.program_id(0) * 16
    tl.store(mine, tl.load(mine, (8,)))


def test_standard_machines_by_name() -> None:
    plan = ring(8, 1024, scale="device", memory="l2")
    assert simulate(plan, machine="dgx-h100").time_ns > 0


def test_units_without_a_network_send_through_the_memory_they_share() -> None:
    """A CPU describes no network: queues between its cores go through main memory, one at a time."""
    plan = ring(2, 1024, scale="block", memory="ram")
    r = simulate(plan, machine=machine("cpu", cores=2))
    assert set(r.memories) == {"memory l3_cache[0]", "memory ram[0]"}
    assert not r.links
    assert simulate(plan, machine=machine("cpu", cores=2), engine="compiled").time_ps == r.time_ps


def test_a_timeline_counts_the_queues_of_messages_that_are_used() -> None:
    """NCCL's kernels send through the 17th queue of an H100's; nobody knows the 16 before it."""
    plan = with_transport(
        ring(4, 64, scale="device", memory="hbm"),
        Transport("kernel", "nccl", "ring", "Simple"),
        "all_reduce",
        4,
        256,
    )
    trace = simulate(plan, machine="dgx-h100").trace
    assert {e.engine for e in trace if e.operation == "send"} == {"dma.1"}
    assert {e.operation for e in trace if e.engine == "control"} == {"start"}


def counted(decided_by_data: bool) -> Plan:
    b = PlanBuilder("counted", scale="core", units=2)
    x = b.tile("x", (64,), "f32", memory="local", role="inout")
    n = b.tile("n", (1,), "i32", memory="local", role="input")
    with b.loop(0, b.read_scalar(n, 8) if decided_by_data else 8):
        b.compute("add", x, [x, x])
    return b.finish()


def in_blocks() -> Plan:
    b = PlanBuilder("blocks", scale="device", units=1)
    block = b.level("block", scale="block", grid=4, parent="device", slots=1)
    x = b.tile("x", (64,), "f32", memory="shared", level=block)
    with b.stream(level=block):
        b.compute("add", x, [x, x])
    return b.finish()


@pytest.mark.parametrize(
    ("plan", "hda", "inputs"),
    [
        (counted(False), toy(2), {"x": np.ones((2, 64), "f4"), "n": np.full((2, 1), 3, "i4")}),
        (counted(True), toy(2), {"x": np.ones((2, 64), "f4"), "n": np.full((2, 1), 3, "i4")}),
        (in_blocks(), "dgx-h100", None),
    ],
    ids=["alike", "decided by data", "levels"],
)
def test_the_engines_memory_goes_with_the_result(plan: Plan, hda: Any, inputs: Any) -> None:
    gc.disable()
    try:
        result = simulate(plan, inputs, machine=hda)
        arena = ref(result.launch.simulation.arena)
        del result
        assert arena() is None
    finally:
        gc.enable()


def test_what_sends_no_messages_exposes_copies_not_communication():
    b = PlanBuilder("alone", scale="device", units=1)
    x, y = (b.tile(name, (64,), "f32", memory="hbm") for name in "xy")
    b.copy(y, x)
    head = simulate(b.finish(), machine="dgx-h100").summary().splitlines()[0]
    assert "1 unit, exposed copies and waits" in head


def test_the_summary_counts_blocks_and_figures_what_caches_keep():
    @T.program
    def p(X: T.Tensor((1024,), "f32"), Y: T.Tensor((1024,), "f32")):
        with T.Kernel(block=8) as b:
            t = T.alloc((128,), "f32", level="l1")
            T.copy(t, X[b * 128])
            T.copy(Y[b * 128], t)

    result = mt.simulate(p, machine="dgx-h100")
    assert ", 8 blocks on 1 unit, " in result.summary().splitlines()[0]
    assert "1× the compulsory 4 KiB (4 KiB of results stay in the cache)" in str(
        figures(result.lowered, result)
    )


def test_what_helps_names_anomalies_and_leaves_out_what_changes_nothing():
    rows = [
        ("memory.l2.bandwidth", 1.1, 1003),
        ("memory.l2.latency", 1 / 1.1, 990),
        ("memory.l2.latency", 1.1, 1003),
    ]
    found = [Sensitivity(name, "1", by, took * 100, 100_000) for name, by, took in rows]
    text = table([*found, Sensitivity("memory.hbm.bandwidth", "1", 1.1, 99_999, 100_000)])
    assert [line.split()[-2] for line in text.splitlines()[1:4]] == ["+0.30%*", "-1.00%", "+0.30%"]
    assert "scheduling anomaly" in text
    assert text.endswith("1 other parameters have no effect")
    assert "anomaly" not in table(found[1:])
