"""Pipeline schedules: in which order each stage does its forward and backward passes, and how long it takes.

An order is a list of (kind, micro-batch, chunk) for each stage: ``F`` forward, ``B`` backward (with
``zero_bubble``: of the inputs only), ``W`` gradients of the weights. Chunk ``c`` of stage ``s`` is the
virtual stage ``c × stages + s``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from megatile.core.registry import Registry
from megatile.models.schemes import ModelError

Order = list[tuple[str, int, int]]
SCHEDULES: Registry[Callable[[int, int, int], list[Order]]] = Registry("pipeline schedules")


@SCHEDULES.register("1f1b")
def one_forward_one_backward(stages: int, micro: int, chunks: int) -> list[Order]:
    """Return 1F1B (PipeDream-Flush): each stage holds at most as many micro-batches as stages follow it."""
    if chunks > 1:
        raise ModelError(
            f"schedule 1f1b has one chunk a stage, got interleave {chunks}", advice="interleaved"
        )
    found = []
    for stage in range(stages):
        ahead = min(micro, stages - stage - 1)
        order = [("F", i, 0) for i in range(ahead)]
        for i in range(micro - ahead):
            order += [("F", ahead + i, 0), ("B", i, 0)]
        found.append(order + [("B", i, 0) for i in range(micro - ahead, micro)])
    return found


@SCHEDULES.register("zero_bubble")
def zero_bubble(stages: int, micro: int, chunks: int) -> list[Order]:
    """Return ZB-H1: as many micro-batches in flight as in 1F1B; gradients of weights wait until a stage has
    nothing else to do. Orders are made as if all passes took equally long."""
    if chunks > 1:
        raise ModelError(f"schedule zero_bubble has one chunk a stage, got interleave {chunks}")
    orders: list[Order] = [[] for _ in range(stages)]
    done = {kind: [0] * stages for kind in "FBW"}
    while min(done["W"]) < micro:
        before = {kind: list(counts) for kind, counts in done.items()}
        for stage in range(stages):
            kind = _next_pass(before, stage, stages, micro)
            if kind:
                orders[stage].append((kind, before[kind][stage], 0))
                done[kind][stage] += 1
    return orders


def _next_pass(done: dict[str, list[int]], stage: int, stages: int, micro: int) -> str:
    """Return what a stage does next: a backward pass that is ready, else a forward one, else weights."""
    forward, backward, weights = (done[kind][stage] for kind in "FBW")
    if backward < (done["B"][stage + 1] if stage < stages - 1 else forward):
        return "B"
    ready = done["F"][stage - 1] if stage else micro
    if forward < ready and forward - backward < stages - stage:
        return "F"
    return "W" if weights < backward else ""


@SCHEDULES.register("interleaved")
def interleaved(stages: int, micro: int, chunks: int) -> list[Order]:
    """Return Megatron's interleaved 1F1B: every stage has several chunks, taken in turn by groups of
    micro-batches."""
    if micro % stages:
        raise ModelError(
            f"interleaved needs micro-batches in multiples of {stages} stages, got {micro}",
            advice="change the global batch, or use 1f1b",
        )
    total, group = micro * chunks, stages * chunks

    def at(number: int, forward: bool) -> tuple[int, int]:
        chunk = number % group // stages
        return number // group * stages + number % stages, chunk if forward else chunks - 1 - chunk

    found = []
    for stage in range(stages):
        ahead = min(total, (stages - stage - 1) * 2 + (chunks - 1) * stages)
        order: Order = [("F", *at(n, True)) for n in range(ahead)]
        for n in range(total - ahead):
            order += [("F", *at(ahead + n, True)), ("B", *at(n, False))]
        found.append(order + [("B", *at(n, False)) for n in range(total - ahead, total)])
    return found


class StageTimes(NamedTuple):
    """Microseconds of one chunk of a stage for one micro-batch."""

    forward: float
    backward: float
    weights: float = 0.0


def finish_us(orders: Sequence[Order], times: Sequence[StageTimes], send_us: float, chunks: int = 1) -> float:
    """Return when the last pass ends: stages work in order, a pass waits for its neighbour's message."""
    stages = len(orders)
    last = stages * chunks - 1
    end: dict[tuple[str, int, int], float] = {}
    clock, position = [0.0] * stages, [0] * stages
    waiting = set(range(stages))
    while waiting:
        moved = False
        for stage in sorted(waiting):
            order, now = orders[stage], clock[stage]
            cost = dict(zip("FBW", times[stage], strict=True))
            while position[stage] < len(order):
                kind, i, chunk = order[position[stage]]
                virtual = chunk * stages + stage
                needs = _needs(kind, i, virtual, last)
                if needs is not None and needs not in end:
                    break
                far = needs is not None and needs[2] != virtual
                begin = now if needs is None else max(now, end[needs] + (send_us if far else 0.0))
                now = begin + cost[kind]
                end[kind, i, virtual] = now
                position[stage] += 1
                moved = True
            clock[stage] = now
            if position[stage] == len(order):
                waiting.discard(stage)
        if not moved:
            raise ModelError("the pipeline schedule never ends: every stage waits for another")
    return max(clock)


def _needs(kind: str, i: int, virtual: int, last: int) -> tuple[str, int, int] | None:
    """Return the pass that must end before this one begins."""
    if kind == "F":
        return ("F", i, virtual - 1) if virtual else None
    if kind == "B":
        return ("B", i, virtual + 1) if virtual < last else ("F", i, virtual)
    return "B", i, virtual
