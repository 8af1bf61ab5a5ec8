"""Programs with unusual sizes: the executed and the simulated Plan give what the interpreter gives."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.lowering import odd_size_programs
from tests.lowering.machines import user_machine

import megatile as mt
import megatile.language as T

PROGRAMS = [
    make for name, make in inspect.getmembers(odd_size_programs, inspect.isfunction)
    if make.__module__ == odd_size_programs.__name__ and name not in ("nrm", "z")
]  # fmt: skip
MACHINES = ("dgx-h100", "h100-cluster", "mi300x-8", "four-cards", "cerebras-wse2")


def judged(prog: Any, arrays: list[Any], machine: str) -> Any:
    """The lowered program, after its Plan was checked and gave what the interpreter gives."""
    wanted = [a.copy() for a in arrays]
    mt.run(prog, *wanted, machine=machine)
    lowered = mt.lower(prog, *arrays, machine=machine)
    mt.check(lowered)
    for found in (mt.execute(lowered, *arrays), mt.simulate(lowered, *arrays).outputs):
        for param, before, after in zip(lowered.program.params, arrays, wanted, strict=True):
            got = np.asarray(found.get(param.name, before)).astype("f8")
            np.testing.assert_allclose(got, after.astype("f8"), rtol=2e-2, atol=2e-3, err_msg=param.name)
    return lowered


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", PROGRAMS, ids=lambda make: make.__name__)
def test_an_unusual_program(make: Any, tmp_path: Path) -> None:
    """On two of the machines, in turn (one wafer has no second device)."""
    prog, arrays = make()
    at = PROGRAMS.index(make)
    for machine in (MACHINES[at % 5], MACHINES[(at + 3) % 5]):
        where = user_machine(tmp_path) if machine == "four-cards" else machine
        source = inspect.getsource(make)
        if machine == "cerebras-wse2" and "device=" in source.replace("device=1", ""):
            with pytest.raises(mt.MegatileError, match="asked for, but there are 1"):
                mt.lower(prog, *arrays, machine=where)
            continue
        judged(prog, arrays, where)


def overlapping(rows: int, condition: bool):
    @T.program
    def kernel(Y: T.Tensor((12, 4), "f32")):
        with T.Kernel(block=2, threads=32) as b:
            for i, j in T.Parallel(rows, 4):
                if condition:
                    if i + b * 5 < 12:
                        Y[b * 5 + i, j] = 1.0 * b
                else:
                    Y[b * 5 + i, j] = 1.0 * b

    return kernel


@pytest.mark.parametrize("condition", [False, True])
def test_blocks_that_write_the_same_rows_still_race(condition: bool) -> None:
    y = np.zeros((12, 4), "f4")
    with pytest.raises(mt.MegatileError, match="race on tile 'Y'"):
        mt.execute(overlapping(6, condition), y, machine="dgx-h100")
    assert set(mt.execute(overlapping(5, condition), y)["Y"][:, 0]) == {0.0, 1.0}
