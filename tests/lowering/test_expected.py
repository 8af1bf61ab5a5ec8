"""Programs of every kind on several machines: the Program after each pass, the Plan, what explains it and its
time, as they were before."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.expected import chunks, digest, line, problem, tried
from tests.language.tile.random_programs import random_program
from tests.lowering import (
    shared,
    test_banks as banks,
    test_every_program_kind as kinds,
    test_flags as flags,
    test_puts_from_blocks as puts,
    test_rasterisation as rasters,
    test_swizzle as swizzles,
)
from tests.lowering.machines import user_machine
from tests.lowering.passes import (
    test_choose_implementations as implementations,
    test_place_tiles as tiles,
    test_synchronise as synchronise,
)
from tests.lowering.test_every_implementation import with_copies_by
from tests.lowering.test_odd_sizes import PROGRAMS

import megatile as mt
from megatile.core.dtypes import numpy_dtype
from megatile.core.errors import MegatileError
from megatile.cost.implementations import CANDIDATES
from megatile.ir import nodes as n
from megatile.lowering.explain import figures
from megatile.plan.counts import command_count
from megatile.plan.model import ReadScalar

MACHINES = (
    "dgx-h100",
    "h100-cluster",
    "mi300x-8",
    "cerebras-wse2",
    "ahbm",
    "a100-cluster",
    "tpu-v5p",
    "four-cards",
)


def first(make: Callable[..., Any], *given: Any, **options: Any) -> Any:
    """The program that a function gives, with arrays or without."""
    found = make(*given, **options)
    return found[0] if isinstance(found, tuple) else found


MADE: dict[str, Callable[[], Any]] = {
    **{make.__name__: partial(first, make) for make in (*kinds.KINDS, *PROGRAMS)},
    **{f"random {seed}": lambda seed=seed: random_program(seed).program for seed in range(24)},
    **{f"one device {seed}": lambda seed=seed: random_program(seed, True).program for seed in range(8)},
    "chain edges": partial(first, flags.chain, 250, 130, 1),
    "chain parts": partial(first, flags.chain, 256, 192, 1, 64, 32),
    "chain moved": partial(first, flags.chain, 256, 192, 1, 64, None, (64, 0)),
    "reduced ring": partial(first, flags.reduced, 128, 128, 128, 4, 32),
    "reduced panels": partial(first, flags.reduced, 128, 64, 192, 3, 32, "direct", 2),
    "divided": partial(first, flags.divided, 2, False),
    "divided together": partial(first, flags.divided, 4, True),
    "passed on": partial(first, puts.passed_on),
    "added": partial(first, puts.added),
    "one put": partial(first, puts.one_put, 2, 64),
    "transposed": partial(first, banks.transpose, 0),
    "transposed f16": partial(first, banks.transpose, 2, "f16"),
    "swizzled": partial(first, swizzles.product),
    "swizzled by atomics": partial(first, swizzles.product, 48, True),
    "swizzled and divided": partial(first, swizzles.product, divided=True),
    "stream by lanes": partial(first, implementations.stream, "lsu", 4, 4),
    "stream": partial(first, implementations.stream, None, 4, 4),
    "panels": partial(first, rasters.own_product, 2),
    "columns": partial(first, rasters.own_product, 3, "column"),
    "scaled": partial(first, shared.scaled, "columns", 256),
    "scaled rows": partial(first, shared.scaled, "rows", 256),
    "halves": partial(first, tiles.halves, 32),
    "halves early": partial(first, tiles.halves, 31, True),
    "synchronised": partial(first, synchronise.copied, "A", "B", "C", True),
    **{f"{word} {devices} {algorithm}": partial(shared.program, word, algorithm, devices)
       for word in ("allreduce", "broadcast", "allgather", "reduce_scatter", "all_to_all")
       for devices, algorithm in ((4, None), (3, "ring"), (8, "direct"), (2, "nothing"))},
    **{f"allreduce {impl}": partial(shared.program, "allreduce", impl=impl)
       for impl in ("nccl", "copy_engine", "lsu", "in_network", "rccl")},
    **{f"allreduce {op}": partial(shared.program, "allreduce", op=op) for op in ("max", "avg", "xor")},
    **{f"wrong {word}": partial(puts.wrong, word)
       for word in ("scale", "missing", "node", "rank", "flag", "wait", "fence", "lanes", "far")},
}  # fmt: skip


def filled(params: Any) -> list[np.ndarray]:
    """Small numbers, the same for everybody."""
    shapes = [tuple(int(extent) for extent in param.shape) for param in params]
    each = zip(params, shapes, strict=True)
    return [(np.arange(np.prod(s)).reshape(s) * 7 % 5 % 3).astype(numpy_dtype(p.dtype)) for p, s in each]


def answers(lowered: Any, timed: bool) -> str:
    plan = lowered.plan
    passes = {step.name: digest(str(step.program)) for step in lowered.steps}
    arrays = filled(lowered.program.params)
    small = sum(a.size for a in arrays) < 20_000
    inputs = lowered.scatter(arrays) if small else {}
    back = (
        lowered.gather({t.name: inputs[t.name] for t in plan.tiles if t.name in inputs}, arrays)
        if small
        else {}
    )
    runs = timed and ReadScalar not in plan.kinds

    def time() -> str:
        found = mt.simulate(lowered)
        return line(ps=found.time_ps, messages=sum(map(len, found.messages.values())))

    return line(
        time=tried(time) if runs else "", commands=command_count(plan), lines=len(str(plan).splitlines()),
        plan=digest(str(plan)), homes=digest(str(lowered)), explain=digest(lowered.explain()),
        figures=digest(figures(lowered)), passes=",".join(passes.values()), shallower=lowered.shallower,
        written=lowered.written, scattered=digest(inputs), gathered=digest(back),
    )  # fmt: skip


def of(name: str, machine: str, folder: Path, timed: bool = True) -> str:
    where = user_machine(folder) if machine == "four-cards" else machine
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return answers(mt.lower(MADE[name](), machine=where), timed)
        except MegatileError as error:
            return problem(error)


@pytest.mark.parametrize("names", chunks(MADE, 6), ids=lambda names: names[0])
def test_programs(names: list[str], expected: Any, tmp_path: Path) -> None:
    """Each on one of the machines, in turn."""
    found = {}
    for name in names:
        at = list(MADE).index(name)
        machine = MACHINES[at % 8]
        found[f"{name} on {machine}"] = of(name, machine, tmp_path, machine != "cerebras-wse2")
    expected("programs", found)


FORCED = (
    "odd_gemm",
    "cannon3",
    "stencil_cores",
    "cluster_mc",
    "tiles_put_by_blocks",
    "30_allgather_gemm",
    "random 3",
)


def every_node_by(impl: str, word: str, body: tuple[n.Node, ...]) -> tuple[n.Node, ...]:
    if word == "Copy":
        return with_copies_by(impl, body)
    changed: list[n.Node] = []
    for node in body:
        inner: dict[str, Any] = {key: every_node_by(impl, word, part) for key, part in n.bodies(node)}
        changed.append(replace(node, **inner, **({"impl": impl} if type(node).__name__ == word else {})))
    return tuple(changed)


@pytest.mark.parametrize("name", FORCED)
def test_every_implementation(name: str, expected: Any) -> None:
    """What another way to copy, multiply or reduce makes of a program, or why it cannot be."""
    found = {}
    for word, impls in CANDIDATES.items():
        for impl in (
            i for i, one in impls.items() if one.body is None and word in ("Copy", "Gemm", "Reduce")
        ):
            program = MADE[name]().build(mt.machine("h100-cluster"))
            other = replace(program, body=every_node_by(impl, word, program.body))
            if other != program:
                made = tried(lambda other=other: mt.lower(other, machine="h100-cluster"))
                found[f"{name} {word} by {impl}"] = made if isinstance(made, str) else answers(made, False)
    expected("implementations", found)
