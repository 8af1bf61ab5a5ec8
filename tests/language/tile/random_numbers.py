"""Steps of random programs on whole numbers, conditions, quotients and powers, with their meaning in NumPy.

Trees are drawn once and given to both sides: ``calculate`` with the language's words, or with NumPy's.
"""

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
from tests.language.tile.random_programs import INNER, State, f, step

import megatile.language as T

Tree = tuple[Any, ...]
_WHOLE = (
    "bitand",
    "bitor",
    "xor",
    "shl",
    "shr",
    "floordiv",
    "ceildiv",
    "mod",
    "pow",
    "neg",
    "not",
    "add",
    "sub",
)
_COMPARE = ("lt", "le", "gt", "ge", "eq", "ne")
NUMPY = SimpleNamespace(
    ceildiv=lambda a, b: -(-a // b), logical_or=np.logical_or, logical_and=np.logical_and,
    logical_not=np.logical_not, where=np.where, maximum=np.maximum, real=f,
)  # fmt: skip


def draw_whole(rng: random.Random, depth: int) -> Tree:
    """A tree of whole numbers: indices, the rank, an element of an i32 tile."""
    if depth == 0:
        return rng.choice([("i",), ("j",), ("rank",), ("n",), ("number", rng.randint(0, 7))])
    return (rng.choice(_WHOLE), draw_whole(rng, depth - 1), draw_whole(rng, depth - 1))


def draw_condition(rng: random.Random, depth: int) -> Tree:
    if depth == 0:
        return (rng.choice(_COMPARE), draw_whole(rng, 0), draw_whole(rng, 0))
    return (rng.choice(["or", "and", "not"]), draw_condition(rng, depth - 1), draw_condition(rng, depth - 1))


def whole(tree: Tree, leaf: dict[str, Any], words: Any) -> Any:
    """The value of a tree; small divisors, shifts and exponents keep numbers small."""
    op, *rest = tree
    if op in leaf:
        return leaf[op]
    if op == "number":
        return rest[0]
    x, y = (whole(t, leaf, words) for t in rest)
    small = (y & 3) + 1
    if op == "bitand":
        return x & y
    if op == "bitor":
        return x | y
    if op == "xor":
        return x ^ y
    if op == "shl":
        return (x & 15) << small
    if op == "shr":
        return x >> small
    if op == "floordiv":
        return x // small
    if op == "ceildiv":
        return words.ceildiv(x, small)
    if op == "mod":
        return x % small
    if op == "pow":
        return (x & 3) ** (y & 3)
    if op == "neg":
        return -x
    if op == "not":
        return ~x
    return x + y if op == "add" else x - y


def condition(tree: Tree, leaf: dict[str, Any], words: Any) -> Any:
    op, *rest = tree
    if op in _COMPARE:
        x, y = (whole(t, leaf, words) for t in rest)
        if op == "lt":
            return x < y
        if op == "le":
            return x <= y
        if op == "gt":
            return x > y
        if op == "ge":
            return x >= y
        return x == y if op == "eq" else x != y
    left, right = (condition(t, leaf, words) for t in rest)
    if op == "or":
        return words.logical_or(left, right)
    return words.logical_and(left, right) if op == "and" else words.logical_not(left)


def logical_or(left: Any, right: Any) -> Any:
    return left or right


def logical_and(left: Any, right: Any) -> Any:
    return left and right


def logical_not(value: Any) -> Any:
    return not value


LANGUAGE = SimpleNamespace(
    ceildiv=T.ceildiv, logical_or=logical_or, logical_and=logical_and, logical_not=logical_not,
    where=T.if_then_else, maximum=T.max, real=lambda x: T.cast(x, "f32"),
)  # fmt: skip


def numbers(s: State) -> dict[str, Any]:
    i, j = np.ogrid[: s.config.m, : s.config.c]
    zero = np.zeros((s.config.units, s.config.m, s.config.c), np.int64)
    n = ((np.arange(s.config.m) * 5 + 3) % 11).reshape(1, -1, 1)
    return {"i": i[None] + zero, "j": j[None] + zero, "rank": s.rank() + zero, "n": n + zero}


@step("whole", lambda rng, cfg: draw_whole(rng, rng.randint(1, 3)))
class _Whole:
    @staticmethod
    def emit(e: Any, tree: Tree) -> None:
        n = T.alloc((e.m,), "i32", level=e.level)
        for i in T.Parallel(e.m):
            n[i] = (i * 5 + 3) % 11
        for i, j in T.Parallel(e.m, e.c):
            value = whole(tree, {"i": i, "j": j, "rank": e.r, "n": n[i]}, LANGUAGE)
            e.a[i, j] = e.a[i, j] * 0.5 + T.cast(value, "f32") * 0.01

    @staticmethod
    def oracle(s: State, tree: Tree) -> None:
        value = whole(tree, numbers(s), NUMPY)
        s.a = f(s.a * np.float32(0.5) + f(value) * np.float32(0.01))


@step("choice", lambda rng, cfg: (draw_condition(rng, rng.randint(0, 2)), round(rng.uniform(-1, 1), 2)))
class _Choice:
    @staticmethod
    def emit(e: Any, p: Any) -> None:
        tree, number = p
        n = T.alloc((e.m,), "i32", level=e.level)
        for i in T.Parallel(e.m):
            n[i] = (i * 5 + 3) % 11
        for i, j in T.Parallel(e.m, e.c):
            if condition(tree, {"i": i, "j": j, "rank": e.r, "n": n[i]}, LANGUAGE):
                e.b[i, j] = number
            else:
                e.b[i, j] = -e.b[i, j]

    @staticmethod
    def oracle(s: State, p: Any) -> None:
        tree, number = p
        s.b = np.where(condition(tree, numbers(s), NUMPY), np.float32(number), -s.b)


@step(
    "quotient", lambda rng, cfg: (rng.choice(["div", "pow", "floordiv", "mod"]), rng.choice([0.5, 1.5, 2.0]))
)
class _Quotient:
    """Floats divided, raised, and cut; // and % have a power of two as divisor, so that no rounding tips."""

    @staticmethod
    def emit(e: Any, p: Any) -> None:
        op, power = p
        for i, j in T.Parallel(e.m, e.c):
            x, y = e.a[i, j], T.abs(e.b[i, j]) * 0.5 + 0.5
            if op == "div":
                e.a[i, j] = x / T.min(y, 4.0)
            elif op == "pow":
                e.a[i, j] = T.min(y, 4.0) ** power
            elif op == "floordiv":
                e.a[i, j] = T.cast(i + j, "f32") // 4.0
            else:
                e.a[i, j] = T.cast(i * 3 + j, "f32") % 4.0

    @staticmethod
    def oracle(s: State, p: Any) -> None:
        op, power = p
        y = np.minimum(np.abs(s.b) * np.float32(0.5) + np.float32(0.5), np.float32(4))
        i, j = np.ogrid[: s.config.m, : s.config.c]
        result = {
            "div": s.a / y, "pow": y ** np.float32(power),
            "floordiv": f((i + j) // 4), "mod": f((i * 3 + j) % 4),
        }[op]  # fmt: skip
        s.a = f(np.broadcast_to(result, s.a.shape))


@step(
    "scatter_view",
    lambda rng, cfg: rng.choice(["sum", "max", "min"]),
    fits=lambda cfg: cfg.m % cfg.inner == 0,
)
class _ScatterView:
    @staticmethod
    def emit(e: Any, op: str) -> None:
        u = T.alloc((e.m, e.c), "f32", level=e.level)
        with T.Scale(INNER[e.scale]) as (rank, size):
            mine = T.view(u, layout=T.Partial(op))
            T.fill(mine, rank + 1)
            T.reduce_scatter(mine, op=op)
        T.copy(e.b, u)

    @staticmethod
    def oracle(s: State, op: str) -> None:
        terms = np.arange(s.config.inner) + 1
        s.b = np.full_like(s.b, getattr(terms, op)())
