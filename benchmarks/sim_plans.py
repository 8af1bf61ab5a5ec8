"""Plans for the simulator's benchmarks, each with what its SimPy model needs to know of the machine."""

from __future__ import annotations

from typing import Any

from megatile.hda import HDA
from megatile.language import tl
from megatile.plan.build import PlanBuilder
from megatile.plan.model import Compute, Plan, statements
from megatile.timing import Resources
from simpy_models import Hop, LoadTimes, forwarding_ring, loads_and_barriers

FLOATS = 64


def ring_kernel(t_ptr: Any, n_elem: int, world_size: int, tl: Any) -> None:
    """Example 3 of this project's README."""
    mine = t_ptr + tl.program_id(0) * n_elem * 2
    total = current = tl.load(mine, shape=(n_elem,), dtype="f16")
    for _ in range(world_size - 1):
        tl.send(dir="E", src=current)
        current = tl.recv(dir="W", shape=(n_elem,), dtype="f16")
        total = total + current
    tl.store(mine, total)


def readme_ring(units: int, rounds: int, elements: int = 4096) -> Plan:
    """``units`` units, each of which sends on what came last ``rounds`` times."""
    arguments = [tl.Tensor("t", (elements,)), elements, rounds + 1]
    return tl.read_kernel(ring_kernel, arguments, world_size=units)


def readme_ring_in_simpy(plan: Plan, rounds: int, hda: HDA) -> int:
    """The same kernel as a SimPy model: slots, credits, every link with its own times."""
    machine, channel = Resources(hda, plan), plan.channels[0]
    nbytes, hops = channel.slot_bytes, []
    for sender in range(plan.units):
        receiver = (sender + 1) % plan.units
        path = machine.path(sender, "tcm", receiver, "tcm")
        held = path.held_ps(nbytes)
        flight = path.occupied_ps(nbytes) - held + path.latency_ps
        hops.append(Hop(path.startup_ps + held, flight, machine.credit_ps(receiver, sender, channel)))
    load = machine.path(0, "hbm", 0, "tcm")
    add = next(s for s in statements(plan.streams[0].body) if isinstance(s, Compute) and s.operation == "add")
    add_ps = machine.compute_ps(add, nbytes // 2, 0)
    copy_ps = load.startup_ps + load.held_ps(nbytes)
    latency_ps = load.occupied_ps(nbytes) - load.held_ps(nbytes) + load.latency_ps
    return forwarding_ring(hops, rounds, channel.slots, machine.start_ps(0), copy_ps, latency_ps, add_ps)


def meeting(n: int, rounds: int, loads: int) -> Plan:
    """Everybody loads some blocks from the memory that all share, works on each and meets the others."""
    b = PlanBuilder("loads and barriers", scale="core", units=n)
    x = b.tile("x", (FLOATS,), "f32", memory="common", role="input")
    z = b.tile("z", (FLOATS,), "f32", memory="local", role="inout")
    buffers = [b.tile(f"y{k}", (FLOATS,), "f32", memory="local") for k in range(loads)]
    everyone = b.group("everyone")
    with b.loop(0, rounds):
        for buffer in buffers:
            b.copy(buffer, x)
            b.compute("add", z, [z, buffer])
        b.barrier(everyone)
    return b.finish()


def meeting_in_simpy(n: int, rounds: int, loads: int, t: LoadTimes, hda: HDA) -> int:
    machine = Resources(hda, meeting(n, 1, 1))
    barrier = 2 * max(machine.message_ps(0, unit, 0) for unit in range(1, n))
    return loads_and_barriers(n, rounds, loads, t, barrier)
