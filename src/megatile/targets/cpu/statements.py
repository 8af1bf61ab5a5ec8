"""What each statement becomes: one function per kind, in one table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from megatile.core.expr import constant, simplify
from megatile.ir import nodes as n
from megatile.targets.common import statements as common
from megatile.targets.common.elements import Value, converted, kind, loaded, stored
from megatile.targets.common.expressions import whole
from megatile.targets.common.peers import peer
from megatile.targets.common.scalars import Scalars, Steps, lets, meets_itself
from megatile.targets.common.scope import Scope
from megatile.targets.cpu.gemm import gemm, prepare
from megatile.targets.cpu.lanes import Lanes, lane_of
from megatile.targets.cpu.moving import atomic_region, copy_statement, fill_statement, rows, scratch
from megatile.targets.cpu.reducing import cumsum, reduce
from megatile.targets.cpu.waiting import barrier, collective, signal, wait

STATEMENTS = dict(common.STATEMENTS) | {
    n.Fill: fill_statement, n.Gemm: gemm, n.Reduce: reduce, n.Cumsum: cumsum, n.AtomicRegion: atomic_region,
    n.Copy: copy_statement, n.Barrier: barrier, n.Signal: signal, n.Wait: wait, n.Collective: collective,
}  # fmt: skip
rule = n.registrar(STATEMENTS)


@rule(n.Parallel)
def parallel(scope: Scope, node: n.Parallel) -> None:
    """Loops over all iterations, the innermost a vector of them at a time where it can be."""
    if node.in_step and meets_itself(node):
        in_step(scope, node)
        return
    extents = {name: simplify(scope.own(e)) for name, e in zip(node.vars, node.extents, strict=True)}
    lane = lane_of(scope, node)
    with scope.text.block(), scope.counted((v, e) for v, e in extents.items() if v != lane):
        if lane is None:
            Scalars(scope).body(node.body)
            return
        extent = extents[lane]

        def body(index: str, count: str | None) -> None:
            with scope.text.block(), scope.known(lane, Value(index, "int"), scope.limits(extent)):
                Lanes(scope, lane, index, count).statements(node.body)

        rows(scope, "0", whole(extent, scope), constant(extent), body)


def in_step(scope: Scope, node: n.Parallel) -> None:
    """Every statement is done by all iterations before the next begins; their variables are arrays."""
    steps = _Loops(scope, node)
    with scope.text.block(), ExitStack() as stack:
        for name, dtype in lets(node.body).items():
            kept = scratch(scope, steps.extents, _HELD[kind(dtype)])
            value = loaded(kept.storage.dtype, False, kept.at(steps.index), False)
            stack.enter_context(scope.known(name, replace(value, dtype=dtype), None))
        steps.body(node.body)


_HELD = {"f": "f32", "d": "f64", "l": "i64", "b": "u8"}


class _Loops(Steps):
    """Statements as loops over all iterations, one after the other."""

    @property
    def index(self) -> list[str]:
        return [self.scope.gen.name(name) for name in self.node.vars]

    @contextmanager
    def every(self, guards: tuple[str, ...]) -> Iterator[Scalars]:
        with (
            self.scope.text.block(),
            self.scope.counted(zip(self.node.vars, self.extents, strict=True)),
            self.scope.text.block(f"if ({' && '.join(guards)})" if guards else ""),
        ):
            yield Scalars(self.scope)

    def precomputed(self, dtype: str, guards: tuple[str, ...], value: Callable[[Scalars], Value]) -> Value:
        place = scratch(self.scope, self.extents, dtype, wide=True).at(self.index)
        with self.every(guards) as one:
            self.scope.text.add(stored(dtype, True, place, converted(value(one), dtype)))
        return loaded(dtype, True, place, False)


@rule(n.Atomic)
def _atomic(scope: Scope, node: n.Atomic) -> None:
    with scope.text.block():
        Scalars(scope).atomic(node, peer(scope, node.dst, node))


@rule(n.Loop)
def _loop(scope: Scope, node: n.Loop) -> None:
    if scope.instance and scope.frame is None:
        prepare(scope, node)
    common.STATEMENTS[n.Loop](scope, node)


@rule(n.Fence)
def _fence(scope: Scope, node: n.Fence) -> None:
    scope.text.add("__atomic_thread_fence(__ATOMIC_SEQ_CST);")
