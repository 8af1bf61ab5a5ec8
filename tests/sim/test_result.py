"""What a result says: figures, tables, critical path, trace, switches."""

from __future__ import annotations

import gc
from typing import Any
from weakref import ref

import numpy as np
import pytest
from tests.sim.toys import ring, toy

from megatile.core.errors import MegatileError
from megatile.cost.price import price
from megatile.hda import machine
from megatile.language import tl
from megatile.plan.build import PlanBuilder
from megatile.plan.check import check
from megatile.plan.model import Plan
from megatile.sim import simulate


def test_summary_and_repr() -> None:
    r = simulate(ring(3, 64), machine=toy(3))
    lines = r.summary().splitlines()
    assert lines[0] == "ring on toy: 1.91 ns, 3 cores, exposed communication 1.772 ns (queues in memory)"
    assert any(line.startswith("engine vector × 3  ") for line in lines)
    assert any("net 0->1" in line and "1 KiB" in line for line in lines)
    assert repr(r) == "Result(ring on toy: 1.91 ns)"
    assert {origin.kind for origin in r.origins.values()} == {"assumed"}  # the toy's file names no source
    assert any(line.startswith("times of add on vector: assumed (") for line in lines)
    real = simulate(ring(3, 64, scale="pe", memory="tcm"), machine="ahbm").summary()
    assert "from the machine file (pe_math: topology.yaml of the KernBench design" in real


def test_the_switch_prints_every_message(monkeypatch, capsys) -> None:
    simulate(ring(3, 64), machine=toy(3))
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("MEGATILE_TRACE", "comm")
    simulate(ring(3, 64), machine=toy(3))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 12
    assert lines[0].startswith("[comm] 0 ps core0 -> core1 256 B, there at 396 ps")


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


def test_units_without_a_network_send_through_the_memory_they_share() -> None:
    """A CPU describes no network: queues between its cores go through main memory, one at a time."""
    plan = ring(2, 1024, scale="block", memory="ram")
    r = simulate(plan, machine=machine("cpu", cores=2))
    assert set(r.memories) == {"memory l3_cache[0]", "memory ram[0]"}
    assert not r.links
    assert simulate(plan, machine=machine("cpu", cores=2), engine="compiled").time_ps == r.time_ps


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
    assert "1 device, exposed copies and waits" in head
