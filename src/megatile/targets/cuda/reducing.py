"""Reductions by registers, shuffles and shared memory; running sums."""

from __future__ import annotations

import math

from megatile.core.dtypes import accumulator
from megatile.core.expr import constant
from megatile.ir import nodes as n
from megatile.targets.common.elements import Value, combined, converted, kind, loaded, nothing
from megatile.targets.common.errors import CompileError
from megatile.targets.common.expressions import whole
from megatile.targets.common.scope import Axis, Box, matched, refuse_parts
from megatile.targets.cuda.elements import Side, shared_out, split
from megatile.targets.cuda.layouts import WARP, Grid, Mma
from megatile.targets.cuda.scope import DeviceScope

_NUMBER = {"f": "float", "d": "double", "l": "long", "b": "long"}


def _absolute(node: n.Reduce, of: str, value: str) -> str:
    if not node.op.startswith("abs"):
        return value
    return {"f": "fabsf", "d": "fabs"}.get(of, "labs") + f"({value})"


def reduce(scope: DeviceScope, node: n.Reduce) -> None:
    with scope.text.block():
        source, to = Side(scope, node.source), Side(scope, node.to)
        refuse_parts(source.box)
        wide = accumulator(source.storage.dtype)
        if source.layout is not None:
            _of_registers(scope, node, source, to, wide)
        else:
            _of_memory(scope, node, source, to, wide)


def _shuffled(scope: DeviceScope, node: n.Reduce, of: str, group: int, whole_warps: bool = True) -> None:
    """The lanes of groups of ``group`` threads put their parts together; all get the result.

    ``whole_warps``: whether all groups of a warp come here together, as far as their team has whole warps. A
    mask that is no constant costs a loop over the masks of a warp for each shuffle.
    """
    mask = "~0u" if whole_warps and scope.crew.size % WARP == 0 else f"lanes({group})"
    by = group // 2
    while by:
        other = f"__shfl_xor_sync({mask}, acc, {by})"
        scope.text.add(f"acc = {combined(node.op, of, 'acc', other)};")
        by //= 2


def _finish(scope: DeviceScope, node: n.Reduce, to: Side, indices: list[str], wide: str) -> None:
    raw = "int" if kind(wide) == "l" else wide
    if not node.clear:
        old = converted(to.load(indices, to.axes), wide)
        scope.text.add(f"acc = {combined(node.op, kind(wide), 'acc', old.text)};")
    to.store(indices, to.axes, converted(Value("acc", raw), to.storage.dtype))


def _of_registers(scope: DeviceScope, node: n.Reduce, source: Side, to: Side, wide: str) -> None:
    """Rows of a tile in registers: each thread its part, then the lanes that share the row."""
    layout, of, text = source.layout, kind(wide), scope.text
    array = scope.gen.name(source.name)
    layout_loops = layout.places(text, scope.crew)  # type: ignore[union-attr]
    if isinstance(layout, Mma):
        rows = [("mi", layout.down), ("hi", 2)]
        row = "top + mi * 16 + hi * 8"
        inner = [("ni", layout.across), ("qi", 2)]
        register, exists = f"(mi * {layout.across} + ni) * 4 + hi * 2 + qi", ""
        group, first, there = (
            4,
            "lane % 4 == 0",
            f"warp < {layout.busy}" if layout.busy < layout.warps else "",
        )
    else:
        assert isinstance(layout, Grid)
        rows, inner = layout_loops[:1], layout_loops[1:]
        row, register = layout.row, f"ri * {layout.across} + ci"
        there, exists = layout.guards
        group, first = layout.wide, "left == 0"
        if group > WARP:
            raise CompileError("a row over several warps cannot be reduced here", advice="use more rows")
    for name, count in rows:
        text.add("#pragma unroll", f"for (int {name} = 0; {name} < {count}; {name}++)")
    with text.block():
        text.add(f"const long row = {row};", f"{_NUMBER[of]} acc = {nothing(node.op, of)};")
        value = converted(
            loaded(source.storage.dtype, source.storage.wide, f"&{array}[{register}]", False), wide
        )
        for name, count in inner:
            text.add("#pragma unroll", f"for (int {name} = 0; {name} < {count}; {name}++)")
        guard = f"if ({exists}) " if exists else ""
        text.add(f"  {guard}acc = {combined(node.op, of, 'acc', _absolute(node, of, value.text))};")
        _shuffled(scope, node, of, group)
        with text.block(f"if ({' && '.join(x for x in (first, there) if x)})"):
            _finish(scope, node, to, ["row"] if to.axes else [], wide)


