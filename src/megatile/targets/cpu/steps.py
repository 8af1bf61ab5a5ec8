"""Threads in step: every statement is done by all iterations before the next begins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from megatile.core.expr import Expr, Symbol, simplify, walk
from megatile.ir import nodes as n
from megatile.targets.common.elements import Value, converted, kind, loaded, stored
from megatile.targets.common.errors import CompileError
from megatile.targets.common.expressions import whole
from megatile.targets.common.scalars import Scalars, lets, loop_range, range_of
from megatile.targets.common.scope import Scope
from megatile.targets.cpu.moving import scratch


def in_step(scope: Scope, node: n.Parallel) -> None:
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
    def every(self, guards: tuple[str, ...]) -> Iterator[Scalars]:
        """A loop over the iterations for which the guards hold."""
        with self.scope.text.block(), ExitStack() as stack:
            for name, c_name, extent in zip(self.node.vars, self.index, self.extents, strict=True):
                stack.enter_context(self.scope.loop(c_name, "0", whole(extent, self.scope)))
                limits = range_of(self.scope, extent)
                stack.enter_context(self.scope.known(name, Value(c_name, "int"), limits))
            if guards:
                stack.enter_context(self.scope.text.block(f"if ({' && '.join(guards)})"))
            yield Scalars(self.scope)

    def kept(self, dtype: str, guards: tuple[str, ...], value: Callable[[Scalars], Value]) -> Value:
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
