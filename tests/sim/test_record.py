"""``sim/record.py``: what the engine recorded, as a Trace."""

from __future__ import annotations

import numpy as np
from tests.sim.toys import ring, toy

from megatile.core.expr import eq, unit
from megatile.plan.build import PlanBuilder
from megatile.plan.model import Transport, with_transport
from megatile.sim import simulate
from megatile.trace import read_trace


def test_the_critical_path_adds_up_and_is_a_chain() -> None:
    r = simulate(ring(5, 64), machine=toy(5, control=True))
    assert sum(step.adds_ps for step in r.critical_path) == r.time_ps
    assert r.critical_path[0].event.operation == f"launch {r.plan.name}"
    for before, after in zip(r.critical_path, r.critical_path[1:], strict=False):
        assert after.event.cause == before.event.index
        assert before.event.start_ps <= after.event.end_ps
    assert r.why_slow().startswith(f"critical path: {len(r.critical_path)} events")


def test_a_trace_without_operands_has_the_same_events() -> None:
    r = simulate(ring(5, 64), machine=toy(5, control=True))
    plain = r.record.trace(r.launch.begin_ps, operands=False)
    assert set(r.record.engines()) <= set(plain.engines)
    assert {e.operand for e in plain} == {""}

    def shown(trace):
        return [(str(e.unit), e.engine, e.operation, e.source, e.start_ps, e.end_ps, e.cause) for e in trace]

    assert shown(plain) == shown(r.trace)


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


def test_signals_carry_no_bytes() -> None:
    b = PlanBuilder("flags", scale="core", units=2)
    flag = b.flag("flag")
    b.signal(flag, to=(unit + 1) % 2)
    b.wait(flag, 1)
    trace = simulate(b.finish(), machine=toy(2)).trace
    signals = [event for event in trace if event.operation.startswith("signal")]
    assert len(signals) == 2
    assert {event.bytes for event in signals} == {0}
