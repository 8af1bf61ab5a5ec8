"""Random programs at four scales, compiled: equal to NumPy with one thread and with two.

``MEGATILE_RANDOM_PROGRAMS=300`` tries more of them.
"""

import os
import warnings

import numpy as np
import pytest
from tests.language.tile.random_programs import random_program

import megatile as mt
from megatile.language.tile.errors import ProgramWarning

COUNT = int(os.environ.get("MEGATILE_RANDOM_PROGRAMS", "16"))


@pytest.mark.parametrize("seed", range(COUNT))
def test_random_program(seed: int) -> None:
    case = random_program(seed)
    expected = case.expected()
    for threads in (1, 2):
        arrays = case.arrays()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ProgramWarning)
            mt.compile(case.program, machine="dgx-h100", threads=threads)(*arrays)
        for got, wanted in zip(arrays[4:], expected, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-4, err_msg=str(case.steps))
