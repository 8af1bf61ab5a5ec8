"""What a generated tensor may hold, and expressions over it: as trees, in a program, and in NumPy.

Everything here is written from ``docs/reference/tile-language.md``. A number is *exact* when it is a multiple
of 2**-bits below a bound that f32 sums without rounding: then every order of operations gives the same bits.
"""

from __future__ import annotations

import math
import random
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

import megatile.language as T

NUMPY: dict[str, Any] = {
    "f64": np.float64, "f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16,
    "f8e5m2": ml_dtypes.float8_e5m2, "i64": np.int64, "i32": np.int32, "i16": np.int16, "i8": np.int8,
    "u8": np.uint8,
}  # fmt: skip
LARGEST = {"f16": 65504.0, "bf16": 3e38, "f8e5m2": 57344.0, "f32": 3e38, "f64": 1e300}
EXACT_IN_F32 = 1 << 24
Tree = tuple[Any, ...]


class Value(NamedTuple):
    """A tensor of the program and what is known of its numbers."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    exact: bool
    bound: float
    bits: int

    @property
    def whole(self) -> bool:
        return not self.dtype.startswith(("f", "b"))


class Range(NamedTuple):
    exact: bool
    bound: float
    bits: int

    @property
    def fits(self) -> bool:
        return not self.exact or self.bound * 2.0**self.bits < EXACT_IN_F32


SMOOTH = (
    "exp",
    "exp2",
    "tanh",
    "sigmoid",
    "sqrt",
    "rsqrt",
    "log",
    "log2",
    "sin",
    "cos",
    "erf",
    "silu",
    "inverse",
)
"""Functions whose last bits differ from one implementation to another."""
STEPPED = ("where", "floor", "ceil")
"""Operations that turn a small difference into a large one."""


def draw(rng: random.Random, depth: int, leaves: list[str], smooth: bool) -> Tree:
    """A random expression; ``smooth``: with functions that round."""
    if depth == 0:
        return (rng.choice(leaves),) if rng.random() < 0.8 else ("number", rng.randint(-8, 8) / 4)
    kind = rng.random()
    if smooth and kind < 0.3:
        return (rng.choice(SMOOTH), draw(rng, depth - 1, leaves, smooth))
    if kind < 0.6:
        op = rng.choice(("add", "sub", "mul", "min", "max"))
        return (op, draw(rng, depth - 1, leaves, smooth), draw(rng, depth - 1, leaves, smooth))
    if kind < 0.8 or smooth:
        return (rng.choice(("abs", "neg", "half", "clamp")), draw(rng, depth - 1, leaves, smooth))
    if kind < 0.9:
        return (rng.choice(("floor", "ceil")), draw(rng, depth - 1, leaves, False))
    return ("where", *(draw(rng, depth - 1, leaves, False) for _ in range(3)))


def range_of(tree: Tree, leaves: dict[str, Range]) -> Range | None:
    """What the numbers of an expression are, or None where f32 would round them."""
    op, *args = tree
    if op in leaves:
        return leaves[op]
    if op == "number":
        return Range(True, abs(args[0]), 2)
    parts = [range_of(x, leaves) for x in args]
    if any(p is None for p in parts):
        return None
    first, last = parts[0], parts[-1]
    assert first is not None
    assert last is not None
    exact = all(p.exact for p in parts if p is not None)
    if op in STEPPED and not exact:
        return None
    if op in SMOOTH:
        return Range(False, 64.0, 0)
    if op in ("add", "sub"):
        found = Range(exact, first.bound + last.bound, max(first.bits, last.bits))
    elif op == "mul":
        found = Range(exact, first.bound * last.bound, first.bits + last.bits)
    elif op in ("min", "max"):
        found = Range(exact, max(first.bound, last.bound), max(first.bits, last.bits))
    elif op == "where":
        found = Range(exact, max(parts[1].bound, last.bound), max(parts[1].bits, last.bits))  # type: ignore[union-attr]
    elif op in ("floor", "ceil"):
        found = Range(exact, first.bound + 1, 0)
    elif op == "half":
        found = Range(exact, first.bound / 2, first.bits + 1)
    else:
        found = Range(exact, first.bound, max(first.bits, 0))
    return found if found.fits and found.bound < 1e6 else None


def emit(tree: Tree, leaves: dict[str, Any]) -> Any:
    """The expression in the tile language, on f32 values."""
    op, *args = tree
    if op in leaves:
        return leaves[op]
    if op == "number":
        return T.cast(args[0], "f32")
    x, *more = [emit(a, leaves) for a in args]
    if op in ("exp", "exp2", "silu"):
        return getattr(T, op)(T.max(T.min(x, 4.0), -4.0))
    if op in ("sqrt", "rsqrt", "log", "log2"):
        return getattr(T, op)(T.min(T.abs(x), 100.0) + 1.0)
    if op in ("sin", "cos"):
        return getattr(T, op)(T.clamp(x, -3.0, 3.0))
    if op == "inverse":
        return 1.0 / (T.abs(x) + 1.0)
    if op == "neg":
        return -x
    if op == "half":
        return x * 0.5
    if op == "clamp":
        return T.clamp(x, -1.5, 1.75)
    if op == "where":
        return T.if_then_else(x > 0.25, more[0], more[1])
    if op == "add":
        return x + more[0]
    if op == "sub":
        return x - more[0]
    if op == "mul":
        return x * more[0]
    return getattr(T, op)(x, *more)


def evaluate(tree: Tree, leaves: dict[str, np.ndarray]) -> np.ndarray:
    """The expression in NumPy, in f64."""
    op, *args = tree
    if op in leaves:
        return np.asarray(leaves[op], np.float64)
    if op == "number":
        return np.float64(args[0])
    x, *more = [evaluate(a, leaves) for a in args]
    near, positive = np.clip(x, -4, 4), np.minimum(np.abs(x), 100) + 1
    found = {
        "exp": lambda: np.exp(near), "exp2": lambda: np.exp2(near), "tanh": lambda: np.tanh(x),
        "silu": lambda: near / (1 + np.exp(-near)), "sigmoid": lambda: 1 / (1 + np.exp(-x)),
        "sqrt": lambda: np.sqrt(positive), "rsqrt": lambda: 1 / np.sqrt(positive),
        "log": lambda: np.log(positive), "log2": lambda: np.log2(positive),
        "sin": lambda: np.sin(np.clip(x, -3, 3)), "cos": lambda: np.cos(np.clip(x, -3, 3)),
        "erf": lambda: np.vectorize(math.erf, otypes=[float])(x), "inverse": lambda: 1 / (np.abs(x) + 1),
        "abs": lambda: np.abs(x), "neg": lambda: -x, "half": lambda: x * 0.5, "floor": lambda: np.floor(x),
        "ceil": lambda: np.ceil(x), "clamp": lambda: np.clip(x, -1.5, 1.75), "add": lambda: x + more[0],
        "sub": lambda: x - more[0], "mul": lambda: x * more[0], "min": lambda: np.minimum(x, more[0]),
        "max": lambda: np.maximum(x, more[0]), "where": lambda: np.where(x > 0.25, more[0], more[1]),
    }  # fmt: skip
    return np.asarray(found[op]())


def converted(x: np.ndarray, dtype: str) -> np.ndarray:
    """The page's rules: floats to nearest even, to integers truncated and clamped, integers wrapped."""
    target = NUMPY[dtype]
    if np.dtype(target).kind in "iu":
        if x.dtype.kind in "iu":
            return x.astype(target)
        limits = np.iinfo(target)
        return np.clip(np.trunc(np.asarray(x, np.float64)), limits.min, limits.max).astype(target)
    if x.dtype == np.float64 and dtype in ("f16", "bf16", "f8e5m2"):
        x = x.astype(np.float32)
    return x.astype(target)


def types_for(rng: random.Random, found: Range) -> str:
    """A type that a result may be stored in."""
    if not found.exact:
        return "f32"
    fitting = [t for t, largest in LARGEST.items() if found.bound <= largest / 2]
    return rng.choice([*fitting, "f32", "f16", "i32", "i16", "i8"])


def stored(value: Range, dtype: str) -> Range:
    """What is known of numbers after their conversion."""
    if dtype in ("i32", "i16", "i8", "u8", "i64"):
        return Range(True, min(value.bound, float(np.iinfo(NUMPY[dtype]).max) + 1), 0)
    return value._replace(bound=value.bound * 1.25) if dtype not in ("f32", "f64") else value
