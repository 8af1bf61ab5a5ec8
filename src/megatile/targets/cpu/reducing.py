"""Reductions and running sums of boxes."""

from __future__ import annotations

from collections.abc import Callable

from megatile.core.dtypes import accumulator
from megatile.core.expr import constant
from megatile.ir import nodes as n
from megatile.targets.common.allocation import Storage
from megatile.targets.common.elements import LANES, NOTHING, Value, combined, converted, kind, nothing
from megatile.targets.common.errors import CompileError
from megatile.targets.common.expressions import whole
from megatile.targets.common.scalars import C_NUMBER
from megatile.targets.common.scope import Axis, Box, Pair, Scope, matched, offset
from megatile.targets.cpu.moving import along, dense, load_element, over, rows, store_element

_LANES = {"sum": "+", "abssum": "+", "max": "vmax", "absmax": "vmax", "min": "vmin"}


def together(op: str, a: str, b: str) -> str:
    return f"{a} + {b}" if _LANES[op] == "+" else f"{_LANES[op]}({a}, {b})"


def horizontal(op: str) -> str:
    """Return the C function that puts the lanes of a vector together."""
    return {"+": "hsum", "vmax": "hmax", "vmin": "hmin"}[_LANES[op]]


def reduce(scope: Scope, node: n.Reduce) -> None:
    with scope.text.block():
        source, to = dense(scope, scope.box(node.source)), scope.box(node.to)
        axes = list(source.axes)
        line = axes.pop(node.dim)
        pairs = matched(scope, to, Box(source.storage, source.pointer, axes))
        floats = kind(source.storage.dtype) == "f" and node.op in _LANES
        side = (p for p in reversed(pairs) if p[0].stride == p[1].stride == 1 and p[0].table is None)
        across = next(side, None) if floats and line.stride != 1 else None
        outer = [pair for pair in pairs if pair is not across]
        with over(scope, to, outer, source.pointer) as (target, origin, _):
            if across is not None:
                _across(scope, node, to, source, (across, line), target, origin)
            elif line.stride == 1 and floats:
                _horizontal(scope, node, to, source, line, target, origin)
            else:
                _one_by_one(scope, node, to, source, line, target, origin)


def of_lane(op: str, text: str) -> str:
    return f"vabs({text})" if op.startswith("abs") else text


def _across(
    scope: Scope, node: n.Reduce, to: Box, source: Box, axes: tuple[Pair, Axis], target: str, origin: str
) -> None:
    """Lanes are results: no lane meets another."""
    (a, b), line = axes
    several = 4 if (constant(line.extent) or 1) % 4 == 0 else 1

    def body(j: str, count: str | None) -> None:
        def value(i: str) -> str:
            return load_element(source.storage, f"{origin}{offset(b, j)}{offset(line, i)}", True, count).text

        place = f"{target}{offset(a, j)}"
        in_lanes(scope, node, whole(line.extent, scope), several, value, to.storage, place, count)

    if to.storage.dtype not in LANES or kind(to.storage.dtype) != "f":
        raise CompileError(
            f"a reduction into {to.storage.dtype} cannot be compiled yet", advice="reduce into f32"
        )
    along(scope, a, body)


def in_lanes(
    scope: Scope, node: n.Reduce, steps: str, several: int, value: Callable[[str], str], storage: Storage,
    place: str, count: str | None,
) -> None:  # fmt: skip
    """The results of a vector of lanes; ``value`` is what each step adds, in ``several`` sums by turns."""
    accs, i = [scope.gen.fresh("acc") for _ in range(several)], scope.gen.fresh("i")
    acc = accs[0]
    with scope.text.block():
        scope.text.add("vf " + ", ".join(f"{x} = vset({NOTHING[node.op]})" for x in accs) + ";")
        with scope.text.block(f"for (long {i} = 0; {i} < {steps}; {i} += {several})"):
            for number, one in enumerate(accs):
                new = value(f"{i} + {number}" if number else i)
                scope.text.add(f"{one} = {together(node.op, one, of_lane(node.op, new))};")
        for one in accs[1:]:
            scope.text.add(f"{acc} = {together(node.op, acc, one)};")
        if not node.clear:
            old = converted(load_element(storage, place, True, count), "f32")
            scope.text.add(f"{acc} = {together(node.op, acc, old.text)};")
        result = converted(Value(acc, "f32", True), storage.dtype)
        scope.text.add(store_element(storage, place, result, count))


