"""``language/tile/errors.py``: errors of kernels."""

from pathlib import Path

import numpy as np
import pytest

import megatile as mt
import megatile.language as T
from megatile.core.errors import MegatileError
from megatile.language.tile.errors import ProgramError


def test_errors_show_no_internal_frames() -> None:
    import traceback

    @T.program
    def p(A: T.Tensor((4,), "f32")):
        with T.Kernel(blok=1):
            T.clear(A)

    for call in (mt.run, mt.simulate, mt.check, mt.execute, mt.price, mt.lower, mt.compile):
        with pytest.raises(ProgramError) as caught:
            call(p, *[np.zeros(4, "f4")] * (call is not mt.compile), machine="dgx-h100")
        assert len(traceback.extract_tb(caught.value.__traceback__)) == 2


def test_an_error_in_a_helper_names_the_call() -> None:
    @T.macro
    def helper(tile):
        T.copy(tile, missing)

    @T.program
    def kernel(A: T.Tensor((8,), "i32")):
        with T.Kernel(block=1):
            helper(A)  # the call

    lines = Path(__file__).read_text().splitlines()
    line = next(number for number, text in enumerate(lines, 1) if "# the call" in text)
    with pytest.raises(MegatileError, match=rf"'missing' is not defined \[called at .*:{line}\]"):
        mt.run(kernel, np.zeros(8, np.int32))
