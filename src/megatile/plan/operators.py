"""What the operators of expressions do to ints and to arrays, and how tightly they bind in the text form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Value = Any  # an int, or a NumPy integer array


def _array(value: Value) -> bool:
    return isinstance(value, np.ndarray)


def _floordiv(a: Value, b: Value) -> Value:
    if isinstance(b, int) and b and _array(a):
        return a // b
    if _array(a) or _array(b):
        with np.errstate(divide="ignore"):
            return np.floor_divide(a, b)
    return a // b if b else 0


def _mod(a: Value, b: Value) -> Value:
    if isinstance(b, int) and b and _array(a):
        return a % b
    if _array(a) or _array(b):
        with np.errstate(divide="ignore"):
            return np.remainder(a, b)
    return a % b if b else 0


def _comparison(rule: Callable[[Value, Value], Value]) -> Callable[[Value, Value], Value]:
    def compare(a: Value, b: Value) -> Value:
        result = rule(a, b)
        return result.astype(np.int64) if _array(result) else int(result)

    return compare


def _shift(a: Value, b: Value, left: bool) -> Value:
    if _array(a) or _array(b):
        return np.left_shift(a, b) if left else np.right_shift(a, b)
    return a << b if left else a >> b


@dataclass(frozen=True)
class Operator:
    """Meaning, and how tightly it binds in the text form (as in Python)."""

    rule: Callable[[Value, Value], Value]
    binding: int
    function: bool = False


OPERATORS: dict[str, Operator] = {
    "*": Operator(lambda a, b: a * b, 7),
    "//": Operator(_floordiv, 7),
    "%": Operator(_mod, 7),
    "+": Operator(lambda a, b: a + b, 6),
    "-": Operator(lambda a, b: a - b, 6),
    "<<": Operator(lambda a, b: _shift(a, b, True), 5),
    ">>": Operator(lambda a, b: _shift(a, b, False), 5),
    "&": Operator(lambda a, b: a & b, 4),
    "^": Operator(lambda a, b: a ^ b, 3),
    "|": Operator(lambda a, b: a | b, 2),
    "<": Operator(_comparison(lambda a, b: a < b), 1),
    "<=": Operator(_comparison(lambda a, b: a <= b), 1),
    ">": Operator(_comparison(lambda a, b: a > b), 1),
    ">=": Operator(_comparison(lambda a, b: a >= b), 1),
    "==": Operator(_comparison(lambda a, b: a == b), 1),
    "!=": Operator(_comparison(lambda a, b: a != b), 1),
    "min": Operator(lambda a, b: np.minimum(a, b) if _array(a) or _array(b) else min(a, b), 0, function=True),
    "max": Operator(lambda a, b: np.maximum(a, b) if _array(a) or _array(b) else max(a, b), 0, function=True),
}
