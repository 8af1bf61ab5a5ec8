"""A step as a Plan: one stream per pipeline stage, a loop over equal layers, library kernels as commands.

The ranks of a stage do the same at the same time, so one device stands for all of them; a collective is its
library's kernel. Simulated, the Plan gives the critical path, the timeline and what-if answers of the step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from typing import Any

from megatile.core.cached import cached_in_owner
from megatile.core.expr import unit
from megatile.hda import HDA
from megatile.models.batch import Batch
from megatile.models.deployment import Deployment
from megatile.models.forward import stage_operators
from megatile.models.operators import Operator
from megatile.models.schedules import Order, StageTimes
from megatile.models.schemes import ModelError
from megatile.plan.build import Handle, PlanBuilder
from megatile.plan.model import Plan, Work
from megatile.timing.faults import faults
from megatile.timing.library_commands import HOST, LIBRARY_KERNEL, MESSAGE, shape_text
from megatile.timing.resources import control_ps

MAX_PASSES = 20_000
"""Forward and backward passes of a Plan; longer schedules are timed without one."""
PASSES = {"F": "forward", "B": "backward", "W": "weight gradients"}
IN_FLIGHT = 4
"""Results of a stage that may be on their way at once."""
TOKEN_BYTES = 2
"""A message between stages is one element; its kernel takes the library's time, less that of the message."""


def step_plan(d: Deployment, batch: Batch, host_us: float) -> Plan:
    """Return the Plan of one forward pass over a batch; ``host_us`` includes its launch.

    Nothing overlaps: it takes the time of the closed sum, where kernels that send take longer than a message
    of one element (and the install of its queue, where the host has no time of its own).
    """
    memory = _memory(d)
    launch_ps, messages = _beside_kernels(d.hda, memory, d.pp, d.group)
    waited_ps = round(host_us * 1e6) - launch_ps
    host_ns = max(0, round(waited_ps / 1e3))
    b = _stages(d.config.name, d.pp, d.group)
    state = b.tile("state", (1,), "bf16", memory=memory, role="inout")
    ring = None
    if d.pp > 1:
        ring = b.channel("stages", source=unit - 1, slot_bytes=TOKEN_BYTES, memory=memory)
    for stage in range(d.pp):
        with b.stream(range(stage, stage + 1)):
            if stage == 0:
                host = Operator("host", "host", 1, HOST, "bf16", (("ns", host_ns),))
                _add(b, state, d, [host])
            elif ring is not None:
                b.receive(ring, (1,), "bf16", into=state)
            sent = messages[stage] if stage < d.pp - 1 else 0
            if stage == 0:  # with what the launch takes beyond the host's time
                sent -= waited_ps - host_ns * 1000
            _add(b, state, d, stage_operators(d, batch, stage), sent)
            if ring is not None and stage < d.pp - 1:
                b.send(ring, state, to=unit + 1)
    return b.finish()


def _stages(name: str, stages: int, group: int) -> PlanBuilder:
    return PlanBuilder(f"step of {name}", scale="device", units=stages, placement=unit * group)


@cached_in_owner
def _beside_kernels(hda: HDA, memory: str, stages: int, group: int) -> tuple[int, tuple[int, ...]]:
    """Return the picoseconds of the launch of so many stages, and of each message to the next of them."""
    if stages == 1:
        return control_ps(hda, hda.level(hda.scale("device").level).position), ()
    b = _stages("nothing", stages, group)
    state = b.tile("state", (1,), "bf16", memory=memory, role="inout")
    ring = b.channel("stages", source=unit - 1, slot_bytes=TOKEN_BYTES, memory=memory)
    for stage in range(stages):
        with b.stream(range(stage, stage + 1)):
            if stage > 0:
                b.receive(ring, (1,), "bf16", into=state)
            if stage < stages - 1:
                b.send(ring, state, to=unit + 1)
    from megatile.sim.simulate import simulate  # steps without stages never need the engine

    with faults():
        trace = list(simulate(b.finish(), machine=hda).trace)
    ends = [min(e.end_ps for e in trace if e.operation.startswith("launch"))]
    ends += sorted(e.end_ps for e in trace if e.operation == "receive into")
    return ends[0], tuple(after - before for before, after in pairwise(ends))


