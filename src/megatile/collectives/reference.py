"""What a collective must give, in plain NumPy: the judge of every algorithm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from megatile.collectives.job import REDUCING, Job
from megatile.core.dtypes import is_float, numpy_dtype

Arrays = list[Any]


def block(job: Job, rank: int) -> slice:
    """Return a rank's block of the whole buffer, as ``numpy.array_split`` cuts it."""
    even, rest = divmod(job.count, job.ranks)
    start = rank * even + min(rank, rest)
    return slice(start, start + even + (rank < rest))


def make_inputs(job: Job, seed: int = 0) -> Arrays:
    """Small numbers, exact in every dtype, so that sums do not depend on their order."""
    shape, _ = job.shapes
    if shape is None:
        return []
    random = np.random.default_rng(seed)
    if job.reduction == "prod":
        values = random.choice((-1, 1), (job.ranks, *shape))
        values[random.permutation(job.ranks)[:3]] *= 3
    else:
        values = random.integers(-3, 4, (job.ranks, *shape))
    return list(values.astype(numpy_dtype(job.dtype)))


def expected(job: Job, inputs: Sequence[Any]) -> list[Any | None]:
    """Return every rank's result (None: not specified), cut to the elements that count."""
    match job.operation:
        case "barrier":
            return [None] * job.ranks
        case "broadcast":
            return [inputs[job.root][: job.count]] * job.ranks
        case "send_recv":
            return _sent(job, inputs)
        case "all_gather" | "gather":
            whole = np.concatenate([_contribution(job, inputs[r], r) for r in range(job.ranks)])
            alone = job.operation == "gather"
            return [whole if not alone or r == job.root else None for r in range(job.ranks)]
        case "scatter":
            return [inputs[job.root][block(job, r)] for r in range(job.ranks)]
        case "all_to_all":
            return [np.concatenate([x[block(job, r)] for x in inputs]) for r in range(job.ranks)]
    total = reduced(job, inputs)
    if job.operation == "reduce_scatter":
        return [total[block(job, r)] for r in range(job.ranks)]
    return [total if job.operation == "all_reduce" or r == job.root else None for r in range(job.ranks)]


def _sent(job: Job, inputs: Sequence[Any]) -> list[Any | None]:
    if job.peer is None:
        return [inputs[(r - 1) % job.ranks][: job.count] for r in range(job.ranks)]
    return [inputs[job.root][: job.count] if r == job.peer else None for r in range(job.ranks)]


def _contribution(job: Job, array: Any, rank: int) -> Any:
    part = block(job, rank)
    return array[part] if job.in_place else array[: part.stop - part.start]


def reduced(job: Job, inputs: Sequence[Any]) -> Any:
    """Return the reduction over all ranks, computed wide and rounded once."""
    assert job.operation in REDUCING
    wide = np.stack([np.asarray(x[: job.count]) for x in inputs])
    wide = wide.astype(np.float64 if is_float(job.dtype) else np.int64)
    kinds: dict[str, Any] = {"sum": np.sum, "avg": np.sum, "prod": np.prod, "max": np.max, "min": np.min}
    total = kinds[job.reduction](wide, axis=0)
    if job.reduction == "avg":
        total = total / job.ranks if is_float(job.dtype) else total // job.ranks
    return total.astype(numpy_dtype(job.dtype))


def result_of(job: Job, outputs: Any, rank: int) -> Any:
    """Return the elements of a rank's buffer that are its result."""
    array = outputs[rank]
    if job.in_place and job.operation in ("reduce_scatter", "scatter"):
        return array[block(job, rank)]
    length = job.count
    if job.operation in ("reduce_scatter", "scatter"):
        part = block(job, rank)
        length = part.stop - part.start
    elif job.operation == "all_to_all":
        part = block(job, rank)
        length = (part.stop - part.start) * job.ranks
    return array[:length]


def wrong_elements(job: Job, inputs: Sequence[Any], outputs: Any) -> int:
    """Return how many result elements differ from NumPy's (nccl-tests' ``#wrong``)."""
    wrong = 0
    for rank, right in enumerate(expected(job, inputs)):
        if right is None:
            continue
        found = np.asarray(result_of(job, outputs, rank))
        if found.shape != right.shape:
            return int(right.size)
        # Halves that are exact in wide arithmetic may round differently step by step; sums here are small.
        wrong += int(np.sum(found.astype(np.float64) != right.astype(np.float64)))
    return wrong
