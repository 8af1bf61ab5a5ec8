"""Tile operations in TileLang's order: the source first."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from megatile.compat.tilelang import buffers as b
from megatile.compat.tilelang.dtypes import overflows
from megatile.compat.tilelang.launch import barrier_arrive, block_of_cluster
from megatile.compat.tilelang.reducers import identity
from megatile.compat.tilelang.scales import device_product, is_device_product
from megatile.core.dtypes import is_float
from megatile.core.expr import Const, Expr, Symbol as Var, known, simplify
from megatile.ir import nodes as n
from megatile.language.tile import operations as ops
from megatile.language.tile.builder import current
from megatile.language.tile.errors import ProgramError
from megatile.language.tile.functions import if_then_else, max as maximum
from megatile.language.tile.operations import GemmWarpPolicy
from megatile.language.tile.regions import Operand, matched, operand
from megatile.language.tile.scalars import Value, as_expr, operate
from megatile.language.tile.tiles import Ref, Tile


def _region(value: Any) -> Any:
    """A variable is its one element, a barrier's index an element of it."""
    return value.tile if isinstance(value, b.Variable) else value


def copy(src: Any, dst: Any, *_: Any, barrier: Any = None, **__: Any) -> None:
    """Copy ``src`` to ``dst``, converting the dtype; how a GPU does it (TMA, width) is no matter here."""
    to, source = operand(_region(dst), "the destination"), operand(_region(src), "the source")
    if current().parallel:
        _copy_elements(to, source)
        return
    if overflows(to.tile.dtype, source.tile.dtype):
        ops.copy(_region(dst), _saturated(to, source))
    else:
        ops.copy(_region(dst), _region(src))
    if b.safe_value(source.tile) is not None:
        _fill_outside(to, source)


def _copy_elements(to: Operand, source: Operand) -> None:
    """A copy inside elementwise code: element by element, for each iteration."""
    builder = current()
    left, right = matched(to, source)
    whole = Operand(to.tile, left.dims), Operand(source.tile, right.dims)
    spans = [e for e in left.extents if known(simplify(e)) != 1]
    if len(spans) != sum(known(simplify(e)) != 1 for e in right.extents):
        raise ProgramError(
            f"T.copy in T.Parallel: '{to.tile.name}' and '{source.tile.name}' have different extents",
            advice="copy equal parts",
        )
    names = [builder.fresh("i") for _ in spans]
    with ExitStack() as loops:
        for name, extent in zip(names, spans, strict=True):
            loops.enter_context(
                builder.inside(n.Loop, name, kind="serial", var=name, start=Const(0), stop=extent)
            )
        target, value = (_element(one, names) for one in whole)
        target.tile[tuple(map(Value, target.index))] = value.tile[tuple(map(Value, value.index))]


def _element(side: Operand, names: list[str]) -> Any:
    """The element of a region at loop variables; extents of one have none."""
    left = iter(names)
    index: list[Expr] = [
        Const(0) if known(simplify(extent)) == 1 else Var(next(left)) for extent in side.extents
    ]
    return ops.element_of(side, index)


def _saturated(to: Operand, source: Operand) -> Any:
    """A tile of fp8 numbers with what is to be copied, none of them infinite."""
    extents = [known(e) for e in (to if source.is_anchor else source).extents]
    part = b.alloc_fragment(extents, to.tile.dtype)
    if source.tile.level == "tensor":
        wide = b.alloc_fragment(extents, source.tile.dtype)
        ops.copy(wide, _given(source))
        source = operand(wide, "the source")
    with _each(part) as indices:
        part[tuple(map(Value, indices))] = ops.element_of(source, indices)
    return part


def _given(side: Operand) -> Any:
    return side.tile if side.is_whole else Ref(side.tile, side.dims)


@contextmanager
def _each(tile: Tile) -> Iterator[list[Expr]]:
    """The indices of every element, at once."""
    names = tuple(current().fresh("i") for _ in tile.shape)
    with ops.elementwise_nest(names, tuple(map(as_expr, tile.shape))):
        yield [Var(name) for name in names]


def _fill_outside(to: Operand, source: Operand) -> None:
    """Put the tensor's safe value where a copy read over its edge."""
    if not to.is_whole or to.tile.level == "tensor":
        raise ProgramError(
            f"T.copy of '{source.tile.name}', which has a safe value, into a part of '{to.tile.name}'",
            advice="copy into a whole tile in shared memory or registers first",
        )
    _, region = matched(to, source)
    read = Operand(source.tile, region.dims)
    with _each(to.tile) as indices:
        element = to.tile[tuple(map(Value, indices))]
        place = ops.element_of(read, indices[len(indices) - len(read.extents) :])
        here = b.inside(source.tile, place.index)
        to.tile[tuple(map(Value, indices))] = if_then_else(here, element, b.safe_value(source.tile))


tma_copy = copy


