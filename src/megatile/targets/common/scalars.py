"""Elementwise code, one iteration at a time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack

from megatile.core.expr import Expr, simplify, symbols
from megatile.ir import nodes as n
from megatile.targets.common.elements import Value, converted, kind, stored
from megatile.targets.common.errors import CompileError
from megatile.targets.common.expressions import Context, write
from megatile.targets.common.scope import Peer, Scope

C_NUMBER = {"f": "float", "d": "double", "l": "long", "b": "int"}


class Scalars:
    """Writes the body for one iteration; ``at`` is what expressions are written in."""

    at: Context

    def __init__(self, scope: Scope):
        self.scope, self.text = scope, scope.text
        self.at = scope

    def body(self, body: tuple[n.Node, ...]) -> None:
        with ExitStack() as stack:
            for name, dtype in lets(body).items():
                c_name = self.scope.gen.name(name)
                self.text.add(f"{C_NUMBER[kind(dtype)]} {c_name} = 0;")
                stack.enter_context(self.scope.known(name, Value(c_name, dtype), None))
            self.statements(body)

    def statements(self, body: tuple[n.Node, ...]) -> None:
        for node in body:
            with self.scope.gen.at(node, self.text, comment=False):
                getattr(self, _SCALARS[type(node)])(node)

    def value(self, expr: Expr) -> Value:
        return write(simplify_whole(self.scope.own(expr)), self.at)

    def truth(self, expr: Expr) -> Value:
        return converted(self.value(expr), "bool")

    def store(self, node: n.Store, value: Value | None = None) -> None:
        storage, pointer, guard = self.scope.element(node.target, node.index)
        _, copies, copy_stride = self.scope.gen.storages.place(node.target, self.scope.path, self.scope.depth)
        value = value or converted(self.value(node.value), storage.dtype)
        with ExitStack() as stack:
            if copies > 1:
                stack.enter_context(self.scope.loop("copy", "0", str(copies)))
                pointer += f" + copy * {copy_stride}"
            found = stored(storage.dtype, storage.wide, pointer, value)
            self.text.add(f"if ({guard}) {found}" if guard else found)

    def let(self, node: n.Let) -> None:
        target = self.scope.vars[node.name]
        self.text.add(f"{target.text} = {converted(self.value(node.value), target.dtype).text};")

    def branch(self, node: n.If) -> None:
        with self.text.block(f"if ({self.truth(node.condition).text})"):
            self.statements(node.body)
        if node.orelse:
            with self.text.block("else"):
                self.statements(node.orelse)

    def loop(self, node: n.Loop) -> None:
        with self.scope.serial(node):
            self.statements(node.body)

    def check(self, node: n.Check) -> None:
        what = f"assertion failed: {node.text}" if node.text else "assertion failed"
        site = self.scope.gen.failure_site("assertion", what)
        self.text.add(f"if (!{self.truth(node.condition).text}) fail(failure, {site}, 0);")

    def atomic(self, node: n.Atomic, peer: Peer | None = None) -> None:
        """One element, of another unit perhaps."""
        storage, pointer, guard = self.scope.element(node.target, node.index, peer)
        new = converted(self.value(node.value), storage.dtype)
        wanted = None if node.expected is None else converted(self.value(node.expected), storage.dtype)
        result = self.scope.vars[node.result].text if node.result is not None else None
        with self.text.block(f"if ({guard})" if guard else ""):
            self.scope.gen.change(self.scope, storage, pointer, node.op, new, wanted, result)

    def nothing(self, node: n.Node) -> None:
        self.scope.gen.left_out(node)


_SCALARS: dict[type[n.Node], str] = {
    n.Store: "store", n.Let: "let", n.If: "branch", n.Loop: "loop", n.Check: "check", n.Atomic: "atomic",
    n.Print: "nothing",
}  # fmt: skip


class Steps:
    """Threads in step: every statement is done by all iterations before the next begins."""

    def __init__(self, scope: Scope, node: n.Parallel):
        self.scope, self.node = scope, node
        self.extents = [simplify(scope.own(e)) for e in node.extents]

    def every(self, guards: tuple[str, ...]) -> AbstractContextManager[Scalars]:
        """Return what the iterations do for which the guards hold."""
        raise NotImplementedError

    def precomputed(self, dtype: str, guards: tuple[str, ...], value: Callable[[Scalars], Value]) -> Value:
        """Return a value of every iteration, computed before anything else happens."""
        raise NotImplementedError

    def body(self, body: tuple[n.Node, ...], guards: tuple[str, ...] = ()) -> None:
        for node in body:
            with self.scope.gen.at(node, self.scope.text, comment=False):
                self.statement(node, guards)

    def statement(self, node: n.Node, guards: tuple[str, ...]) -> None:
        if isinstance(node, n.If):
            truth = self.precomputed("u8", guards, lambda one: one.truth(node.condition)).text
            self.body(node.body, (*guards, truth))
            self.body(node.orelse, (*guards, f"!{truth}"))
        elif isinstance(node, n.Loop):
            own = {*self.node.vars, *lets(self.node.body)}
            if any(symbols(e) & own for e in (node.start, node.stop, node.step)):
                raise CompileError(
                    "a loop whose step differs between threads cannot be compiled yet",
                    advice="loop to the largest count, and guard its body",
                )
            with self.scope.serial(node):
                self.body(node.body, guards)
        elif isinstance(node, n.Store):
            dtype = self.scope.gen.storages.storage(node.target).dtype
            value = self.precomputed(dtype, guards, lambda one: one.value(node.value))
            with self.every(guards) as one:
                one.store(node, value)
        else:
            with self.every(guards) as one:
                one.statements((node,))


def lets(body: tuple[n.Node, ...]) -> dict[str, str]:
    """Return variables that a body sets (not those of regions inside), with a dtype that holds all their
    values."""
    found: dict[str, str] = {}
    for node in n.own_statements(body):
        if isinstance(node, n.Let):
            _join(found, node.name, node.value.dtype)
        elif isinstance(node, n.ReadScalar):
            _join(found, node.name, "int")
        elif isinstance(node, n.Atomic) and node.result is not None:
            _join(found, node.result, node.value.dtype)
    return found


def _join(found: dict[str, str], name: str, dtype: str) -> None:
    found[name] = max(found.get(name, dtype), dtype, key=lambda t: "blfd".index(kind(t)))


def simplify_whole(expr: Expr) -> Expr:
    return simplify(expr) if expr.dtype == "int" else expr


def meets_itself(node: n.Parallel) -> bool:
    """Return whether iterations read what others of them write."""
    touched = [(kind, name) for one in n.walk(node.body) for kind, name, _ in n.element_accesses(one)]
    written = {name for kind, name in touched if kind != "read"}
    return any(kind != "write" and name in written for kind, name in touched)
