"""``T.gemm``: tensor cores (mma) for 16 and 8 bits, fused multiply-adds of the threads for the rest."""

from __future__ import annotations

from megatile.core.expr import constant
from megatile.ir import nodes as n
from megatile.targets.common.elements import NARROW, Value, converted, kind, loaded
from megatile.targets.common.errors import CompileError
from megatile.targets.common.scope import refuse_parts
from megatile.targets.cuda.alignment import row_alignment
from megatile.targets.cuda.elements import Side, registers
from megatile.targets.cuda.fragments import by_tensor_cores
from megatile.targets.cuda.layouts import Grid, Mma, SharedLayout, grid, mma
from megatile.targets.cuda.scope import DeviceScope
from megatile.targets.cuda.tensor_cores import HeldOperand, Operand, by_warps

_NUMBER = {"f": "float", "d": "double", "l": "long"}


def gemm(scope: DeviceScope, node: n.Gemm) -> None:
    with scope.text.block():
        a = _held(scope, node.a) or _operand(scope, node.a, node.transpose_a)
        b = _operand(scope, node.b, not node.transpose_b)
        c = Side(scope, node.c)
        shape = tuple(constant(x.extent) for x in c.box.axes)
        depth = constant(b.along.extent)
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
            by_warps(scope, a, b, layout, target, depth)
        else:
            assert isinstance(layout, Grid)
            assert isinstance(a, Operand)
            _by_threads(scope, a, b, c, layout, target, depth)
        if c.layout is None:
            _accumulators(scope, c, layout, "out")
        elif c.storage.dtype in NARROW:
            with registers(scope, layout, shape) as (_, register):  # type: ignore[arg-type]
                value = converted(Value(f"{target}[{register}]", "f32"), c.storage.dtype)
                scope.text.add(f"{target}[{register}] = {value.text};")


def _held(scope: DeviceScope, region: n.Region) -> HeldOperand | None:
    """A factor in registers."""
    layout = scope.layout(region.source)
    if not isinstance(layout, Mma):
        return None
    dtype = scope.gen.storages.table[region.source].dtype
    return HeldOperand(scope.gen.name(region.source), dtype, layout.across)


def _operand(scope: DeviceScope, region: n.Region, turned: bool) -> Operand:
    """A factor; ``turned`` where its first dimension is the one that is summed over."""
    box = scope.box(region)
    refuse_parts(box)
    if box.clipped or len(box.axes) != 2:
        raise CompileError(
            "a product of tiles that reach over an edge cannot be written as CUDA yet",
            advice="copy them into whole tiles first: what is over the edge reads as zero",
        )
    side, along = reversed(box.axes) if turned else box.axes
    return Operand(box, side, along, row_alignment(scope, region))


def _accumulators(scope: DeviceScope, c: Side, layout: SharedLayout, direction: str) -> None:
    """A tile in memory, through registers."""
    wide = "f32" if c.storage.dtype in NARROW else c.storage.dtype
    if direction != "out":
        number = "int" if isinstance(layout, Mma) and wide == "i32" else _NUMBER[kind(wide)]
        scope.text.add(f"{number} acc[{layout.registers}];")
    shape = tuple(constant(x.extent) or 1 for x in c.box.axes)
    with registers(scope, layout, shape) as (indices, register):
        if direction == "out":
            value = Value(f"acc[{register}]", "int" if kind(wide) == "l" else wide)
            c.store(indices, c.box.axes, converted(value, c.storage.dtype))
        else:
            value = c.load(indices, c.box.axes) if direction == "in" else Value("0", wide)
            scope.text.add(f"acc[{register}] = {value.text};")


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
                ("xs", "ri", layout.down, layout.high, "top", layout.rows, a),
                ("ys", "ci", layout.across, layout.wide, "left", layout.columns, b),
            )
            for name, index, count, by, first, size, of_side in sides:
                box, out, inner = of_side.box, of_side.side, of_side.along
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
