"""Schedules as Plans: what every rank does, for ``check``, ``execute``, ``simulate`` and ``launch``.

schedule = make_schedule("hamilton", 8)
problem = Problem(length=4096, heads=8, dim=64, causal=True, dtype="f32")
plan = attention_plan(schedule, problem)
divided = Divided(schedule, problem)
out, lse = divided.outputs(execute(plan, divided.inputs(q, k, v)))
"""

from __future__ import annotations

from megatile.attention.plans.backward import Backward
from megatile.attention.plans.context import PlanContext
from megatile.attention.plans.forward import Forward
from megatile.attention.plans.problem import Divided, Problem
from megatile.attention.schedules import Schedule, ScheduleError, make_schedule
from megatile.plan.model import Plan

__all__ = ["Divided", "Problem", "attention_plan"]


def attention_plan(
    schedule: Schedule | str,
    problem: Problem,
    *,
    ranks: int | None = None,
    backward: bool = False,
    memory: str = "l2",
    scale: str = "device",
) -> Plan:
    """Return the Plan of attention by a schedule (or its name and a number of ``ranks``) over units of
    ``scale``.

    Inputs are ``q`` and ``kv``, outputs ``out`` and ``lse``, one block per rank; ``Divided`` makes them from
    whole tensors and back. ``backward`` adds the gradients: input ``d_out``, outputs ``d_q`` and ``d_kv`` in
    f32. All ranks share one stream.
    """
    if isinstance(schedule, str):
        schedule = make_schedule(schedule, ranks or 1)
    if problem.heads < schedule.heads:
        raise ScheduleError(
            f"'{schedule.name}' divides heads over {schedule.heads} ranks, there are {problem.heads}"
        )
    mask = "causal" if problem.causal else "full"
    name = (
        f"attention {schedule.name} n={schedule.ranks} {mask} {problem.length}x{problem.heads}x{problem.dim}"
    )
    context = PlanContext(Divided(schedule, problem), name, memory, scale)
    forward = Forward(context)
    following = Backward(context, forward) if backward else None
    last = forward.write()
    if following is not None:
        following.write(last)
    return context.builder.finish()
