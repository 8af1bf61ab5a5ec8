"""``T.gemm``: tensor cores (mma m16n8k16) for halves, fused multiply-adds of the threads for the rest."""

from __future__ import annotations

from megatile.core.expr import constant
from megatile.ir import nodes as n
from megatile.targets.common.elements import NARROW, Value, converted, kind, loaded
from megatile.targets.common.errors import CompileError
from megatile.targets.common.scope import Axis, Box, refuse_parts
from megatile.targets.cuda.elements import Side, registers
from megatile.targets.cuda.fragments import by_tensor_cores
from megatile.targets.cuda.layouts import Grid, Mma, SharedLayout, grid, mma
from megatile.targets.cuda.scope import DeviceScope

_NUMBER = {"f": "float", "d": "double", "l": "long"}


def gemm(scope: DeviceScope, node: n.Gemm) -> None:
    with scope.text.block():
        a, b = (_operand(scope, r) for r in (node.a, node.b))
        c = Side(scope, node.c)
        rows, inner = reversed(a.axes) if node.transpose_a else a.axes
        below, columns = reversed(b.axes) if node.transpose_b else b.axes
        shape = tuple(constant(x.extent) for x in c.box.axes)
        depth = constant(inner.extent)
        if len(shape) != 2 or None in shape or depth is None or c.box.clipped:
            raise CompileError(
                "a product whose extents are known only at run time cannot be written as CUDA",
                advice="use whole tiles, padded with zeros",
            )
        layout, target = c.layout, scope.gen.name(c.name)
        if layout is None:
            fast = mma(shape, scope.crew.size) if by_tensor_cores(node, scope.gen.storages.names) else None  # type: ignore[arg-type]
            layout, target = fast or grid(shape, scope.crew.size), "acc"  # type: ignore[arg-type]
            _accumulators(scope, c, layout, "in" if not node.clear else "zero")
        elif node.clear:
            with registers(scope, layout, shape) as (_, register):  # type: ignore[arg-type]
                scope.text.add(f"{target}[{register}] = 0;")
        if isinstance(layout, Mma):
            _by_warps(scope, (a, rows, inner), (b, below, columns), layout, target, depth)
        else:
            assert isinstance(layout, Grid)
            _by_threads(scope, (a, rows, inner), (b, below, columns), c, layout, target, depth)
        if c.layout is None:
            _accumulators(scope, c, layout, "out")
        elif c.storage.dtype in NARROW:
            with registers(scope, layout, shape) as (_, register):  # type: ignore[arg-type]
                value = converted(Value(f"{target}[{register}]", "f32"), c.storage.dtype)
                scope.text.add(f"{target}[{register}] = {value.text};")


def _operand(scope: DeviceScope, region: n.Region) -> Box:
    box = scope.box(region)
    refuse_parts(box)
    if box.clipped or len(box.axes) != 2:
        raise CompileError(
            "a product of tiles that reach over an edge cannot be written as CUDA yet",
            advice="copy them into whole tiles first: what is over the edge reads as zero",
        )
    return box


def _accumulators(scope: DeviceScope, c: Side, layout: SharedLayout, direction: str) -> None:
    """A tile in memory, through registers."""
    wide = "f32" if c.storage.dtype in NARROW else c.storage.dtype
    if direction != "out":
        scope.text.add(f"{_NUMBER[kind(wide)]} acc[{layout.registers}];")
    shape = tuple(constant(x.extent) or 1 for x in c.box.axes)
    with registers(scope, layout, shape) as (indices, register):
        if direction == "out":
            value = Value(f"acc[{register}]", "int" if kind(wide) == "l" else wide)
            c.store(indices, c.box.axes, converted(value, c.storage.dtype))
        else:
            value = c.load(indices, c.box.axes) if direction == "in" else Value("0", wide)
            scope.text.add(f"acc[{register}] = {value.text};")


Operand = tuple[Box, Axis, Axis]


