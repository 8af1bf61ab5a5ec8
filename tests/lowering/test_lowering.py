"""Lowering: golden text, constant size, edges, random programs, what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from tests.language.tile.random_programs import random_program

import megatile as mt
from megatile.language.tile.errors import ProgramWarning
from megatile.plan.execute import OrderWarning


@pytest.mark.parametrize("batch", range(8))
def test_random_programs_execute_as_they_are_interpreted(batch: int) -> None:
    for seed in range(batch * 12, batch * 12 + 12):
        case = random_program(seed)
        arrays = case.arrays()
        wanted = [a.copy() for a in arrays]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", (ProgramWarning))
            warnings.simplefilter("ignore", OrderWarning)
            mt.run(case.program, *wanted, checks=False, output=lambda text: None)
            lowered = mt.lower(case.program, *arrays, machine="dgx-h100")
            got = mt.execute(lowered, *arrays)
        for param, before, after in zip(lowered.program.params, arrays, wanted, strict=True):
            close = np.allclose(got.get(param.name, before), after, rtol=1e-3, atol=1e-4, equal_nan=True)
            assert close, f"seed {seed}: {param.name} after {case.steps}"


def test_explanations_do_not_depend_on_the_hash_seed() -> None:
    file = Path(__file__).parents[2] / "examples" / "27_flash_attention.py"
    command = [sys.executable, "-m", "megatile", "run", f"{file}:flash_attention(1, 4, 2, 96, 32)"]
    texts = [
        subprocess.run(
            [*command, "--explain", "--no-verify", "--no-verdict"],
            env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("1", "2")
    ]  # fmt: skip
    assert texts[0] == texts[1]
    assert "(limited by " in texts[0]
