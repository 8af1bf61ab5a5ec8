"""What several files of tests/targets/interpret share."""

import traceback
from typing import Any

import numpy as np
import pytest

import megatile as mt
import megatile.language as T
from megatile.core.errors import MegatileError


def f32(*shape: int) -> np.ndarray:
    return np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)


def fails(
    error: type[MegatileError], message: str, prog: Any, *arrays: Any, line: str = "", **options: Any
) -> None:
    """The run fails with this error, its message, and the user's line under the message."""
    with pytest.raises(error, match=f"(?s){message}") as caught:
        mt.run(prog, *arrays, **options)
    assert caught.value.advice
    text = str(caught.value)
    if line:
        assert line in text, text
        assert "^" in text
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert len(frames) == 2 and frames[1].name == "outermost"


def looked_at() -> Any:
    @T.program
    def p(X: T.Tensor((8,), "f32"), N: T.Tensor((1,), "i32")):
        with T.Kernel(block=2, threads=256) as bx:
            x = T.alloc((4,), "f32")
            n = T.read_scalar(N[0], bound=4)
            for k in T.serial(2):
                half = bx * 2 + k
                T.fill(x, half)
                with T.Scale("warpgroup") as (w, size):
                    T.breakpoint(unit=1)
            T.copy(X[bx * 4], x)

    return p