def _memory(d: Deployment) -> str:
    level = d.hda.level(d.hda.scale("device").level)
    return next(m.name for m in d.hda.memories if m.level == level.name and not m.cache)


def _add(
    b: PlanBuilder, state: Handle, d: Deployment, operators: Iterable[Operator], message_ps: int = 0
) -> None:
    """Write operators one after the other; those of equal layers are a loop."""
    for (_, repeat), block in groupby(operators, key=lambda o: (o.block, o.repeat)):
        if repeat == 1:
            for operator in block:
                _command(b, state, d, operator, message_ps)
        else:
            with b.loop(0, repeat, index="layer"):
                for operator in block:
                    _command(b, state, d, operator, message_ps)


def _command(b: PlanBuilder, state: Handle, d: Deployment, o: Operator, message_ps: int) -> None:
    given: dict[str, Any] = {
        "name": o.name, "kernel": o.kernel, "shape": shape_text(dict(o.extents)), "scheme": o.dtype,
        "library": d.library,
    }  # fmt: skip
    if o.kv_dtype:
        given["kv_dtype"] = o.kv_dtype
    if o.part == "pipeline":
        given[MESSAGE] = message_ps
    engine = "vector" if o.communicates else "tensor"
    b.compute(LIBRARY_KERNEL, state, [state], engine=engine, work=Work(dtype="bf16"), **given)


def pipeline_plan(
    d: Deployment, orders: Sequence[Order], times: Sequence[StageTimes], send_us: float, chunks: int
) -> Plan:
    """Return the Plan of a pipeline schedule: one stream per stage, passes and sends as commands of stated
    time, and a message for each micro-batch that goes on to another stage."""
    passes = sum(len(order) for order in orders)
    if passes > MAX_PASSES:
        raise ModelError(f"{passes} passes are more than {MAX_PASSES}", advice="a smaller global batch")
    stages, memory = len(orders), _memory(d)
    b = PlanBuilder(f"train {d.config.name}", scale="device", units=stages, placement=unit * d.group)
    ways, tiles = {}, {}
    for kind, name, step in (("F", "activations", -1), ("B", "gradients", 1)):
        ways[kind] = b.channel(
            name,
            source=(unit + step) % stages,
            slot_bytes=TOKEN_BYTES,
            memory=memory,
            slots=stages * chunks + 1,
        )
        tiles[kind] = tuple(
            b.tile(f"{part}_{name}", (1,), "bf16", memory=memory, role="inout", versions=IN_FLIGHT)
            for part in ("received", "computed", "sent")
        )
    tiles["W"] = (b.tile("weights", (1,), "bf16", memory=memory, role="inout"),) * 3
    last = stages * chunks - 1
    for stage, order in enumerate(orders):
        cost = dict(zip("FBW", times[stage], strict=True))
        with b.stream(range(stage, stage + 1)):
            for kind, _, chunk in order:
                virtual, (received, computed, sent) = chunk * stages + stage, tiles[kind]
                first, end = (0, last) if kind == "F" else (last, 0)
                if kind != "W" and virtual != first:
                    b.receive(ways[kind], (1,), "bf16", into=received, fresh=True)
                _stated(b, d, computed, received, PASSES[kind], cost[kind], "tensor")
                if kind != "W" and virtual != end:
                    _stated(b, d, sent, computed, "send", send_us, "vector")
                    b.send(ways[kind], sent, to=(unit + (1 if kind == "F" else -1)) % stages)
    return b.finish()


def _stated(
    b: PlanBuilder, d: Deployment, write: Handle, read: Handle, name: str, time_us: float, engine: str
) -> None:
    """Write a command that takes a stated time."""
    shape = shape_text({"ns": round(time_us * 1e3)})
    given: dict[str, Any] = {"name": name, "kernel": HOST, "shape": shape, "library": d.library}
    fresh = write.name != read.name
    b.compute(LIBRARY_KERNEL, write, [read], engine=engine, work=Work(dtype="bf16"), fresh=fresh, **given)