def _horizontal(
    scope: Scope, node: n.Reduce, to: Box, source: Box, line: Axis, target: str, origin: str
) -> None:
    """Lanes are parts of one result, put together at the end."""
    gen, length = scope.gen, constant(line.extent)
    stop = whole(line.extent, scope)
    several = 4 if length is not None and length >= 4 * gen.width else 1
    accs = [gen.fresh("acc") for _ in range(several)]
    none = NOTHING[node.op]
    scope.text.add("vf " + ", ".join(f"{a} = vset({none})" for a in accs) + ";")
    done = 0
    if several > 1 and length is not None:
        j, step = gen.fresh("j"), 4 * gen.width
        done = length // step * step
        with scope.text.block(f"for (long {j} = 0; {j} < {done}; {j} += {step})"):
            for number, acc in enumerate(accs):
                value = load_element(source.storage, f"{origin} + {j} + {number * gen.width}", True)
                scope.text.add(f"{acc} = {together(node.op, acc, of_lane(node.op, value.text))};")
        for acc in accs[1:]:
            scope.text.add(f"{accs[0]} = {together(node.op, accs[0], acc)};")

    def body(j: str, count: str | None) -> None:
        value = of_lane(node.op, load_element(source.storage, f"{origin} + {j}", True, count).text)
        value = f"first({value}, {count}, {none})" if count is not None else value
        scope.text.add(f"{accs[0]} = {together(node.op, accs[0], value)};")

    with scope.text.block():
        if done:
            origin = f"{origin} + {done}"
            rows(scope, "0", str((length or 0) - done), (length or 0) - done, body)
        else:
            rows(scope, "0", stop, length, body)
    gathered(scope, node, to, target, accs[0])


def gathered(scope: Scope, node: n.Reduce, to: Box, target: str, acc: str) -> None:
    """The lanes of a vector as one result."""
    result = scope.gen.fresh("r")
    scope.text.add(f"float {result} = {horizontal(node.op)}({acc});")
    _finish(scope, node, to, target, result, "f32")


def _one_by_one(
    scope: Scope, node: n.Reduce, to: Box, source: Box, line: Axis, target: str, origin: str
) -> None:
    wide = accumulator(source.storage.dtype)
    of = kind(wide)
    acc, i = scope.gen.fresh("acc"), scope.gen.fresh("i")
    scope.text.add(f"{C_NUMBER[of]} {acc} = {nothing(node.op, of)};")
    with scope.loop(i, "0", whole(line.extent, scope)):
        value = converted(load_element(source.storage, f"{origin}{offset(line, i)}", False), wide).text
        if node.op.startswith("abs"):
            value = {"f": "__builtin_fabsf", "d": "__builtin_fabs"}.get(of, "__builtin_labs") + f"({value})"
        scope.text.add(f"{acc} = {combined(node.op, of, acc, value)};")
    _finish(scope, node, to, target, acc, wide)


def _finish(scope: Scope, node: n.Reduce, to: Box, target: str, result: str, wide: str) -> None:
    if not node.clear:
        old = converted(load_element(to.storage, target, False), wide)
        scope.text.add(f"{result} = {combined(node.op, kind(wide), result, old.text)};")
    scope.text.add(store_element(to.storage, target, converted(Value(result, wide), to.storage.dtype)))


def cumsum(scope: Scope, node: n.Cumsum) -> None:
    with scope.text.block():
        source, to = dense(scope, scope.box(node.source)), scope.box(node.to)
        wide = accumulator(source.storage.dtype)
        pairs = list(zip(to.axes, source.axes, strict=True))
        line = pairs.pop(node.dim)
        if line[0].clipped:
            raise CompileError("a running sum over an edge cannot be compiled yet", advice="sum a whole tile")
        with over(scope, to, pairs, source.pointer) as (target, origin, _):
            acc, i = scope.gen.fresh("acc"), scope.gen.fresh("i")
            extent = whole(line[0].extent, scope)
            scope.text.add(f"{C_NUMBER[kind(wide)]} {acc} = 0;")
            with scope.loop(i, "0", extent):
                at = f"({extent} - 1 - {i})" if node.reverse else i
                value = converted(load_element(source.storage, f"{origin}{offset(line[1], at)}", False), wide)
                scope.text.add(f"{acc} += {value.text};")
                result = converted(Value(acc, wide), to.storage.dtype)
                scope.text.add(store_element(to.storage, f"{target}{offset(line[0], at)}", result))
