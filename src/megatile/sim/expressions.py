"""Expressions of plans as rows of integers: constants, cells of an instance's frame, or bytecode.

A value that stays the same while a loop goes on is computed once and cached in the frame (`FrameCache`).
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from megatile.core.expr import Binary, Const, Expr, Select, Symbol, Table, symbols
from megatile.plan.cohort import spread
from megatile.plan.model import PlanError
from megatile.sim.instructions import (
    BYTECODE,
    CACHED,
    CONSTANT,
    LOAD,
    LOOKUP,
    NESTED,
    OPERATORS,
    PUSH,
    SELECT,
    STOP,
    SUM,
    SYMBOL,
)

MAX_STACK = 200
"""Values that an expression may have on the engine's stack at a time."""
MAX_CACHED = 64
"""Expressions of a stream whose values every instance caches."""
Code = tuple[tuple[int, int], ...]
Scope = tuple[float, int]
"""How long a value holds: how many loops are around what decides it (infinity where that is something else
than indices of loops), and the cell that counts the rounds of the innermost of them."""
ALWAYS, UNTIL_SET = (0.0, 1), (float("inf"), 0)


class Meaning:
    """An expression whose symbols lie in cells of the frame."""

    def __init__(self, node: Expr, names: dict[str, int]) -> None:
        self.node, self._names = node, names
        self._known: tuple[Any, Any] = None, None

    @cached_property
    def cells(self) -> dict[str, int]:
        return {name: self._names[name] for name in symbols(self.node)}

    @cached_property
    def _function(self) -> Any:
        return self.node.compile()

    def of_all(self, units: Any, frame: Any) -> tuple[Any, bool]:
        """Return the value for many instances, which have the integers of one of them but for their numbers;
        and whether it depends on nothing but these."""
        always = not any(self.cells.values())
        if not (always and units is self._known[0]):
            env = {name: frame[cell] if cell else units for name, cell in self.cells.items()}
            self._known = units, spread(self._function(env), len(units)).astype(np.int64, copy=False)
        return self._known[1], always


class ExpressionTables:
    """Tables of expressions, growing; equal ones share a row."""

    def __init__(self) -> None:
        self.expressions: list[tuple[int, int]] = []
        self.meanings: list[Meaning] = []
        """The expression of every row of ``expressions``."""
        self.bytecode: list[tuple[int, int]] = []
        self.constants: list[int] = []
        self._expressions: dict[Any, int] = {}
        self._tables: dict[tuple[int, ...], int] = {}

    def _row(self, key: Any, row: tuple[int, int], node: Expr, names: dict[str, int]) -> int:
        known = self._expressions.setdefault(key, len(self.expressions))
        if known == len(self.expressions):
            self.expressions.append(row)
            self.meanings.append(Meaning(node, dict(names)))
        return known

    def expression(self, node: Expr, names: dict[str, int], cache: FrameCache) -> int:
        """Return the number of an expression whose symbols lie at ``names`` in the frame."""
        if isinstance(node, (Const, Symbol)):
            row = (CONSTANT, node.value) if isinstance(node, Const) else (SYMBOL, names[node.name])
            return self._row(row, row, node, {} if row[0] == CONSTANT else names)
        if (
            isinstance(node, Binary)
            and node.operator == "+"
            and isinstance(node.left, Symbol)
            and isinstance(node.right, Const)
        ):
            row, at = (names[node.left.name], node.right.value), len(self.bytecode)
            self.bytecode += [] if (SUM, row) in self._expressions else [row]
            return self._row((SUM, row), (SUM, at), node, names)
        code, deepest, scope = self._emit(node, names, 0, cache)
        if deepest > MAX_STACK:
            raise PlanError(f"an expression is nested more than {MAX_STACK} deep")
        first = cache.bytecode_at(code, scope, self, 2)
        if first is not None:
            return self._row((CACHED, first), (CACHED, first), node, names)
        at = len(self.bytecode)
        self.bytecode += [] if code in self._expressions else [*code, (STOP, 0)]
        return self._row(code, (BYTECODE, at), node, names)

    def _emit(
        self, node: Expr, names: dict[str, int], depth: int, cache: FrameCache
    ) -> tuple[Code, int, Scope]:
        """Bytecode that leaves the value of ``node`` on the stack; how deep the stack becomes, and how long
        the value holds."""
        if isinstance(node, Const):
            return ((PUSH, node.value),), depth + 1, ALWAYS
        if isinstance(node, Symbol):
            cell = names[node.name]
            return ((LOAD, cell),), depth + 1, cache.loops.get(cell, UNTIL_SET)
        if isinstance(node, Binary):
            parts: tuple[Expr, ...] = (node.left, node.right)
            last = (OPERATORS.index(node.operator), 0)
        elif isinstance(node, Select):
            parts, last = (node.condition, node.then, node.otherwise), (SELECT, 0)
        else:
            assert isinstance(node, Table)
            parts, last = (node.index,), (LOOKUP, self._table(node.values))
        emitted = [self._emit(part, names, depth + i, cache) for i, part in enumerate(parts)]
        scope, code = max([own for *_, own in emitted]), Code()
        for part, _, own in emitted:
            # What stays the same in more rounds than the whole, or takes long, is cached by itself.
            least = 1 if own < scope else 3
            first = cache.bytecode_at(part, own, self, least) if len(part) > 1 else None
            code += part if first is None else ((NESTED, first),)
        return (*code, last), max([deepest for _, deepest, _ in emitted]), scope

    def _table(self, values: tuple[int, ...]) -> int:
        known = self._tables.setdefault(values, len(self.constants))
        if known == len(self.constants):
            self.constants += [len(values), *values]
        return known


class FrameCache:
    """Places in the frame of a stream that cache values of expressions as long as they stay the same."""

    def __init__(self, frame: list[int]) -> None:
        self.frame = frame
        self.loops: dict[int, Scope] = {0: ALWAYS}
        """By the cell of a loop's index (and of the unit's number), how long its values hold."""
        self.within = 0
        """How many loops are around the statement at hand."""
        frame.append(1)
        self._known: dict[tuple[Any, ...], int] = {}

    def bytecode_at(self, code: Code, scope: Scope, tables: ExpressionTables, least: int) -> int | None:
        """Return where bytecode of a scope begins whose value is cached; None where that is not worth while:
        outside of loops, and of fewer operations than ``least`` (or one, if this loop does not change it)."""
        known = self._known.get(code)
        if known is not None or not self.within or scope[0] > self.within:
            return known
        least = 1 if scope[0] < self.within else least
        if len([op for op, _ in code if op != LOAD and op != PUSH]) < least or len(self._known) == MAX_CACHED:
            return None
        at = self._known[code] = len(tables.bytecode)
        tables.bytecode += [(len(self.frame), scope[1]), *code, (STOP, 0)]
        self.frame += [0, 0]
        return at