def _of_memory(scope: DeviceScope, node: n.Reduce, source: Side, to: Side, wide: str) -> None:
    """Each result by a group of lanes that read one after the other."""
    of, team, text = kind(wide), scope.crew, scope.text
    axes = list(source.box.axes)
    along = axes.pop(node.dim)
    pairs = matched(scope, to.box, Box(source.storage, source.box.pointer, axes))
    length = constant(along.extent)
    group = 1
    while group < WARP and team.size % (group * 2) == 0 and (length is None or group * 2 <= length):
        group *= 2
    sizes = [whole(a.extent, scope) for a, _ in pairs]
    total = " * ".join(sizes) or "1"
    counts = [constant(a.extent) for a, _ in pairs]
    even = None not in counts and math.prod(c or 0 for c in counts) % (WARP // group) == 0
    lane = f"{team.index} % {group}"
    with text.block(f"for (long out = {team.index} / {group}; out < {total}; out += {team.size // group})"):
        indices = [scope.gen.fresh("i") for _ in sizes]
        split(scope, "out", indices, sizes)
        text.add(f"{_NUMBER[of]} acc = {nothing(node.op, of)};")
        with text.block(f"for (long ki = {lane}; ki < {whole(along.extent, scope)}; ki += {group})"):
            full = _with(source, [b for _, b in pairs], along, indices, "ki")
            value = _absolute(node, of, converted(full, wide).text)
            text.add(f"acc = {combined(node.op, of, 'acc', value)};")
        _shuffled(scope, node, of, group, even)
        with text.block(f"if ({lane} == 0)" if group > 1 else ""):
            _finish(scope, node, to, indices, wide)


def _with(source: Side, axes: list[Axis], along: Axis, indices: list[str], index: str) -> Value:
    """An element of the source: some dimensions, and the one that is summed over."""
    if constant(along.extent) == 1:
        return source.load(indices, axes)
    return source.load([*indices, index], [*axes, along])


def cumsum(scope: DeviceScope, node: n.Cumsum) -> None:
    """A line after the other, each by one thread."""
    with scope.text.block():
        source, to = Side(scope, node.source), Side(scope, node.to)
        refuse_parts(source.box)
        wide = accumulator(source.storage.dtype)
        along = to.box.axes[node.dim], source.box.axes[node.dim]
        others = [
            (a, b)
            for d, (a, b) in enumerate(zip(to.box.axes, source.box.axes, strict=True))
            if d != node.dim and constant(a.extent) != 1
        ]
        extent = whole(along[0].extent, scope)
        with shared_out(scope, [a.extent for a, _ in others]) as indices:
            scope.text.add(f"{_NUMBER[kind(wide)]} acc = 0;")
            with scope.loop("ki", "0", extent):
                at = f"({extent} - 1 - ki)" if node.reverse else "ki"
                value = converted(_with(source, [b for _, b in others], along[1], indices, at), wide)
                scope.text.add(f"acc += {value.text};")
                result = converted(Value("acc", "int" if kind(wide) == "l" else wide), to.storage.dtype)
                many = constant(along[0].extent) != 1
                to.store(
                    [*indices, at] if many else indices,
                    [a for a, _ in others] + ([along[0]] if many else []),
                    result,
                )
