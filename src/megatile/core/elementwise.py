"""What typed expressions give on arrays: the operators' meanings with the rounding of their types, and the
operation ``nest``, which computes elementwise code on tiles.

    w[i, j] = (exp2(a0[i, j] - a1[i]) for i, j in (64, 32))

is all iterations at once: ``a0``, ``a1`` … are the operands, ``s0`` … whole numbers given as attributes. With
conditions (``… for i in (64,) if i < s0``), or an index that is not just a variable, only some elements
change: the destination's old content is then operand ``a0``, and the target is ``a0[…]``. ``combine`` says
that elements are added to what is there (or their maximum or minimum taken), each iteration by itself.
Indices of loads are kept inside their operand: what lies outside is not used by a correct program, because a
condition guards it; with ``padded`` it is zero.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from megatile.core.basic_operations import OPERATIONS, Operation, OperationError, cast as cast_array
from megatile.core.cached import cached
from megatile.core.dtypes import dtype, numpy_dtype
from megatile.core.expr import DIVISIONS, OPERATORS, WEAK, Const, Expr, Symbol, known, substitute, walk
from megatile.core.expr.typing import Load, TypedReader, promote

Array = Any
OPERATION_NAMES = {"max": "maximum", "min": "minimum", "select": "where", "/": "div"}
"""Operators of expressions whose meaning stands in the table of operations under another name."""
_SCALAR: dict[str, Callable[..., Any]] = {
    "max": max,
    "min": min,
    "abs": abs,
    "select": lambda c, a, b: a if c else b,
}
DIRECT: dict[str, Callable[..., Any]] = {
    **{o.name: o.meaning for o in OPERATORS.values() if o.meaning and o.name not in _SCALAR},
    "and": np.logical_and,
    "or": np.logical_or,
    "not": np.logical_not,
    "**": lambda a, b: a**b,
}
ATOMICS = {
    "add": np.add, "max": np.maximum, "min": np.minimum,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip
Guard = Callable[[Callable[..., Any]], Callable[..., Any]]


def is_plain(value: Any) -> bool:
    return isinstance(value, (int, float, bool))


def operation(expr: Any, guard: Guard | None = None) -> Callable[[list[Any]], Any]:
    """Return what an operator does with evaluated arguments: the result is rounded to the type of the node.

    ``guard`` is put around divisions of whole numbers.
    """
    op, types = expr.operator, [a.dtype for a in expr.args]
    if op == "bitcast":
        source, target = numpy_dtype(types[0]), numpy_dtype(expr.dtype)
        return lambda values: (
            np.ascontiguousarray(np.asarray(values[0], source)).view(target).reshape(np.shape(values[0]))
        )
    if op == "cast":
        return lambda values: cast_array(values[0], expr.dtype)
    data = range(1, 3) if op == "select" else range(len(types))
    common = reduce(promote, (types[at] for at in data))
    if expr.dtype not in (*WEAK, "bool") or op == "select":
        common = expr.dtype
    function = DIRECT.get(op) or OPERATIONS[OPERATION_NAMES.get(op, op)].meaning
    if guard is not None and op in DIVISIONS:
        function = guard(function)
    converted = [at for at in data if common not in WEAK]

    def compute(values: list[Any]) -> Any:
        if all(map(is_plain, values)):
            return _plain(expr, function, values)
        for at in converted:
            values[at] = cast_array(values[at], common)
        result = function(*values)
        return result if expr.dtype in WEAK else cast_array(result, expr.dtype)

    return compute


def _plain(expr: Any, function: Callable[..., Any], values: list[Any]) -> Any:
    """Python numbers stay Python numbers (indices, trip counts, ranks)."""
    if expr.operator == "/":
        return float(np.float64(values[0]) / np.float64(values[1]))
    if expr.operator in _SCALAR:
        result = _SCALAR[expr.operator](*values)
    elif expr.operator in DIRECT:
        result = function(*values)
    else:
        result = function(*(np.float64(x) for x in values)).item()
    return bool(result) if isinstance(result, np.bool_) else result


@dataclass(frozen=True)
class Nest:
    """Elementwise code, parsed."""

    target: str
    index: tuple[Expr, ...]
    value: Expr
    names: tuple[str, ...]
    extents: tuple[Expr, ...]
    guards: tuple[Expr, ...]

    def box(self) -> tuple[int | None, ...] | None:
        """Per dimension of the target the number of its variable (None: one element), if every iteration
        writes an element of its own and nothing is left out."""
        if self.guards or self.target != "w":
            return None
        return tuple(self.names.index(e.name) if isinstance(e, Symbol) else None for e in self.index)


@cached(most=4096)
def read_nest(code: str, types: tuple[tuple[str, str], ...] = ()) -> Nest:
    """Return the nest that ``code`` describes, with the types of its operands."""
    try:
        statement = ast.parse(code).body[0]
    except (SyntaxError, IndexError, ValueError, RecursionError, MemoryError):
        raise OperationError(f"cannot read elementwise code: {code[:80]}") from None
    reader = TypedReader(dict(types))
    target = statement.targets[0] if isinstance(statement, ast.Assign) else None
    if not isinstance(statement, ast.Assign) or not isinstance(target, ast.Subscript):
        raise OperationError(f"elementwise code assigns to elements of a tile, not: {code[:80]}")
    index = tuple(reader.expr(i) for i in reader.items(target.slice))
    tree: Any = statement.value
    names: tuple[str, ...] = ()
    extents: tuple[Expr, ...] = ()
    guards: tuple[Expr, ...] = ()
    if isinstance(tree, ast.GeneratorExp):
        inner = tree.generators[0]
        names = tuple(ast.unparse(t) for t in reader.items(inner.target))
        extents = tuple(reader.expr(e) for e in reader.items(inner.iter))
        guards = tuple(reader.expr(g) for g in inner.ifs)
        tree = tree.elt
    return Nest(ast.unparse(target.value), index, reader.expr(tree), names, extents, guards)


class _Lanes:
    """The iterations of a nest on its operands, each with ``lead`` axes of units in front."""

    def __init__(self, nest: Nest, operands: dict[str, Array], numbers: dict[str, int], padded: bool) -> None:
        self.nest, self.operands, self.padded = nest, operands, padded
        self.extents = tuple(int(substitute(e, numbers).value) for e in nest.extents)  # type: ignore[attr-defined]
        rank = len(self.extents)
        self.values: dict[str, Any] = dict(numbers)
        for d, (name, extent) in enumerate(zip(nest.names, self.extents, strict=True)):
            self.values[name] = np.arange(extent).reshape((1,) * d + (extent,) + (1,) * (rank - d - 1))

    def evaluate(self, expr: Expr) -> Any:
        if isinstance(expr, Const):
            return expr.value
        if isinstance(expr, Symbol):
            return self.values[expr.name]
        if isinstance(expr, Load):
            return self.load(expr)
        return operation(expr)([self.evaluate(a) for a in expr.children()])

    def load(self, expr: Load) -> Array:
        array, rank = self.operands[expr.source], len(self.extents)
        lead = array.ndim - len(expr.index)
        order = [self.variable(e) for e in expr.index]
        shape = array.shape[lead:]
        fits = [
            o == -1 or (o is not None and n == self.extents[o]) for o, n in zip(order, shape, strict=True)
        ]
        used = [o for o in order if o is not None and o >= 0]
        if (
            all(fits)
            and len(set(used)) == len(used)
            and all(o != -1 or n == 1 for o, n in zip(order, shape, strict=True))
        ):
            data = array.reshape(array.shape[:lead] + tuple(self.extents[o] for o in used))
            data = data.transpose(*range(lead), *(lead + used.index(o) for o in sorted(used)))
            full = tuple(self.extents[d] if d in used else 1 for d in range(rank))
            return data.reshape(array.shape[:lead] + full)
        index = [np.asarray(self.evaluate(e)) for e in expr.index]
        inside = [np.clip(i, 0, max(n - 1, 0)) for i, n in zip(index, shape, strict=True)]
        if 0 in shape:
            return np.zeros(array.shape[:lead] + (1,) * rank, array.dtype)
        found = array[self.leading(lead, inside, rank, array)]
        if self.padded:
            ok = reduce(np.logical_and, ((i >= 0) & (i < n) for i, n in zip(index, shape, strict=True)))
            found = np.where(ok, found, np.zeros((), found.dtype))
        return found

    def variable(self, expr: Expr) -> int | None:
        """Return the iteration variable that an index is; -1 for the number 0, None for anything else."""
        if isinstance(expr, Symbol) and expr.name in self.nest.names:
            return self.nest.names.index(expr.name)
        return -1 if isinstance(expr, Const) and expr.value == 0 else None

    @staticmethod
    def leading(lead: int, index: list[Array], rank: int, array: Array) -> tuple[Any, ...]:
        """Return the index of elements with that of the units in front."""
        if not lead:
            return tuple(index)
        if all(i.ndim <= rank for i in index):
            return (slice(None), *index)
        return (np.arange(array.shape[0]).reshape((-1,) + (1,) * rank), *index)

    def store(self, combine: str) -> Array:
        nest, lead = self.nest, 0
        for array, load in ((self.operands[o.source], o) for o in _loads(nest)):
            lead = max(lead, array.ndim - len(load.index))
        box = nest.box() if not combine else None
        value = np.asarray(self.evaluate(nest.value))
        if box is not None:
            ahead = value.shape[: value.ndim - len(self.extents)] if value.ndim > len(self.extents) else ()
            full = np.broadcast_to(value, ahead + self.extents)
            order = [b for b in box if b is not None]
            missing = [d for d in range(len(self.extents)) if d not in order]
            full = full.transpose(*range(len(ahead)), *(len(ahead) + d for d in (*missing, *order)))
            shape = tuple(1 if b is None else self.extents[b] for b in box)
            return full.reshape(ahead + shape)
        return self._into(np.array(self.operands[nest.target]), value, combine)

    def _into(self, old: Array, value: Array, combine: str) -> Array:
        """Return the old content with the elements of the iterations that no condition leaves out."""
        lead, rank = old.ndim - len(self.nest.index), len(self.extents)
        shape = old.shape[:lead] + self.extents
        index = [np.broadcast_to(np.asarray(self.evaluate(e)), shape) for e in self.nest.index]
        wanted = np.ones(shape, bool)
        for guard in self.nest.guards:
            wanted &= np.asarray(self.evaluate(guard)).astype(bool)
        for i, extent in zip(index, old.shape[lead:], strict=True):
            wanted &= (i >= 0) & (i < extent)
        units = [np.broadcast_to(np.arange(old.shape[0]).reshape((-1,) + (1,) * rank), shape)] if lead else []
        where = tuple(i[wanted] for i in (*units, *index))
        values = cast_array(np.broadcast_to(value, shape)[wanted], dtype(old.dtype))
        if combine and combine != PUT:
            ATOMICS[combine].at(old, where, values)
        else:
            old[where] = values
        return old


def _loads(nest: Nest) -> list[Load]:
    every = (nest.value, *nest.index, *nest.guards)
    return [part for e in every for part in walk(e) if isinstance(part, Load)]


PUT = "put"
"""How elements are combined that are only stored, each by one unit: which ones, the run tells."""


def _run(*operands: Array, code: str, combine: str = "", padded: bool = False, **numbers: int) -> Array:
    arrays = {f"a{i}": np.asarray(x) for i, x in enumerate(operands)}
    nest = read_nest(code, tuple((name, dtype(x.dtype)) for name, x in arrays.items()))
    with np.errstate(all="ignore"):
        return _Lanes(nest, arrays, {k: int(v) for k, v in numbers.items()}, padded).store(combine)


WHOLE = tuple((f"a{i}", "i32") for i in range(64))
"""Types that all operators take, where only shapes matter."""


def _shape(*shapes: Any, code: str, combine: str = "", **_: Any) -> tuple[Any, ...]:
    nest = read_nest(code, WHOLE)
    box = nest.box() if not combine else None
    if box is None:
        return tuple(shapes[0])
    extents = [known(e) for e in nest.extents]
    return tuple(1 if b is None else extents[b] for b in box)


NUMBERS = tuple(f"s{i}" for i in range(64))
OPERATIONS.add(
    "nest",
    Operation(
        "nest",
        _run,
        -1,
        "vector",
        _shape,
        lambda out, *_: 0,
        attributes=("code", "combine", "each", "padded", *NUMBERS),
    ),
)
