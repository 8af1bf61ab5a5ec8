"""Elementwise code, a vector of iterations at a time."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

from megatile.core.expr import ONE, Expr, Symbol, constant, linear, simplify, symbols
from megatile.ir import nodes as n
from megatile.ir.expr import Load, loads
from megatile.targets.common.elements import LANES, Value, broadcast, converted, kind, loaded, stored
from megatile.targets.common.errors import CompileError
from megatile.targets.common.expressions import fits_lanes
from megatile.targets.common.scalars import C_NUMBER, Scalars
from megatile.targets.common.scope import Scope
from megatile.targets.cpu.moving import in_lanes


def lane_of(scope: Scope, node: n.Parallel) -> str | None:
    """Return the loop variable that can run over the lanes of vectors."""
    extents = [simplify(scope.own(e)) for e in node.extents]
    with ExitStack() as inner:
        for name, extent in zip(node.vars, extents, strict=True):
            inner.enter_context(scope.known(name, Value(name, "int"), scope.limits(extent)))
        for name in reversed(node.vars):
            if constant(extents[node.vars.index(name)]) != 1 and _Fits(scope, name).body(
                node.body, masked=False
            ):
                return name
    return None


class _Fits:
    """Whether a body can be written for vectors of iterations that differ in one variable."""

    def __init__(self, scope: Scope, lane: str):
        self.scope, self.names = scope, {lane}
        self.lane = lane

    def varies(self, expr: Expr) -> bool:
        return bool(symbols(expr) & self.names)

    def body(self, body: tuple[n.Node, ...], masked: bool) -> bool:
        return all(self.statement(node, masked) for node in body)

    def statement(self, node: n.Node, masked: bool) -> bool:
        if isinstance(node, n.Store):
            if masked and self.scope.gen.storages.storage(node.target).home != "instance":
                return False
            return (
                self.place(node.target, node.index, True)
                and self.value(node.value)
                and in_lanes(_lane_type(node.value.dtype), self.scope.gen.storages.storage(node.target).dtype)
            )
        if isinstance(node, n.Let):
            if not self.value(node.value):
                return False
            if masked or self.varies(self.scope.own(node.value)):
                self.names.add(node.name)
                return kind(node.value.dtype) in "fb"
            return True
        if isinstance(node, n.If):
            inner = masked or self.varies(self.scope.own(node.condition))
            return self.value(node.condition) and self.body(node.body + node.orelse, inner)
        if isinstance(node, n.Loop):
            bounds = [self.scope.own(e) for e in (node.start, node.stop, node.step)]
            if any(map(self.varies, bounds)) or node.kind == "bounded":
                return False
            with self.scope.known(node.var, Value(node.var, "int"), self.scope.loop_limits(node)):
                return self.body(node.body, masked)
        return False

    def value(self, expr: Expr) -> bool:
        expr = self.scope.own(expr)
        return fits_lanes(expr, self.varies, self.scope) and all(
            self.place(load.source, load.index, False) for load in loads(expr)
        )

    def place(self, name: str, index: tuple[Expr, ...], must_vary: bool) -> bool:
        """Surely inside, and either the same for all lanes or one element after the other."""
        storages = self.scope.gen.storages
        storage = storages.storage(name)
        _, copies, _ = storages.place(name, self.scope.path, self.scope.depth)
        varying = 0
        for d, expr in enumerate(index):
            at, share = self.scope.share(expr, storage.shape[d])
            if not self.scope.is_inside(at, ONE, share.length):
                return False
            if not self.varies(at):
                continue
            terms, _ = linear(at)
            alone = [t for t in terms if self.varies(t)]
            if (
                len(alone) != 1
                or alone[0] != Symbol(self.lane)
                or terms[alone[0]] != 1
                or share.table is not None
            ):
                return False
            if storage.strides[d] != 1:
                return False
            varying += 1
        if must_vary and copies > 1:
            return False
        return (varying == 1 and storage.dtype in LANES) or (varying == 0 and not must_vary)


def _lane_type(dtype: str) -> str:
    return {"int": "i32", "float": "f32"}.get(dtype, dtype)


class Lanes(Scalars):
    """Writes the body for a vector of iterations; ``count`` of them at the end of a row."""

    def __init__(self, scope: Scope, lane: str, index: str, count: str | None):
        super().__init__(scope)
        self.at, self.gen, self.ranges = self, scope.gen, scope.ranges
        self.lane, self.index, self.count = lane, index, count
        self.locals: dict[str, Value] = {}
        self.mask: str | None = None
        self.last = ""
        """The value that was stored last."""

    def variable(self, symbol: Symbol) -> Value:
        if symbol.name == self.lane:
            return Value(f"(iota() + (int)({self.index}))", "int", True)
        return self.locals.get(symbol.name) or self.scope.variable(symbol)

    def load(self, expr: Load) -> Value:
        storage, pointer, _ = self.scope.element(expr.source, expr.index)
        vector = any(self.lane in symbols(self.scope.own(i)) for i in expr.index)
        return loaded(storage.dtype, storage.wide, pointer, vector, self.count if vector else None)

    def masked(self, value: Value, old: str | None) -> str:
        """Return a vector of the value, or of the old one where the mask does not hold."""
        if self.mask is None or old is None:
            return broadcast(value)
        return f"{'sel' if value.kind == 'f' else 'isel'}({self.mask}, {broadcast(value)}, {old})"

    def store(self, node: n.Store, value: Value | None = None) -> None:
        storage, pointer, _ = self.scope.element(node.target, node.index)
        value = converted(_as_strong(self.value(node.value)), storage.dtype)
        text = self.masked(value, loaded(storage.dtype, storage.wide, pointer, True, self.count).text)
        self.last = self.gen.fresh("v")
        self.text.add(f"const {'vf' if value.kind == 'f' else 'vi'} {self.last} = {text};")
        final = Value(self.last, storage.dtype, True)
        self.text.add(stored(storage.dtype, storage.wide, pointer, final, self.count))

    def let(self, node: n.Let) -> None:
        value, name = self.value(node.value), self.gen.name(node.name)
        before = self.locals.get(node.name)
        plain = before is None and not value.vector and self.mask is None
        text = value.text if plain else self.masked(value, None if before is None else broadcast(before))
        name = name if plain else self.gen.fresh(name)
        shape = C_NUMBER[value.kind] if plain else "vf" if value.kind == "f" else "vi"
        self.text.add(f"const {shape} {name} = {text};")
        self.locals[node.name] = Value(name, value.dtype, not plain)

    def branch(self, node: n.If) -> None:
        condition = self.truth(node.condition)
        if not condition.vector and not any(isinstance(x, n.Let) for x in n.walk(node.body + node.orelse)):
            super().branch(node)
            return
        before, name = self.mask, self.gen.fresh("mask")
        self.text.add(f"const vi {name} = {broadcast(condition)};")
        for text, body in ((name, node.body), (f"~{name}", node.orelse)):
            self.mask = text if before is None else f"({before} & {text})"
            self.statements(body)
        self.mask = before

    def loop(self, node: n.Loop) -> None:
        if any(isinstance(x, n.Let) for x in n.walk(node.body)):
            raise CompileError(
                "a loop inside T.Parallel that changes variables cannot be compiled yet",
                advice="sum into a tile",
            )
        super().loop(node)


def _as_strong(value: Value) -> Value:
    return replace(value, dtype=_lane_type(value.dtype)) if value.vector else value
