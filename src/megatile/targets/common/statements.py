"""What statements become that all targets write the same way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from megatile.core.expr import constant, simplify
from megatile.ir import nodes as n
from megatile.targets.common.elements import Value, converted
from megatile.targets.common.expressions import write
from megatile.targets.common.scalars import Scalars, simplify_whole
from megatile.targets.common.scope import Scope

STATEMENTS: dict[type[n.Node], Callable[[Any, Any], None]] = {}
rule = n.registrar(STATEMENTS)


@rule(n.Alloc, n.Reshape, n.Hint)
def _nothing(scope: Scope, node: n.Node) -> None:
    """Resolved where it is used; data never depends on a hint."""


@rule(n.Print, n.Breakpoint)
def _left_out(scope: Scope, node: n.Node) -> None:
    scope.gen.left_out(node)


@rule(n.ScaleRegion)
def _region(scope: Scope, node: n.ScaleRegion) -> None:
    scope.gen.around.append((scope.depth, scope.gen.launch.depth(node.scale)))
    scope.gen.region(scope, node)
    scope.gen.around.pop()


@rule(n.Let)
def _let(scope: Scope, node: n.Let) -> None:
    target, value = scope.vars[node.name], simplify_whole(scope.own(node.value))
    scope.text.add(f"{target.text} = {converted(write(value, scope), target.dtype).text};")
    found = scope.bound(value)
    if node.name in scope.once and found is not None:
        scope.ranges[node.name] = found


@rule(n.ReadScalar)
def _read_scalar(scope: Scope, node: n.ReadScalar) -> None:
    target = scope.vars[node.name].text
    scope.text.add(f"{target} = {scope.whole(node.value)};")
    if node.bound is not None:
        site = scope.gen.failure_site("read_scalar", f"T.read_scalar gives {{}}, outside 0..{node.bound}")
        scope.text.add(f"{target} = inside(failure, {site}, {target}, {node.bound + 1});")
        if node.name in scope.once:
            scope.ranges[node.name] = (0, node.bound)


@rule(n.Loop)
def _loop(scope: Scope, node: n.Loop) -> None:
    gen, name = scope.gen, scope.gen.name(node.var)
    start, stop, step = (scope.whole(e) for e in (node.start, node.stop, node.step))
    by = constant(simplify(scope.own(node.step)))
    if by is None:
        step = f"divisor(failure, {scope.gen.failure_site('loop', 'a loop with step {} never ends')}, {step})"
    down = by is not None and by < 0
    declared, end, bounded = "long ", f"{name}_stop", node.kind == "bounded"
    if scope.frame is not None:
        declared, name, end = "", scope.frame.add("long", name), scope.frame.add("long", end)
    elif bounded:
        scope.text.add(f"long {name}, {end};")
        declared = ""
    # Behind its last turn, the condition of a 'while' has to end it.
    test = f"{name} {'<=' if bounded else '>' if down else '<'} {end}"
    head = f"for ({declared}{name} = {start}, {end} = {stop}; {test}; {name} += {step})"
    limits = None if down else scope.loop_limits(node)
    with scope.text.block(head), scope.known(node.var, Value(name, "int"), limits):
        if bounded and scope.frame is not None:
            scope.frame.states += 1
            scope.text.add(f"f->is.state = {scope.frame.states}; return TURN; case {scope.frame.states}:;")
        gen.statements(scope, node.body)
    if bounded:
        site = scope.gen.failure_site("while", "a 'while' has not ended after {} turns")
        scope.text.add(f"if ({name} > {end}) fail(failure, {site}, {end});")


@rule(n.Break, n.Continue)
def _jump(scope: Scope, node: n.Node) -> None:
    scope.text.add(f"{type(node).__name__.lower()};")


@rule(n.Return)
def _return(scope: Scope, node: n.Return) -> None:
    scope.text.add("return DONE;" if scope.frame is not None else f"goto {scope.gen.label()};")


@rule(n.If)
def branch(scope: Scope, node: n.If) -> None:
    with scope.text.block(f"if ({Scalars(scope).truth(node.condition).text})"):
        scope.gen.statements(scope, node.body)
    if node.orelse:
        with scope.text.block("else"):
            scope.gen.statements(scope, node.orelse)


@rule(n.Store, n.Check)
def _as_parallel(scope: Scope, node: n.Node) -> None:
    scope.gen.rules[n.Parallel](scope, n.Parallel((), (), (node,), span=node.span))
