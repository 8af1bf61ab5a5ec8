"""Elementwise code, one iteration at a time."""

from __future__ import annotations

from contextlib import ExitStack

from megatile.core.expr import Expr, simplify
from megatile.ir import nodes as n
from megatile.targets.common.combining import atomic
from megatile.targets.common.elements import Value, converted, kind, stored
from megatile.targets.common.expressions import write
from megatile.targets.common.scope import Scope

C_NUMBER = {"f": "float", "d": "double", "l": "long", "b": "int"}


class Scalars:
    """Writes the body for one iteration."""

    def __init__(self, scope: Scope):
        self.scope, self.text = scope, scope.text

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


_SCALARS: dict[type[n.Node], str] = {
    n.Store: "store", n.Let: "let", n.If: "branch", n.Loop: "loop", n.Check: "check", n.Atomic: "atomic",
    n.Print: "nothing",
}  # fmt: skip


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


def range_of(scope: Scope, extent: Expr) -> tuple[int, int] | None:
    found = scope.bound(extent)
    return (0, max(found[1] - 1, 0)) if found is not None else None


def meets_itself(node: n.Parallel) -> bool:
    """Whether iterations read what others of them write."""
    touched = [(kind, name) for one in n.walk(node.body) for kind, name, _ in n.element_accesses(one)]
    written = {name for kind, name in touched if kind != "read"}
    return any(kind != "write" and name in written for kind, name in touched)