def async_copy(src: Any, dst: Any, *rest: Any, **options: Any) -> None:
    """Copy from global to shared memory, as ``cp.async`` does."""
    sides = operand(_region(src), "the source"), operand(_region(dst), "the destination")
    scopes = [side.tile.scope() for side in sides if isinstance(side.tile, b.Buffer)]
    if scopes != ["global", "shared.dyn"]:
        raise ProgramError(
            "T.async_copy only supports global->shared/shared.dyn copies", advice="T.copy(src, dst)"
        )
    copy(src, dst, *rest, **options)


def copy_cluster(src: Any, dst: Any, *, dst_block: Any = None, remote_barrier: Any = None, **_: Any) -> None:
    """Copy to the tile of another block of the cluster, or, by multicast, to that of every block itself."""
    size = math.prod(b.state().cluster)
    if dst_block is None or size == 0:
        copy(src, dst)
        return
    if remote_barrier is not None:
        raise ProgramError(
            "T.copy_cluster with remote_barrier= is not supported", advice="T.cluster_sync() after it"
        )
    ops.copy(_region(dst), _region(src), dst=block_of_cluster(dst_block))


def transpose(src: Any, dst: Any) -> None:
    """``dst[..., j, i] = src[..., i, j]``."""
    left, right = operand(src, "the source of T.transpose"), operand(dst, "the destination of T.transpose")
    builder = current()
    if len(left.extents) < 2 or len(left.extents) != len(right.extents):
        raise ProgramError(
            f"T.transpose of {len(left.extents)} dimensions into {len(right.extents)}",
            advice="give both sides the same number of dimensions, at least two",
        )
    names = tuple(builder.fresh("i") for _ in left.extents)
    *leading, i, j = (Var(name) for name in names)
    value = as_expr(ops.element_of(left, [*leading, i, j]))
    target = ops.element_of(right, [*leading, j, i])
    with ops.elementwise_nest(names, left.extents):
        builder.store(n.Store, target=target.tile.name, index=target.index, value=value)


def gemm(
    A: Any, B: Any, C: Any, transpose_A: bool = False, transpose_B: bool = False,
    policy: Any = GemmWarpPolicy.Square, clear_accum: Any = False, k_pack: int = 1, wg_wait: int = 0,
    mbar: Any = None, **_: Any,
) -> None:  # fmt: skip
    """``C += A @ B``; of whole tensors directly in ``T.scale("device")``, ``C = A @ B``."""
    if is_device_product():
        said = {"transpose_A": transpose_A, "transpose_B": transpose_B, "clear_accum": clear_accum,
                "mbar": mbar, "wg_wait": wg_wait, "policy": policy is not GemmWarpPolicy.Square,
                "k_pack": k_pack != 1}  # fmt: skip
        device_product(A, B, C, said)
        return
    if isinstance(clear_accum, Value):
        with current().inside(n.If, condition=as_expr(clear_accum)):
            ops.clear(C)
        clear_accum = False
    ops.gemm(A, B, C, transpose_A, transpose_B, _policy(policy), bool(clear_accum))
    if mbar is not None:
        barrier_arrive(mbar)


def wgmma_gemm(*operands: Any, **options: Any) -> None:
    """``C += A @ B``, as every product."""
    if is_device_product("wgmma_gemm"):
        raise ProgramError(
            "a device-scale GEMM by T.wgmma_gemm is not supported yet", advice="T.gemm(A, B, C)"
        )
    if options.pop("use_2cta", False):
        raise ProgramError(
            "a product of two blocks together (use_2cta=True) has no counterpart in megatile",
            advice="let each block multiply with all columns of B, without use_2cta",
        )
    gemm(*operands, **options)


tcgen05_gemm = wgmma_gemm


def _policy(policy: Any) -> Any:
    return policy if isinstance(policy, GemmWarpPolicy) else GemmWarpPolicy.Square


def fill(buffer: Any, value: Any, *_: Any, **__: Any) -> None:
    """Every element becomes ``value``; of one element, that one."""
    ops.fill(_region(buffer), value)


def clear(buffer: Any, *_: Any, **__: Any) -> None:
    fill(buffer, 0)


_LEAST = {"max": -math.inf, "min": math.inf, "absmax": 0.0}
"""What NaN counts as in reductions that are told to ignore it."""


def _without_nan(buffer: Any, least: float) -> Any:
    """A tile with ``least`` in place of NaN."""
    side = operand(_region(buffer), "the source of a reduction")
    clean = b.alloc_fragment([known(e) for e in side.extents], side.tile.dtype)
    with _each(clean) as indices:
        value = ops.element_of(side, indices)
        clean[tuple(map(Value, indices))] = if_then_else(operate("!=", value, value), least, value)
    return clean


def reduce(
    buffer: Any,
    out: Any,
    reduce_type: str,
    dim: int = -1,
    clear: bool = True,
    *_: Any,
    nan_propagate: bool | None = None,
    **__: Any,
) -> None:
    """The reduction over ``dim``; without ``clear`` it continues from ``out``."""
    if nan_propagate is False and reduce_type in _LEAST:
        buffer = _without_nan(buffer, _LEAST[reduce_type])
    if reduce_type in _BITS:
        _reduce_bits(reduce_type, buffer, _region(out), dim, clear)
    else:
        ops.reduce(reduce_type, buffer, _region(out), dim, clear)


