"""Reductions and running sums of boxes."""

from __future__ import annotations

from contextlib import ExitStack

from megatile.core.dtypes import accumulator
from megatile.core.expr import constant
from megatile.ir import nodes as n
from megatile.targets.common.boxes import Pair, matched, offset, single
from megatile.targets.common.combining import NOTHING, combined
from megatile.targets.common.elements import LANES, Value, converted, kind
from megatile.targets.common.errors import CompileError
from megatile.targets.common.expressions import whole
from megatile.targets.common.scope import Axis, Box, Scope
from megatile.targets.cpu.moving import dense, load_element, over, rows, store_element

_LANES = {"sum": "+", "abssum": "+", "max": "vmax", "absmax": "vmax", "min": "vmin"}


def together(op: str, a: str, b: str) -> str:
    return f"{a} + {b}" if _LANES[op] == "+" else f"{_LANES[op]}({a}, {b})"


def horizontal(op: str) -> str:
    """The C function that puts the lanes of a vector together."""
    return {"+": "hsum", "vmax": "hmax", "vmin": "hmin"}[_LANES[op]]


def reduce(scope: Scope, node: n.Reduce) -> None:
    with scope.text.block():
        source, to = dense(scope, scope.box(node.source)), scope.box(node.to)
        axes = list(source.axes)
        along = axes.pop(node.dim)
        kept = Box(source.storage, source.pointer, axes)
        pairs = matched(scope, to, kept)
        pointer, conditions = single(to)
        floats = kind(source.storage.dtype) == "f"
        across = next(
            (p for p in reversed(pairs) if p[0].stride == p[1].stride == 1 and p[0].table is None), None
        )
        if (along.stride == 1 and floats) or not floats:
            across = None
        with over(scope, conditions, to) as shift, ExitStack() as stack:
            target, origin = f"{pointer}{shift}", source.pointer
            for pair in pairs:
                if pair is across:
                    continue
                i = scope.gen.fresh("i")
                stop = pair[0].high or whole(pair[0].extent, scope)
                stack.enter_context(scope.loop(i, pair[0].low or "0", stop))
                target += offset(pair[0], i)
                origin += offset(pair[1], i)
            if across is not None:
                _across(scope, node, to, source, (across, along), target, origin)
            elif along.stride == 1 and floats:
                _horizontal(scope, node, to, source, along, target, origin)
            else:
                _one_by_one(scope, node, to, source, along, target, origin)


def of_lane(op: str, text: str) -> str:
    return f"vabs({text})" if op.startswith("abs") else text


def _across(
    scope: Scope, node: n.Reduce, to: Box, source: Box, axes: tuple[Pair, Axis], target: str, origin: str
) -> None:
    """Lanes are results: no lane meets another."""
    (a, b), along = axes
    extent = whole(along.extent, scope)

    def body(j: str, count: str | None) -> None:
        known = constant(along.extent) or 1
        several = 4 if known % 4 == 0 else 1
        accs, i = [scope.gen.fresh("acc") for _ in range(several)], scope.gen.fresh("i")
        acc = accs[0]
        with scope.text.block():
            scope.text.add("vf " + ", ".join(f"{x} = vset({NOTHING[node.op]})" for x in accs) + ";")
            with scope.text.block(f"for (long {i} = 0; {i} < {extent}; {i} += {several})"):
                for number, one in enumerate(accs):
                    place = f"{origin}{offset(b, j)}{offset(along, f'{i} + {number}' if number else i)}"
                    value = of_lane(node.op, load_element(source.storage, place, True, count).text)
                    scope.text.add(f"{one} = {together(node.op, one, value)};")
            for one in accs[1:]:
                scope.text.add(f"{acc} = {together(node.op, acc, one)};")
            place = f"{target}{offset(a, j)}"
            if not node.clear:
                old = converted(load_element(to.storage, place, True, count), "f32")
                scope.text.add(f"{acc} = {together(node.op, acc, old.text)};")
            result = converted(Value(acc, "f32", True), to.storage.dtype)
            scope.text.add(store_element(to.storage, place, result, count))

    length = constant(a.extent) if a.low is None else None
    if to.storage.dtype not in LANES or kind(to.storage.dtype) != "f":
        raise CompileError(
            f"a reduction into {to.storage.dtype} cannot be compiled yet", advice="reduce into f32"
        )
    rows(scope, a.low or "0", a.high or whole(a.extent, scope), length, body)


def _horizontal(
    scope: Scope, node: n.Reduce, to: Box, source: Box, along: Axis, target: str, origin: str
) -> None:
    """Lanes are parts of one result, put together at the end."""
    gen, length = scope.gen, constant(along.extent)
    stop = whole(along.extent, scope)
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
    result = gen.fresh("r")
    scope.text.add(f"float {result} = {horizontal(node.op)}({accs[0]});")
    _finish(scope, node, to, target, result, "f32")


def _one_by_one(
    scope: Scope, node: n.Reduce, to: Box, source: Box, along: Axis, target: str, origin: str
) -> None:
    wide = accumulator(source.storage.dtype)
    of = kind(wide)
    ctype = {"f": "float", "d": "double"}.get(of, "long")
    acc, i = scope.gen.fresh("acc"), scope.gen.fresh("i")
    none = (
        NOTHING[node.op]
        if of in "fd"
        else {"min": "0x7fffffffffffffff", "max": "-0x7fffffffffffffff"}.get(node.op, "0")
    )
    scope.text.add(f"{ctype} {acc} = {none};")
    with scope.loop(i, "0", whole(along.extent, scope)):
        value = converted(load_element(source.storage, f"{origin}{offset(along, i)}", False), wide).text
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
        pointer, conditions = single(to)
        wide = accumulator(source.storage.dtype)
        ctype = {"f": "float", "d": "double"}.get(kind(wide), "long")
        with over(scope, conditions, to) as shift, ExitStack() as stack:
            target, origin = f"{pointer}{shift}", source.pointer
            along = (to.axes[node.dim], source.axes[node.dim])
            if along[0].clipped:
                raise CompileError(
                    "a running sum over an edge cannot be compiled yet", advice="sum a whole tile"
                )
            for d, pair in enumerate(zip(to.axes, source.axes, strict=True)):
                if d == node.dim:
                    continue
                i = scope.gen.fresh("i")
                stack.enter_context(
                    scope.loop(i, pair[0].low or "0", pair[0].high or whole(pair[0].extent, scope))
                )
                target += offset(pair[0], i)
                origin += offset(pair[1], i)
            acc, i = scope.gen.fresh("acc"), scope.gen.fresh("i")
            extent = whole(along[0].extent, scope)
            scope.text.add(f"{ctype} {acc} = 0;")
            with scope.loop(i, "0", extent):
                at = f"({extent} - 1 - {i})" if node.reverse else i
                value = converted(
                    load_element(source.storage, f"{origin}{offset(along[1], at)}", False), wide
                )
                scope.text.add(f"{acc} += {value.text};")
                result = converted(Value(acc, wide), to.storage.dtype)
                scope.text.add(store_element(to.storage, f"{target}{offset(along[0], at)}", result))
