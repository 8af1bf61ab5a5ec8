"""Random programs of one device as CUDA source, run on the CPU: equal to NumPy.

``MEGATILE_RANDOM_PROGRAMS=300`` tries more of them.
"""

import os
import warnings
from typing import Any

import numpy as np
import pytest
from tests.language.tile.random_programs import Config, RandomProgram, build, random_program

import megatile as mt
from megatile.language.tile.errors import ProgramWarning

COUNT = int(os.environ.get("MEGATILE_RANDOM_PROGRAMS", "12"))


@pytest.mark.parametrize("seed", range(COUNT))
def test_random_program(seed: int) -> None:
    check(random_program(seed, one_device=True))


@pytest.mark.parametrize("scale", ["warp", "block"])
def test_barriers_of_some_units(scale: str) -> None:
    config = Config(scale, (1,), 4 if scale == "block" else 2, 1, 4, 3, 5, 5)
    steps: list[tuple[str, Any]] = [("groups", None)] * 2
    check(RandomProgram(0, config, steps, build(config, steps)))


def check(case: RandomProgram) -> None:
    arrays = case.arrays()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ProgramWarning)
        mt.compile(case.program, target="cuda", machine="dgx-h100")(*arrays)
    for got, wanted in zip(arrays[4:], case.expected(), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-4, err_msg=str(case.steps))
