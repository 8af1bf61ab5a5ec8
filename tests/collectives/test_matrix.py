"""Every operation × algorithm × ranks × odd size: NumPy's result, provenance and check.

The whole matrix takes long; a deterministic sample runs by default, all of it with MEGATILE_FULL_MATRIX=1.
"""

from __future__ import annotations

import os
import zlib

import numpy as np
import pytest

from megatile.collectives.job import REDUCING, Job
from megatile.collectives.provenance import prove
from megatile.collectives.reference import make_inputs, wrong_elements
from megatile.collectives.registry import algorithms
from megatile.plan.check import check
from megatile.plan.execute import execute

RANKS = (*range(1, 18), 32, 64)
REDUCTIONS = ("sum", "max", "min", "prod", "avg")
DTYPES = ("f32", "f16", "bf16", "i32")


def nesting(name: str, n: int) -> tuple[int, ...]:
    if name in ("in_network", "hamilton", "multi_ring"):
        return (n,)
    inner = next((k for k in (4, 3, 2) if n % k == 0 and n > k), None)
    return (inner, n // inner) if inner else (n,)


def every_case():
    for name, known in algorithms().items():
        for operation in known.operations:
            for n in RANKS:
                for place, count in enumerate((3 * n, 13, 5, 1)):
                    for chunks in chunkings(name, n) if "chunks" in known.options else (1,):
                        yield name, operation, n, count, chunks, bool((n + place) % 2)


def chunkings(name: str, n: int) -> tuple[int, ...]:
    """Rings over every link of many ranks are long as they are."""
    return (1,) if name in ("hamilton", "multi_ring") and n > 17 else (1, 3)


def sampled():
    """For every algorithm, operation and number of ranks one case (32 and 64 ranks: for some of them).

    A checksum picks the same cases everywhere.
    """
    cases = list(every_case())
    if os.environ.get("MEGATILE_FULL_MATRIX"):
        return cases
    strata: dict[tuple[object, ...], list[object]] = {}
    for case in cases:
        strata.setdefault(case[:3], []).append(case)
    chosen = []
    for (name, operation, n), among in strata.items():
        pick = zlib.crc32(f"{name} {operation} {n}".encode())
        long = name in ("hamilton", "multi_ring") and n > 8
        if n <= 8 or (n <= 17 and pick % 2 == 0 and not long) or pick % 16 == 0:
            chosen.append(among[pick // 16 % len(among)])
    return chosen


@pytest.mark.parametrize("case", sampled(), ids=lambda c: "-".join(map(str, c)))
def test_numpy_provenance_check(case):
    name, operation, n, count, chunks, in_place = case
    pick = zlib.crc32(repr(case).encode())
    reduction = REDUCTIONS[pick % 5] if operation in REDUCING else "sum"
    job = Job(
        operation,
        n,
        count,
        DTYPES[pick % 4],
        reduction,
        root=pick % n,
        in_place=in_place and not (operation == "all_to_all" and count % n),
        levels=nesting(name, n),
        reduces=(("sum", "max", "min", "prod"),),
    )
    known = algorithms()[name]
    if known.reason_against(job):
        pytest.skip(known.reason_against(job))
    plan = known.plan(job, **({"chunks": chunks} if chunks > 1 else {}))
    check(plan)
    inputs = make_inputs(job, seed=pick)
    outputs = execute(plan, {"x": np.stack(inputs)} if inputs else {})
    if operation != "barrier":
        assert wrong_elements(job, inputs, outputs["x" if job.in_place else "y"]) == 0
    prove(plan, job)


def test_every_algorithm_and_operation_is_sampled():
    wanted = {(name, op) for name, known in algorithms().items() for op in known.operations}
    assert {(c[0], c[1]) for c in sampled()} >= wanted


@pytest.mark.parametrize("name", sorted(algorithms()))
def test_streams_do_not_grow_with_ranks(name):
    """One stream whatever n, and as many statements for 64 ranks as for 16."""
    known = algorithms()[name]

    def size(n):
        job = Job(known.operations[0], n, 64 * n, levels=nesting(name, n), reduces=(("sum",),))
        plan = known.plan(job)
        assert len(plan.streams) == 1
        return str(plan.streams).count("place=") or len(str(plan).splitlines())

    assert size(64) <= size(16) + 8
