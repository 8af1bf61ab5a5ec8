"""Operators of expressions: how they are written, what they give, what they do to numbers and to arrays.

An operator is named as Python writes it (``+``, ``//``, ``and``), a function by its word (``min``, ``exp``).
"""

from __future__ import annotations

import operator as python
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Value = Any  # an int, or a NumPy integer array
Rule = Callable[..., Value]


@dataclass(frozen=True)
class Operator:
    """``meaning`` is Python's own, where there is one. ``rule`` is the one of whole numbers, total: division
    by zero gives 0, comparisons give 0 or 1. ``binding``: how tightly it binds in the text (0: written like a
    function). ``result``: ``same`` (promoted type of the arguments), ``float`` (promoted, but at least f32),
    ``bool``, or ``cast`` (given by the node).
    """

    name: str
    arity: int
    binding: int = 0
    result: str = "same"
    meaning: Rule | None = None
    rule: Rule | None = None


def is_array(value: Value) -> bool:
    return isinstance(value, np.ndarray)


def _divided(meaning: Rule, of_arrays: Rule) -> Rule:
    def rule(a: Value, b: Value) -> Value:
        if isinstance(b, int) and b and is_array(a):
            return meaning(a, b)
        if is_array(a) or is_array(b):
            with np.errstate(divide="ignore"):
                return of_arrays(a, b)
        return meaning(a, b) if b else 0

    return rule


def _as_int(meaning: Rule) -> Rule:
    def rule(*values: Value) -> Value:
        result = meaning(*values)
        return result.astype(np.int64) if is_array(result) else int(result)

    return rule


def _either(of_ints: Rule, of_arrays: Rule) -> Rule:
    return lambda *values: (of_arrays if any(map(is_array, values)) else of_ints)(*values)


def _or(a: Value, b: Value) -> bool:
    return bool(a or b)


def _and(a: Value, b: Value) -> bool:
    return bool(a and b)


_floordiv = _divided(python.floordiv, np.floor_divide)
_COMPARE = {
    "<": python.lt,
    "<=": python.le,
    ">": python.gt,
    ">=": python.ge,
    "==": python.eq,
    "!=": python.ne,
}
_WHOLE = {
    "|": (python.or_, 5), "^": (python.xor, 6), "&": (python.and_, 7), "<<": (python.lshift, 8),
    ">>": (python.rshift, 8), "+": (python.add, 9), "-": (python.sub, 9), "*": (python.mul, 10),
}  # fmt: skip
_FLOAT = ("exp", "exp2", "log", "log2", "sqrt", "rsqrt", "sin", "cos", "tanh", "erf", "sigmoid")
COMPARISON, SUM, NEGATION = 4, 9, 11

_ALL = (
    Operator("or", 2, 1, "bool", _or, _as_int(_either(_or, np.logical_or))),
    Operator("and", 2, 2, "bool", _and, _as_int(_either(_and, np.logical_and))),
    *(Operator(name, 2, COMPARISON, "bool", rule, _as_int(rule)) for name, rule in _COMPARE.items()),
    *(Operator(name, 2, binding, "same", rule, rule) for name, (rule, binding) in _WHOLE.items()),
    Operator("/", 2, 10, "float"),
    Operator("//", 2, 10, "same", python.floordiv, _floordiv),
    Operator("%", 2, 10, "same", python.mod, _divided(python.mod, np.remainder)),
    Operator("**", 2, 12),
    Operator("neg", 1, NEGATION, "same", python.neg, python.neg),
    Operator("not", 1, 3, "bool", python.not_, _as_int(_either(python.not_, np.logical_not))),
    Operator("min", 2, 0, "same", min, _either(min, np.minimum)),
    Operator("max", 2, 0, "same", max, _either(max, np.maximum)),
    Operator("ceildiv", 2, 0, "same", lambda a, b: -(-a // b), lambda a, b: -_floordiv(-a, b)),
    Operator("abs", 1, 0, "same", abs, abs),
    Operator("select", 3),
    *(Operator(name, 1) for name in ("floor", "ceil")),
    *(Operator(name, 1, 0, "float") for name in _FLOAT),
    Operator("cast", 1, 0, "cast"),
    Operator("bitcast", 1, 0, "cast"),
)  # fmt: skip
OPERATORS: dict[str, Operator] = {operator.name: operator for operator in _ALL}
DIVISIONS = ("//", "%", "ceildiv")
