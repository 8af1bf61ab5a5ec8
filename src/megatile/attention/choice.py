"""Which schedule a call follows: the one named, or the fastest for a machine."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps
from math import log2
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from megatile.attention.errors import AttentionError
from megatile.attention.schedules import GatherRoutes, Schedule, make_schedule
from megatile.core.cached import cached
from megatile.core.errors import MegatileError
from megatile.runtime.agreement import Record

Given = ParamSpec("Given")
Answer = TypeVar("Answer")


def uncompiled(function: Callable[Given, Answer]) -> Callable[Given, Answer]:
    """Return ``torch.compiler.disable``, without loading the compiler (seconds) where nothing is compiled."""
    disabled: list[Callable[Given, Answer]] = []

    @wraps(function)
    def called(*args: Given.args, **kwargs: Given.kwargs) -> Answer:
        if "torch._dynamo" not in sys.modules:
            return function(*args, **kwargs)
        if not disabled:
            disabled.append(torch.compiler.disable(function))
        return disabled[0](*args, **kwargs)

    return called


@uncompiled
def choose(
    schedule: str | Schedule, ranks: int, machine: Any, problem: str | None
) -> tuple[Schedule | None, Any, str | None]:
    """Return the schedule, the machine to predict for (None unless "auto" has one), and the first problem.

    Nothing may raise here: the other ranks would wait for this one.
    """
    found = None
    if machine is None and schedule == "auto" and ranks > 1:
        _say_what_auto_is(dist.get_rank() == 0)
    try:
        if machine is not None and schedule == "auto":
            found = _loaded(machine)
            schedule = _for_machine(found, ranks)
        chosen = make_schedule(schedule, ranks) if isinstance(schedule, str) else schedule
    except MegatileError as error:
        return None, found, problem or str(error)
    if not isinstance(chosen, Schedule):
        return None, found, problem or f"schedule is a name or a Schedule, got {type(schedule).__name__}"
    if chosen.ranks != ranks:
        wrong = f"the schedule '{chosen.name}' is for {chosen.ranks} ranks, the group has {ranks}"
        return chosen, found, problem or wrong
    return chosen, found, problem


@cached()
def _say_what_auto_is(first: bool) -> None:
    """Once per process; the ``first`` one says it where nobody has asked for logs."""
    logging.getLogger("megatile.attention").log(
        logging.WARNING if first else logging.INFO,
        "schedule='auto' without a machine is 'hamilton', which may lose to 'zigzag' where links are "
        "switched: give machine= or name a schedule",
    )


def machine_text(machine: Any) -> str | None:
    """Return what ranks compare: two machines of one name may have different parameters."""
    return None if machine is None else f"{machine.name} ({_fingerprint(machine)})"


@cached(most=16)
def _fingerprint(machine: Any) -> str:
    found: str = machine.fingerprint()
    return found[:12]


MAX_GATHERED_BYTES = 2**20
"""KV of all ranks that gloo sends in one exchange. On 4 ranks that took 0.7 to 0.9 of the processor time of
three exchanges around a ring; with 2 MiB copies cost as much as it saves."""


def gathered(schedule: Schedule, causal: bool, records: Sequence[Record]) -> Schedule:
    """Return a schedule that gathers KV where there is little of it, with the same layout."""
    first = records[0]
    width = first["batch"] * first["KV heads"] * (first["head dim"] + first["value dim"])
    nbytes = sum(r["key tokens"] for r in records) * width * getattr(torch, first["dtype"]).itemsize
    if nbytes > MAX_GATHERED_BYTES or schedule.ranks < 3 or schedule.heads > 1:
        return schedule
    if schedule.layout(causal).name == "cycles":
        return schedule
    return replace(schedule, routes=GatherRoutes(schedule.ranks))


def _loaded(machine: Any) -> Any:
    if isinstance(machine, (str, Path)):
        return _read(str(machine))
    if not hasattr(machine, "fingerprint"):
        raise AttentionError(f"machine is an HDA or its name, got {type(machine).__name__}")
    return machine


@cached(most=16)
def _read(name: str) -> Any:
    from megatile.hda import machine

    return machine(name)


def _for_machine(machine: Any, ranks: int) -> str:
    """Return paths inside nodes when the ranks fill several nodes of the machine, one full mesh otherwise."""
    inside = machine.count("device", within="node")
    return (
        f"hamilton:{inside}x{ranks // inside}" if 1 < inside < ranks and ranks % inside == 0 else "hamilton"
    )


def predicted(
    machine: Any, otherwise: Schedule, q: Tensor, k: Tensor, causal: bool, tokens_q: int, tokens_kv: int
) -> Schedule:
    """Return the fastest schedule by prediction among those with the same division of sequences.

    Lengths are rounded to powers of two, so that a few predictions serve all calls.
    """
    from megatile.attention.plans import Problem
    from megatile.attention.predict import best_schedule

    try:
        problem = Problem(
            1 << round(log2(max(1, tokens_q))), q.shape[2], q.shape[3], k.shape[2],
            kv_length=1 << round(log2(max(1, tokens_kv))), batch=q.shape[0], causal=causal,
            dtype="f32" if q.dtype == torch.float32 else "bf16",
        )  # fmt: skip
        return make_schedule(best_schedule(machine, otherwise.ranks, problem), otherwise.ranks)
    except MegatileError:  # a machine that does not describe what prediction needs, or has fewer devices
        return otherwise