_BITS = {"bitand": "&", "bitor": "|", "bitxor": "^"}


def _reduce_bits(op: str, buffer: Any, out: Any, dim: int, clear: bool) -> None:
    """A reduction by bits: one element after the other."""
    left, right = operand(_region(buffer), f"the source of T.reduce_{op}"), operand(out, "its result")
    if is_float(left.tile.dtype):
        raise ProgramError(f"T.reduce_{op} of {left.tile.dtype}", advice="give integers")
    dim %= len(left.extents)
    if clear:
        fill(out, identity(op, right.tile.dtype))
    names = tuple(current().fresh("i") for _ in left.extents)
    rest = [d for d in range(len(names)) if d != dim]
    with (
        _each_of([names[d] for d in rest], [left.extents[d] for d in rest]),
        _serially(names[dim], left.extents[dim]),
    ):
        value = ops.element_of(left, [Var(name) for name in names])
        kept = [Var(names[d]) for d in rest] if len(right.extents) == len(rest) else [
            Const(0) if d == dim else Var(name) for d, name in enumerate(names)
        ]  # fmt: skip
        target = ops.element_of(right, kept or [Const(0)])
        _put(target, operate(_BITS[op], target, value))


def _reduction(op: str) -> Any:
    def reduction(buffer: Any, out: Any, dim: int = -1, clear: bool = True, *_: Any, **words: Any) -> None:
        reduce(buffer, out, op, dim, clear, **words)

    reduction.__name__ = reduction.__qualname__ = f"reduce_{op}"
    return reduction


(
    reduce_sum,
    reduce_max,
    reduce_min,
    reduce_abssum,
    reduce_absmax,
    reduce_bitand,
    reduce_bitor,
    reduce_bitxor,
) = map(_reduction, "sum max min abssum absmax bitand bitor bitxor".split())


def cumsum(src: Any, dst: Any = None, dim: int = 0, reverse: bool = False, *_: Any, **__: Any) -> None:
    ops.cumsum(src, dst, dim, reverse)


def cummax(src: Any, dst: Any = None, dim: int = 0, reverse: bool = False, *_: Any, **__: Any) -> None:
    """The greatest element so far along ``dim``, in place without ``dst``."""
    left = operand(_region(src), "the source of T.cummax")
    right = left if dst is None else operand(_region(dst), "the result of T.cummax")
    dim %= len(left.extents)
    names = tuple(current().fresh("i") for _ in left.extents)
    rest = [d for d in range(len(names)) if d != dim]
    with (
        _each_of([names[d] for d in rest], [left.extents[d] for d in rest]),
        _serially(names[dim], left.extents[dim]),
    ):
        along = Value(Var(names[dim]))
        place = left.extents[dim] - 1 - as_expr(along) if reverse else as_expr(along)
        index: list[Expr] = [place if d == dim else Var(name) for d, name in enumerate(names)]
        before = [place + (1 if reverse else -1) if d == dim else e for d, e in enumerate(index)]
        value, last = ops.element_of(left, index), ops.element_of(right, before)
        target = ops.element_of(right, index)
        with current().inside(n.If, condition=as_expr(operate("==", along, 0))):
            _put(target, value)
        with current().inside(n.If, condition=as_expr(operate(">", along, 0))):
            _put(target, maximum(value, last))


def _put(target: Ref, value: Any) -> None:
    current().store(n.Store, target=target.tile.name, index=target.index, value=as_expr(value))


@contextmanager
def _each_of(names: list[str], extents: list[Expr]) -> Iterator[None]:
    """Elementwise code over some dimensions; of one unit where there are none."""
    if not names:
        names, extents = [current().fresh("i")], [Const(1)]
    with ops.elementwise_nest(tuple(names), tuple(extents)):
        yield


@contextmanager
def _serially(name: str, extent: Expr) -> Iterator[None]:
    with current().inside(n.Loop, name, kind="serial", var=name, start=Const(0), stop=extent):
        yield


def im2col(
    img: Any,
    col: Any,
    nhw_step: Any,
    c_step: Any,
    kernel: int,
    stride: int,
    dilation: int,
    pad: int,
    **_: Any,
) -> None:
    """A tile of the windows of a convolution: a row for each place of the result."""
    builder = current()
    rows, columns = col.shape
    height, width, channels = img.shape[1:]
    reach = dilation * (kernel - 1) + 1
    out_h, out_w = ((e + 2 * pad - reach) // stride + 1 for e in (height, width))
    names = builder.fresh("i"), builder.fresh("j")
    place, inner = Value(Var(names[0])) + nhw_step * rows, Value(Var(names[1])) + c_step * columns
    y = place % (out_h * out_w) // out_w * stride + inner // channels // kernel * dilation - pad
    x = place % out_w * stride + inner // channels % kernel * dilation - pad
    inside = operate("and", operate("and", y >= 0, y < height), operate("and", x >= 0, x < width))
    with ops.elementwise_nest(names, (as_expr(rows), as_expr(columns))):
        value = if_then_else(inside, img[place // (out_h * out_w), y, x, inner % channels], 0)
        col[Value(Var(names[0])), Value(Var(names[1]))] = value
