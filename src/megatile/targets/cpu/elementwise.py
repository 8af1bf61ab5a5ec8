"""``T.Parallel``: loops over all iterations, the innermost a vector of them at a time where it can be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from megatile.core.expr import ONE, Expr, Symbol, constant, linear, simplify, walk
from megatile.ir import nodes as n
from megatile.ir.expr import Load, loads
from megatile.targets.cpu.atomics import atomic
from megatile.targets.cpu.elements import LANES, Value, broadcast, converted, kind, loaded, stored
from megatile.targets.cpu.errors import CompileError
from megatile.targets.cpu.expressions import fits_lanes, whole, write
from megatile.targets.cpu.moving import in_lanes, rows, scratch
from megatile.targets.cpu.scope import Scope

_C_KIND = {"f": "float", "d": "double", "l": "long", "b": "int"}


def parallel(scope: Scope, node: n.Parallel) -> None:
    if node.in_step and _meets_itself(node):
        _in_step(scope, node)
        return
    extents = [simplify(scope.own(e)) for e in node.extents]
    lane = lane_of(scope, node)
    order = [v for v in node.vars if v != lane]
    with scope.text.block(), ExitStack() as stack:
        for name in order:
            extent = extents[node.vars.index(name)]
            c_name = scope.gen.name(name)
            stack.enter_context(scope.loop(c_name, "0", whole(extent, scope)))
            stack.enter_context(scope.known(name, Value(c_name, "int"), range_of(scope, extent)))
        if lane is None:
            _Scalars(scope).body(node.body)
            return
        extent = extents[node.vars.index(lane)]
        limits = range_of(scope, extent)
        length = constant(extent)

        def body(index: str, count: str | None) -> None:
            with scope.text.block(), scope.known(lane, Value(index, "int"), limits):
                Lanes(scope, lane, index, count).body(node.body)

        rows(scope, "0", whole(extent, scope), length, body)


def _meets_itself(node: n.Parallel) -> bool:
    """Whether iterations read what others of them write."""
    touched = [(kind, name) for one in n.walk(node.body) for kind, name, _ in n.element_accesses(one)]
    written = {name for kind, name in touched if kind != "read"}
    return any(kind != "write" and name in written for kind, name in touched)


def _in_step(scope: Scope, node: n.Parallel) -> None:
    """Every statement is done by all iterations before the next begins; their variables are arrays."""
    extents = [simplify(scope.own(e)) for e in node.extents]
    with scope.text.block(), ExitStack() as stack:
        index = [scope.gen.name(name) for name in node.vars]
        every = lets(node.body)
        for name, dtype in every.items():
            kept = scratch(scope, extents, _HELD[kind(dtype)])
            value = loaded(kept.storage.dtype, False, kept.at(index), False)
            stack.enter_context(scope.known(name, replace(value, dtype=dtype), None))
        _Steps(scope, node, extents, index).body(node.body, ())


_HELD = {"f": "f32", "d": "f64", "l": "i64", "b": "u8"}


@dataclass
class _Steps:
    """Writes statements as loops over all iterations, one after the other."""

    scope: Scope
    node: n.Parallel
    extents: list[Expr]
    index: list[str]

    def body(self, body: tuple[n.Node, ...], guards: tuple[str, ...]) -> None:
        for one in body:
            with self.scope.gen.at(one, self.scope.text, comment=False):
                _STEPS[type(one)](self, one, guards)

    @contextmanager
    def every(self, guards: tuple[str, ...]) -> Iterator[_Scalars]:
        """A loop over the iterations for which the guards hold."""
        with self.scope.text.block(), ExitStack() as stack:
            for name, c_name, extent in zip(self.node.vars, self.index, self.extents, strict=True):
                stack.enter_context(self.scope.loop(c_name, "0", whole(extent, self.scope)))
                limits = range_of(self.scope, extent)
                stack.enter_context(self.scope.known(name, Value(c_name, "int"), limits))
            if guards:
                stack.enter_context(self.scope.text.block(f"if ({' && '.join(guards)})"))
            yield _Scalars(self.scope)

    def kept(self, dtype: str, guards: tuple[str, ...], value: Callable[[_Scalars], Value]) -> Value:
        """A value of every iteration, computed before anything else happens."""
        made = scratch(self.scope, self.extents, dtype, wide=True)
        place = made.at(self.index)
        with self.every(guards) as one:
            self.scope.text.add(stored(dtype, True, place, converted(value(one), dtype)))
        return loaded(dtype, True, place, False)

    def store(self, node: n.Store, guards: tuple[str, ...]) -> None:
        dtype = self.scope.gen.storages.storage(node.target).dtype
        value = self.kept(dtype, guards, lambda one: one.value(node.value))
        with self.every(guards) as one:
            one.store(node, value)

    def let(self, node: n.Let, guards: tuple[str, ...]) -> None:
        with self.every(guards) as one:
            one.let(node)

    def atomic(self, node: n.Atomic, guards: tuple[str, ...]) -> None:
        with self.every(guards) as one:
            one.atomic(node)

    def check(self, node: n.Check, guards: tuple[str, ...]) -> None:
        with self.every(guards) as one:
            one.check(node)

    def branch(self, node: n.If, guards: tuple[str, ...]) -> None:
        truth = self.kept("u8", guards, lambda one: converted(one.value(node.condition), "bool")).text
        self.body(node.body, (*guards, truth))
        self.body(node.orelse, (*guards, f"!{truth}"))

    def loop(self, node: n.Loop, guards: tuple[str, ...]) -> None:
        scope, name = self.scope, self.scope.gen.name(node.var)
        own = {p.name for e in (node.start, node.stop, node.step) for p in walk(e) if isinstance(p, Symbol)}
        if own & ({*self.node.vars} | set(lets(self.node.body))):
            raise CompileError("a loop whose steps differ between threads in step cannot be compiled yet",
                               advice="loop to the largest count, and guard its body")  # fmt: skip
        start, stop, step = (scope.whole(e) for e in (node.start, node.stop, node.step))
        head = f"for (long {name} = {start}; {name} < {stop}; {name} += {step})"
        with scope.text.block(head), scope.known(node.var, Value(name, "int"), loop_range(scope, node)):
            self.body(node.body, guards)

    def nothing(self, node: n.Node, guards: tuple[str, ...]) -> None:
        self.scope.gen.left_out(node)


_STEPS: dict[type[n.Node], Callable[[_Steps, Any, tuple[str, ...]], None]] = {
    n.Store: _Steps.store, n.Let: _Steps.let, n.If: _Steps.branch, n.Loop: _Steps.loop,
    n.Atomic: _Steps.atomic, n.Check: _Steps.check, n.Print: _Steps.nothing,
}  # fmt: skip


def range_of(scope: Scope, extent: Expr) -> tuple[int, int] | None:
    found = scope.bound(extent)
    return (0, max(found[1] - 1, 0)) if found is not None else None


# --- one iteration at a time ----------------------------------------------------------------------


class _Scalars:
    """Writes the body for one iteration."""

    def __init__(self, scope: Scope):
        self.scope, self.text = scope, scope.text

    def body(self, body: tuple[n.Node, ...]) -> None:
        with ExitStack() as stack:
            for name, dtype in lets(body).items():
                c_name = self.scope.gen.name(name)
                self.text.add(f"{_C_KIND[kind(dtype)]} {c_name} = 0;")
                stack.enter_context(self.scope.known(name, Value(c_name, dtype), None))
            self.statements(body)

    def statements(self, body: tuple[n.Node, ...]) -> None:
        for node in body:
            with self.scope.gen.at(node, self.text, comment=False):
                _SCALARS[type(node)](self, node)

    def value(self, expr: Expr) -> Value:
        return write(simplify_whole(self.scope.own(expr)), self.scope)

    def store(self, node: n.Store, value: Value | None = None) -> None:
        storage, pointer, guard = self.scope.element(node.target, node.index)
        _, copies, copy_stride = self.scope.gen.storages.place(node.target, self.scope.path, self.scope.depth)
        value = value or converted(self.value(node.value), storage.dtype)
        guard = f"if ({guard}) " if guard else ""
        if copies > 1:
            with self.scope.loop("copy", "0", str(copies)):
                pointer += f" + copy * {copy_stride}"
                self.text.add(guard + stored(storage.dtype, storage.wide, pointer, value))
            return
        self.text.add(guard + stored(storage.dtype, storage.wide, pointer, value))

    def let(self, node: n.Let) -> None:
        target = self.scope.vars[node.name]
        self.text.add(f"{target.text} = {converted(self.value(node.value), target.dtype).text};")

    def branch(self, node: n.If) -> None:
        with self.text.block(f"if ({converted(self.value(node.condition), 'bool').text})"):
            self.statements(node.body)
        if node.orelse:
            with self.text.block("else"):
                self.statements(node.orelse)

    def loop(self, node: n.Loop) -> None:
        scope, c_name = self.scope, self.scope.gen.name(node.var)
        start, stop, step = (scope.whole(e) for e in (node.start, node.stop, node.step))
        head = f"for (long {c_name} = {start}, stop = {stop}; {c_name} < stop; {c_name} += {step})"
        with self.text.block(head), scope.known(node.var, Value(c_name, "int"), loop_range(scope, node)):
            self.statements(node.body)

    def check(self, node: n.Check) -> None:
        condition = converted(self.value(node.condition), "bool").text
        site = self.scope.site(
            "assertion", f"assertion failed: {node.text}" if node.text else "assertion failed"
        )
        self.text.add(f"if (!{condition}) fail(failure, {site}, 0);")

    def atomic(self, node: n.Atomic) -> None:
        atomic(self.scope, node, self.value)

    def nothing(self, node: n.Node) -> None:
        self.scope.gen.left_out(node)


_SCALARS: dict[type[n.Node], Callable[[_Scalars, Any], None]] = {
    n.Store: _Scalars.store,
    n.Let: _Scalars.let,
    n.If: _Scalars.branch,
    n.Loop: _Scalars.loop,
    n.Check: _Scalars.check,
    n.Atomic: _Scalars.atomic,
    n.Print: _Scalars.nothing,
}


def lets(body: tuple[n.Node, ...]) -> dict[str, str]:
    """Variables that a body sets (not those of regions inside), with a dtype that holds all their values."""
    found: dict[str, str] = {}
    for node in own_statements(body):
        if isinstance(node, n.Let):
            _join(found, node.name, node.value.dtype)
        elif isinstance(node, n.ReadScalar):
            _join(found, node.name, "int")
        elif isinstance(node, n.Atomic) and node.result is not None:
            _join(found, node.result, node.value.dtype)
    return found


def own_statements(body: tuple[n.Node, ...]) -> list[n.Node]:
    """The statements of a region, those in regions inside left out (and in elementwise loops)."""
    found: list[n.Node] = []
    for node in body:
        found.append(node)
        if not isinstance(node, (n.Scale, n.Parallel)):
            for _, inner in n.bodies(node):
                found += own_statements(inner)
    return found


def _join(found: dict[str, str], name: str, dtype: str) -> None:
    before = found.get(name)
    if before is None or before == dtype:
        found[name] = dtype
    else:
        order = "blfd"
        found[name] = max(before, dtype, key=lambda t: order.index(kind(t)))


def loop_range(scope: Scope, node: n.Loop) -> tuple[int, int] | None:
    low, high = scope.bound(scope.own(node.start)), scope.bound(scope.own(node.stop))
    return None if low is None or high is None else (low[0], max(high[1] - 1, low[0]))


def simplify_whole(expr: Expr) -> Expr:
    return simplify(expr) if expr.dtype == "int" else expr


# --- a vector of iterations at a time -------------------------------------------------------------


def lane_of(scope: Scope, node: n.Parallel) -> str | None:
    """The loop variable that can run over the lanes of vectors."""
    extents = [simplify(scope.own(e)) for e in node.extents]
    inner = ExitStack()
    with inner:
        for name, extent in zip(node.vars, extents, strict=True):
            inner.enter_context(scope.known(name, Value(name, "int"), range_of(scope, extent)))
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
        return any(isinstance(p, Symbol) and p.name in self.names for p in walk(expr))

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
            with self.scope.known(node.var, Value(node.var, "int"), loop_range(self.scope, node)):
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
        for d, (share, expr) in enumerate(zip(storages.shares(name, self.scope.path), index, strict=True)):
            at = simplify(self.scope.own(expr))
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


class Lanes:
    """Writes the body for a vector of iterations; ``count`` of them at the end of a row."""

    def __init__(self, scope: Scope, lane: str, index: str, count: str | None):
        self.outer, self.text = scope, scope.text
        self.lane, self.index, self.count = lane, index, count
        self.ranges = scope.ranges
        self.locals: dict[str, Value] = {}
        self.mask: str | None = None
        self.last = ""
        """The value that was stored last."""

    # as a context of expressions

    def variable(self, symbol: Symbol) -> Value:
        if symbol.name == self.lane:
            return Value(f"(iota() + (int)({self.index}))", "int", True)
        return self.locals.get(symbol.name) or self.outer.variable(symbol)

    def site(self, kind: str, what: str) -> int:
        return self.outer.site(kind, what)

    def constant_table(self, values: tuple[int, ...]) -> str:
        return self.outer.constant_table(values)

    def load(self, expr: Load) -> Value:
        storage, pointer, _ = self.outer.element(expr.source, expr.index)
        vector = self.lane in {
            p.name for i in expr.index for p in walk(self.outer.own(i)) if isinstance(p, Symbol)
        }
        return loaded(storage.dtype, storage.wide, pointer, vector, self.count if vector else None)

    # statements

    def body(self, body: tuple[n.Node, ...]) -> None:
        for node in body:
            with self.outer.gen.at(node, self.text, comment=False):
                _LANES[type(node)](self, node)

    def value(self, expr: Expr) -> Value:
        return write(simplify_whole(self.outer.own(expr)), self)

    def store(self, node: n.Store) -> None:
        storage, pointer, _ = self.outer.element(node.target, node.index)
        value = converted(_as_strong(self.value(node.value)), storage.dtype)
        text = broadcast(value)
        if self.mask is not None:
            old = loaded(storage.dtype, storage.wide, pointer, True, self.count).text
            text = f"{'sel' if value.kind == 'f' else 'isel'}({self.mask}, {text}, {old})"
        self.last = self.outer.gen.fresh("v")
        self.text.add(f"const {'vf' if value.kind == 'f' else 'vi'} {self.last} = {text};")
        final = Value(self.last, storage.dtype, True)
        self.text.add(stored(storage.dtype, storage.wide, pointer, final, self.count))

    def let(self, node: n.Let) -> None:
        value = self.value(node.value)
        before = self.locals.get(node.name)
        if before is None and not value.vector and self.mask is None:
            name = self.outer.gen.name(node.name)
            self.text.add(f"const {_C_KIND[value.kind]} {name} = {value.text};")
            self.locals[node.name] = Value(name, value.dtype)
            return
        name = self.outer.gen.fresh(self.outer.gen.name(node.name))
        shape = "vf" if value.kind == "f" else "vi"
        text = broadcast(value)
        if self.mask is not None and before is not None:
            text = f"{'sel' if value.kind == 'f' else 'isel'}({self.mask}, {text}, {broadcast(before)})"
        self.text.add(f"const {shape} {name} = {text};")
        self.locals[node.name] = Value(name, value.dtype, True)

    def branch(self, node: n.If) -> None:
        condition = converted(self.value(node.condition), "bool")
        if not condition.vector and not any(isinstance(x, n.Let) for x in n.walk(node.body + node.orelse)):
            with self.text.block(f"if ({condition.text})"):
                self.body(node.body)
            if node.orelse:
                with self.text.block("else"):
                    self.body(node.orelse)
            return
        before, name = self.mask, self.outer.gen.fresh("mask")
        self.text.add(f"const vi {name} = {broadcast(condition)};")
        for text, body in ((name, node.body), (f"~{name}", node.orelse)):
            if body:
                self.mask = text if before is None else f"({before} & {text})"
                self.body(body)
        self.mask = before

    def loop(self, node: n.Loop) -> None:
        if any(isinstance(x, n.Let) for x in n.walk(node.body)):
            raise CompileError(
                "a loop inside T.Parallel that changes variables cannot be compiled yet",
                advice="sum into a tile",
            )
        scope, c_name = self.outer, self.outer.gen.name(node.var)
        start, stop, step = (scope.whole(e) for e in (node.start, node.stop, node.step))
        with (
            self.text.block(f"for (long {c_name} = {start}; {c_name} < {stop}; {c_name} += {step})"),
            scope.known(node.var, Value(c_name, "int"), loop_range(scope, node)),
        ):
            self.body(node.body)


def _as_strong(value: Value) -> Value:
    return replace(value, dtype=_lane_type(value.dtype)) if value.vector else value


_LANES: dict[type[n.Node], Callable[[Lanes, Any], None]] = {
    n.Store: Lanes.store,
    n.Let: Lanes.let,
    n.If: Lanes.branch,
    n.Loop: Lanes.loop,
}