def _by_warps(scope: DeviceScope, a: Operand, b: Operand, layout: Mma, target: str, depth: int) -> None:
    """Fragments of 16 x 16 and 16 x 8, as the PTX manual lays them out over the lanes of a warp."""
    text = scope.text
    dtype = a[0].storage.dtype
    text.add(f"// warps {layout.high} x {layout.wide}, each {layout.down} x {layout.across} tiles of 16 x 8")
    with text.block():
        layout.places(text, scope.crew)
        guard = f"if (warp < {layout.busy})" if layout.busy < layout.warps else ""
        (x_box, rows, inner), (y_box, below, columns) = a, b
        with text.block(guard):
            text.add(
                f"const u16 *const a_ = {x_box.pointer} + top * {rows.stride} "
                f"+ lane % 4 * {2 * inner.stride};"
            )
            text.add(
                f"const u16 *const b_ = {y_box.pointer} "
                f"+ (left - lane % 4 * 2 + lane / 4) * {columns.stride} + lane % 4 * {2 * below.stride};"
            )
            with text.block(f"for (int ki = 0; ki < {depth}; ki += 16)"):
                text.add(f"u32 xs[{layout.down}][4], ys[{layout.across}][2];")
                sides = (
                    ("xs", "mi", layout.down, "a_", 16, 4, inner, rows),
                    ("ys", "ni", layout.across, "b_", 8, 2, below, columns),
                )
                for name, index, count, first, size, words, along, side in sides:
                    text.add("#pragma unroll")
                    with text.block(f"for (int {index} = 0; {index} < {count}; {index}++)"):
                        start = f"{first} + {index} * {size * side.stride} + ki * {along.stride}"
                        text.add(f"const u16 *const from = {start};")
                        for q in range(words):  # of rows, two after each other in k by two in the rows
                            down, on = (q % 2, q // 2) if words == 4 else (0, q)
                            place = f"from + {down * 8 * side.stride + on * 8 * along.stride}"
                            text.add(f"{name}[{index}][{q}] = {_pair(place, along.stride, side.stride)};")
                text.add("#pragma unroll", f"for (int mi = 0; mi < {layout.down}; mi++)", "#pragma unroll")
                text.add(
                    f"  for (int ni = 0; ni < {layout.across}; ni++) "
                    f"mma_{dtype}({target} + (mi * {layout.across} + ni) * 4, xs[mi], ys[ni]);"
                )


def _pair(place: str, step: int, other: int) -> str:
    """Two halves that follow each other in k: one word where they lie so, at even places."""
    if step == 1 and other % 2 == 0:
        return f"*(const u32 *)({place})"
    return f"pair({place}, {place} + {step})"


def _by_threads(
    scope: DeviceScope, a: Operand, b: Operand, c: Side, layout: Grid, target: str, depth: int
) -> None:
    """Every thread adds the products of its rows and columns."""
    text = scope.text
    of = kind(c.storage.dtype)
    wide = {"f": "f32", "d": "f64"}.get(of, "int")
    number = _NUMBER[of]
    with text.block():
        layout.places(text, scope.crew)
        with text.block(f"for (int ki = 0; ki < {depth}; ki++)"):
            text.add(f"{number} xs[{layout.down}], ys[{layout.across}];")
            sides = (
                ("xs", "ri", layout.down, layout.high, "top", layout.rows, a[0], a[1], a[2]),
                ("ys", "ci", layout.across, layout.wide, "left", layout.columns, b[0], b[2], b[1]),
            )
            for name, index, count, by, first, size, box, out, inner in sides:
                place = f"({index} * {by} + {first})"
                pointer = f"{box.pointer} + {place} * {out.stride} + ki * {inner.stride}"
                value = converted(loaded(box.storage.dtype, box.storage.wide, pointer, False), wide).text
                exists = f"{place} < {size} ? {value} : 0" if size % by else value
                text.add("#pragma unroll")
                text.add(f"for (int {index} = 0; {index} < {count}; {index}++) {name}[{index}] = {exists};")
            text.add("#pragma unroll", f"for (int ri = 0; ri < {layout.down}; ri++)", "#pragma unroll")
            text.add(
                f"  for (int ci = 0; ci < {layout.across}; ci++) "
                f"{target}[ri * {layout.across} + ci] += xs[ri] * ys[ci];"
            )
