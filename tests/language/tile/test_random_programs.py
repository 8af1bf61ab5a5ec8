"""Random programs, at four scales, equal to NumPy; the same under every schedule, after every pass, on any
machine."""

import warnings
from collections import defaultdict

import numpy as np
import pytest
from tests.language.tile.random_programs import STEPS, random_program

import megatile as mt
from megatile.core.expr import OPERATORS, Applied, walk
from megatile.ir import nodes as n
from megatile.ir.parser import parse
from megatile.ir.passes.driver import steps
from megatile.ir.passes.normalise import Normalise
from megatile.language.tile.errors import ProgramWarning

COUNT, BATCH = 400, 10


@pytest.fixture(autouse=True)
def _no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ProgramWarning)
        yield


@pytest.mark.parametrize("batch", range(COUNT // BATCH))
def test_random_programs_equal_numpy(batch: int) -> None:
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        case = random_program(seed)
        expected = case.expected()
        schedule = ("round-robin", "random", "adversarial")[seed % 3]
        arrays = case.arrays()
        mt.run(case.program, *arrays, schedule=schedule, seed=seed, output=lambda text: None)
        for got, wanted in zip(arrays[4:], expected, strict=True):
            np.testing.assert_allclose(
                got, wanted, rtol=1e-3, atol=1e-4, err_msg=f"seed {seed}: {case.steps}"
            )


@pytest.mark.parametrize("seed", range(0, 60, 3))
def test_text_and_passes(seed: int) -> None:
    case = random_program(seed)
    program = case.program.build()
    assert parse(str(program)) == program
    *_, last = steps(program, [Normalise()])
    lowered = last.program
    before, after = case.arrays(), case.arrays()
    mt.run(program, *before, output=lambda text: None)
    mt.run(lowered, *after, output=lambda text: None)
    for left, right in zip(before, after, strict=True):
        np.testing.assert_array_equal(left, right)


def test_every_operation_is_used_at_three_scales() -> None:
    seen = defaultdict(set)
    for seed in range(COUNT):
        case = random_program(seed)
        scale = case.config.scale
        for name, _ in case.steps:
            seen[name].add(scale)
        for node in n.walk(case.program.build().body):
            seen[type(node).__name__].add(scale)
            seen[getattr(node, "kind", type(node).__name__)].add(scale)
            for expr in n.expressions(node):
                seen.update(
                    {p.operator: seen[p.operator] | {scale} for p in walk(expr) if isinstance(p, Applied)}
                )
    loops = {"serial", "unroll", "vectorized", "pipelined", "persistent", "bounded"}
    collectives = {"allreduce", "allgather", "reduce_scatter", "all_to_all", "broadcast", "gather_view"}
    collectives.add("scatter_view")
    wanted = set(STEPS) | set(n.STATEMENTS) | loops | collectives | set(OPERATORS)
    wanted.remove("Return")  # which units below others may not
    wanted.discard("reach")  # not drawn: random_reach.py, where it was imported
    wanted -= {"Hint", "Reshape", "bitcast"}  # written in TileLang's spelling only: tests/compat/tilelang
    lacking = {name: sorted(seen[name]) for name in wanted if len(seen[name]) < 3}
    assert not lacking
