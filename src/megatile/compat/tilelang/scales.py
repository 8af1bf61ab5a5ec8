"""TileScale's ``with T.Scale("block", 4) as bx:`` in TileLang's spelling.

Levels below the block bind threads, as ``threads=`` of ``T.Kernel`` does: tile operations inside them are
done by the block. What TileScale refuses between two levels is refused here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from megatile.compat.tilelang import buffers as b
from megatile.compat.tilelang.launch import Kernel, Pipelined, rank_of_device
from megatile.compat.tilelang.reader import Macro
from megatile.compat.tilelang.threads import get_thread_binding
from megatile.ir import nodes as n
from megatile.language.tile import operations as ops, scales
from megatile.language.tile.builder import ProgramBuilder, current
from megatile.language.tile.errors import ProgramError
from megatile.language.tile.nest import PHYSICAL, RANKS, LevelFound, ScaleLevel
from megatile.language.tile.scalars import Value, operate
from megatile.language.tile.tiles import ACTIVE

_LANES = {"warp": 32, "warpgroup": 128, "warp_group": 128}
"""Threads of the levels between a block and a thread."""
_NO_OPERATION = (n.Alloc, n.Hint)
_TILES = (128, 128, 32)
"""Rows, columns and depth of the tiles of a product at the scale of a device."""


class Scale(scales.Scale):
    """One level of the launch; the outermost begins it, and ends it."""

    def __init__(self, name: str, *extents: Any, workgroup: Any = None, **options: Any):
        bound = current().bound
        shape = workgroup if workgroup is None else b.extents_of(workgroup)
        shape = shape and tuple(b.resolved(e, bound) for e in shape)
        super().__init__(name, *(b.resolved(e, bound) for e in extents), workgroup=shape, **options)
        self.kernel: Kernel | None = None

    def __enter__(self) -> Any:
        builder, state = current(), b.state()
        if state.shapes is not None:
            raise ProgramError("the launch is reached", advice="every array's shape is known")
        if self.level is None:
            if self.name != "device":
                raise ProgramError(
                    f'T.Scale("{self.name}") has no extent', advice=f'T.Scale("{self.name}", 4)'
                )
            self.level = ScaleLevel("device", (1,))
        _check_between(builder, self.level)
        self.level = builder.nest.enter(self.level)
        if builder.launch is None:
            self.kernel = _LevelKernel(builder)
            self.kernel.__enter__()
        if self.swizzle[0] is not None:
            ops.use_swizzle(*self.swizzle)
        return _index(builder, self.level)

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is not None:
            return
        builder = current()
        builder.nest.leave()
        b.state().levels.add(self.level)
        if self.kernel is not None:
            self.kernel.__exit__(None)


class _LevelKernel(Kernel):
    """The launch that the levels describe."""

    def __init__(self, builder: ProgramBuilder):
        nest = builder.nest
        self.scales = nest.scales()
        below = [one for one in nest.levels if one.word in (*_LANES, "thread", "threads")]
        threads: tuple[int, ...] = (128,)
        if below and below[-1].word in _LANES:
            threads = (math.prod(math.prod(one.extents) for one in below) * _LANES[below[-1].word],)
        elif below:
            threads = (
                below[-1].extents if len(below) == 1 else (math.prod(math.prod(o.extents) for o in below),)
            )
        super().__init__(threads=threads)
        [ranks] = self.scales.get("device", (1,))
        b.state().ranks = ranks

    def extents(self, grid: tuple[Any, ...]) -> dict[str, Any]:
        above = {k: v for k, v in self.scales.items() if k in ("cluster", "block", "node")}
        return above if "block" in above else above | {"block": (1,)}


@dataclass(frozen=True)
class ScaleContext:
    """The level that statements stand in, as TileScale's ``current_scale()`` gives it."""

    name: str
    workgroup: tuple[Any, ...]
    parent_name: str | None
    path: tuple[str, ...]


def current_scale() -> ScaleContext | None:
    """Return the innermost ``T.scale`` around the statement that is read; None outside of all."""
    builder = ACTIVE.get()
    levels = builder.nest.open if builder is not None else ()
    if not levels:
        return None
    path = tuple(level.word for level in levels)
    return ScaleContext(path[-1], levels[-1].extents, path[-2] if len(path) > 1 else None, path)


def _refused(what: str, advice: str) -> ProgramError:
    return ProgramError(f"{what} is not supported yet between scales", advice=advice)


