"""What several files of tests/language/tile share."""

from typing import Any

import numpy as np

import megatile as mt
import megatile.language as T


def f32(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def zeros(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.zeros(shape, dtype)


def arrays(*shapes: tuple[int, int]) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [rng.integers(-3, 4, shape).astype(np.float32) for shape in shapes]


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


SCHEDULES = ("round-robin", "random", "adversarial")


def on_devices(body: Any, units: int = 4) -> Any:
    @T.program
    def kernel(A: T.Tensor((units, 8), "f32")):
        with T.Kernel(device=units):
            with T.Scale("device") as (r, n):
                v = T.view(A, layout=T.FullRow)
                t = T.alloc((1, 8), "f32", level="l2")
                T.copy(t, v)
                body(r, n, t)
                T.copy(v, t)

    return kernel


def run(body: Any, units: int = 4, **options: Any) -> np.ndarray:
    a = np.arange(units * 8, dtype=np.float32).reshape(units, 8)
    mt.run(on_devices(body, units), a, **options)
    return a
