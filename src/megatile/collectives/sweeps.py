"""A sweep over sizes and algorithms, as nccl-tests does it: predicted times, verified data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from megatile.collectives.algorithms import find_algorithm
from megatile.collectives.job import Job
from megatile.collectives.planner import Prediction, predict
from megatile.collectives.ranking import Floors
from megatile.collectives.reference import make_inputs, wrong_elements
from megatile.core.arguments import no_none
from megatile.core.dtypes import itemsize
from megatile.core.public import extension
from megatile.hda import HDA

VERIFIED = 1 << 24
"""Bytes over all ranks that are verified; a larger size is verified at a smaller one with the same division
into blocks."""


@dataclass(frozen=True)
class Line:
    """One line of the table; times in microseconds, bandwidths in GB/s (1e9)."""

    size: int
    count: int
    type: str
    redop: str
    asked: str
    algorithm: str
    model: str
    """The timing model: ``NCCL ring, LL``."""
    time_us: float
    algbw: float
    busbw: float
    wrong: int | None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def sizes(begin: int, end: int, factor: float, step: int | None = None) -> Iterator[int]:
    """From ``begin`` to ``end`` by factor, or by ``step`` bytes."""
    size = begin
    while size <= end:
        yield size
        size = size + step if step else max(size + 1, round(size * factor))


@no_none
def sweep(
    operation: str,
    machine: HDA,
    sizes_: Sequence[int],
    algorithms: Sequence[str] = ("auto",),
    *,
    verify: bool = True,
    kernels: Mapping[str, Any] | None = None,
    trust: bool = False,
    **fields: Any,
) -> Iterator[tuple[Line, Prediction]]:
    """Predict every size with every algorithm, in order.

    ``kernels`` is a configuration (``load_ccl_config``) whose kernels may be named too; ``trust`` lets it
    import what it names by path.
    """
    floors = {name: Floors() for name in algorithms}
    for size in sizes_:
        for name in algorithms:
            if kernels is not None and name in kernels["algorithms"]:
                kernel = extension(__name__).predict_kernel
                found = kernel(operation, kernels, name, machine, size, trust=trust, **fields)
            else:
                found = predict(
                    operation, machine=machine, nbytes=size, algorithm=name, floors=floors[name], **fields
                )
            wrong = count_wrong(found) if verify else None
            yield _line(found, name, wrong), found


def _line(found: Prediction, asked: str, wrong: int | None) -> Line:
    job = found.job
    redop = job.reduction if job.operation in ("all_reduce", "reduce", "reduce_scatter") else "none"
    bandwidths = found.algbw / 1e9, found.busbw / 1e9
    time = found.time_ps / 1e6
    label = found.candidate.label
    return Line(job.nbytes, job.count, job.dtype, redop, asked, label, found.model, time, *bandwidths, wrong)


def count_wrong(found: Prediction) -> int:
    """Run the plan (or a smaller one with the same division into blocks) on data and count wrong elements."""
    from megatile.plan.execute import execute

    if found.candidate.protocol == "kernel":
        inputs = make_inputs(found.job)
        return wrong_elements(found.job, inputs, execute(found.plan, {"t": inputs}, races=False)["t"])
    job = small_twin(found.job)
    plan = found.plan
    if job is not found.job:
        plan = find_algorithm(found.algorithm).plan(job, **dict(found.candidate.options))
    if job.operation == "barrier":
        execute(plan, {})
        return 0
    inputs = make_inputs(job)
    outputs = execute(plan, {"x": inputs}, races=False)
    return wrong_elements(job, inputs, outputs["x" if job.in_place else "y"])


def small_twin(job: Job) -> Job:
    """Return the job itself, or one of the same remainders with at most ``VERIFIED`` bytes over all ranks."""
    from dataclasses import replace

    most = max(1, VERIFIED // (job.ranks * itemsize(job.dtype)))
    if job.count <= most:
        return job
    rhythm = job.ranks * next((chunks for chunks in (64, 16) if job.ranks * chunks <= most), 4)
    return replace(job, count=max(1, most // rhythm) * rhythm + job.count % rhythm)