def _check_between(builder: ProgramBuilder, level: ScaleLevel) -> None:
    """Nothing may stand between two levels that units of the larger one would have to do."""
    state, nest = b.state(), builder.nest
    if not nest.open:
        if state.programs:
            raise _refused(f'a second T.scale("{level.word}") beside the first', "write a second kernel")
        return
    outer = nest.open[-1].word
    advice = f'write it inside T.scale("{level.word}")'
    if outer in (*PHYSICAL, *RANKS) and state.assumed:
        raise _refused(f'T.assume between T.scale("{outer}") and T.scale("{level.word}")', advice)
    if any(one.word == level.word and one not in nest.open for one in state.levels):
        raise _refused(f'a second T.scale("{level.word}") in one T.scale("{outer}")', advice)
    if outer in ("thread", *_LANES) and level.word not in ("thread", *_LANES):
        raise _refused(f'T.scale("{level.word}") inside T.scale("{outer}")', "write it outside")
    if builder.reader.branches:
        raise _refused(f'an if around T.scale("{level.word}")', advice)
    allowed: tuple[type[n.Node], ...] = _NO_OPERATION
    if outer == "block" and not nest.clustered:
        allowed = (*_NO_OPERATION, n.Copy, n.Fill)
    for body in builder.bodies:
        for node in n.walk(tuple(body.nodes)):
            if not isinstance(node, (*allowed, n.ScaleRegion)):
                name = type(node).__name__.lower()
                raise _refused(f'a {name} between T.scale("{outer}") and T.scale("{level.word}")', advice)


def _index(builder: ProgramBuilder, level: ScaleLevel) -> Any:
    """The number of a unit at a level, or its coordinates."""
    if level.word in _LANES:
        return get_thread_binding(0) // _LANES[level.word]
    if level.word in ("thread", "threads"):
        inside = [one for one in builder.nest.open if one.word in _LANES]
        found = [get_thread_binding(axis) for axis in range(len(level.extents))]
        if inside:
            return operate("%", found[0], _LANES[inside[-1].word])
        return found[0] if len(found) == 1 else tuple(found)
    if level.word in ("device", "gpu"):
        return Value(rank_of_device()) if b.state().ranks > 1 else 0
    return builder.nest.coordinates(level)


# --- products at the scale of a device -----------------------------------------------------------------


def is_device_product(word: str = "gemm") -> bool:
    """Whether a product stands directly in ``T.scale("device")``; at levels of clusters there is none."""
    levels = current().nest.open
    innermost = levels[-1].word if levels else "block"
    if innermost in ("cluster", "node", *PHYSICAL, *RANKS):
        raise ProgramError(
            f'T.{word} in T.scale("{innermost}") is not supported yet: no scale but thread, warp, block and '
            "device has products",
            advice='put T.scale("block", ...) around it',
        )
    return innermost == "device"


def device_product(A: Any, B: Any, C: Any, options: dict[str, Any]) -> None:
    """``C = A @ B`` of whole tensors, by blocks of 128 × 128."""
    builder = current()
    _check_product(A, B, C, options)
    (rows, depth), columns = A.shape, B.shape[1]
    grid = ScaleLevel("block", (rows // _TILES[0], columns // _TILES[1]))
    levels = (*builder.nest.levels, grid, ScaleLevel("thread", (128,)))
    if grid not in builder.nest.levels:
        raise LevelFound(levels)
    if any(not isinstance(node, n.Hint) for body in builder.bodies for node in n.walk(tuple(body.nodes))):
        raise _no_product("with sibling statements in its scale", "a kernel of one T.gemm")
    bx, by = builder.nest.coordinates(grid)
    builder.reader.call(builder.place, Macro(_blocks), A, B, C, bx, by, depth // _TILES[2])


def _check_product(A: Any, B: Any, C: Any, options: dict[str, Any]) -> None:
    for name, tensor in zip("ABC", (A, B, C), strict=True):
        if not isinstance(tensor, b.Buffer) or tensor.level != "tensor" or len(tensor.shape) != 2:
            raise _no_product(f"whose operand {name} is not a whole matrix in global memory", "give tensors")
        if tensor.dtype != "f16":
            raise _no_product(f"whose operand {name} is {tensor.dtype}", "use float16")
    said = next((word for word, value in options.items() if value), None)
    if said is not None:
        raise _no_product(f"with {said}=", f"leave {said} out")
    extents = (A.shape[0], B.shape[1], A.shape[1])
    if any(isinstance(e, Value) for e in extents) or any(e % t for e, t in zip(extents, _TILES, strict=True)):
        raise _no_product(f"of {extents}, not divisible by tiles of {_TILES}", "use such extents")


def _no_product(what: str, advice: str) -> ProgramError:
    return ProgramError(
        f"a device-scale GEMM {what} is not supported yet",
        advice=f'{advice}, or write T.scale("block", ...) and T.scale("thread", ...) around tiles',
    )


def _blocks(A: Any, B: Any, C: Any, bx: Any, by: Any, steps: int) -> None:
    rows, columns, depth = _TILES
    a, bb = b.alloc_shared((rows, depth), A.dtype), b.alloc_shared((depth, columns), B.dtype)
    total = b.alloc_fragment((rows, columns), "float32")
    ops.clear(total)
    for k in Pipelined(steps, num_stages=3):
        ops.copy(a, A[bx * rows, k * depth])
        ops.copy(bb, B[k * depth, by * columns])
        ops.gemm(a, bb, total)
    ops.copy(C[bx * rows, by * columns], total)
