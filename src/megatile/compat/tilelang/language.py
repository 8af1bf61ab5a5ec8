"""``import megatile.tilelang.language as T``: TileLang's words over megatile's tile language."""

from __future__ import annotations

from typing import Any

from megatile.compat.tilelang import functions as _functions
from megatile.compat.tilelang import hints as _hints
from megatile.compat.tilelang import launch as _launch
from megatile.compat.tilelang import loops as _loops
from megatile.compat.tilelang import operations as _operations
from megatile.compat.tilelang.buffers import (
    Buffer,
    StridedTensorProxy,
    TensorProxy,
    alloc_barrier,
    alloc_fragment,
    alloc_global,
    alloc_local,
    alloc_shared,
    alloc_tmem,
    alloc_var,
    empty,
    symbols,
)
from megatile.compat.tilelang.dtypes import NAMES, dtype
from megatile.compat.tilelang.source import prim_func
from megatile.compat.tilelang.reader import Macro
from megatile.compat.tilelang.synchronise import barrier_arrive, barrier_wait, nothing, ws
from megatile.language.tile import functions as _base
from megatile.language.tile.operations import GemmWarpPolicy, device_assert, print_

Tensor = TensorProxy()
StridedTensor = StridedTensorProxy()
macro = Macro
const = dynamic = symbolic = symbols
alloc_cluster_barrier = alloc_barrier
WarpSpecialize = ws
mbarrier_arrive = barrier_arrive
mbarrier_wait_parity = barrier_wait


def _words(module: Any, names: str) -> dict[str, Any]:
    return {name: getattr(module, name) for name in names.split()}


def print(obj: Any = None, msg: str = "", *_: Any, **__: Any) -> None:
    """Show a tile, an element or a text."""
    print_(*([msg] if msg else []), *([] if obj is None else [obj]))


globals().update(
    {name: dtype(name) for name in NAMES}
    | _words(
        _base,
        "exp exp2 log log2 sqrt rsqrt sin cos tanh erf sigmoid abs floor ceil max min if_then_else ceildiv clamp",
    )
    | _words(
        _functions,
        "floordiv floormod truncdiv truncmod shift_left shift_right bitwise_and bitwise_or bitwise_xor bitwise_not "
        "Div fdiv Cast cast reinterpret infinity max_value min_value power log10 log1p tan fast_rcp isnan isinf round "
        "trunc likely any_of all_of Not fma",
    )
    | _words(_loops, "Parallel Pipelined serial unroll vectorized Persistent")
    | _words(
        _launch,
        "Kernel get_thread_binding get_thread_bindings get_block_binding get_block_bindings get_thread_extent "
        "get_block_extent",
    )
    | _words(
        _operations,
        "copy async_copy transpose gemm wgmma_gemm tcgen05_gemm fill clear reduce reduce_sum reduce_max reduce_min "
        "reduce_abssum reduce_absmax cumsum atomic_add atomic_max atomic_min atomic_addx2 atomic_addx4 atomic_load "
        "atomic_store",
    )
    | {
        word: _hints.hint(word)
        for word in "use_swizzle annotate_layout annotate_safe_value annotate_l2_hit_ratio annotate_min_blocks_per_sm "
        "annotate_restrict_buffers set_max_nreg inc_max_nreg dec_max_nreg annotate_producer_reg_dealloc "
        "annotate_consumer_reg_alloc no_set_max_nreg disable_warp_group_reg_alloc".split()
    }
    | {
        word: nothing
        for word in "sync_threads sync_warp sync_global fence_proxy_async wait_wgmma warpgroup_arrive "
        "warpgroup_commit_batch warpgroup_wait warpgroup_fence_operand tma_store_arrive tma_store_wait "
        "tcgen05_before_thread_sync tcgen05_after_thread_sync assume evaluate import_source pdl_trigger pdl_sync "
        "cp_async_barrier_noinc mbarrier_expect_tx ptx_wait_group ptx_commit_group cluster_sync cluster_arrive "
        "cluster_wait deallocate_tmem".split()
    }
)
pow = power = _functions.power
Serial, Unroll, Vectorized, parallel = _loops.serial, _loops.unroll, _loops.vectorized, _loops.Parallel
Select = _base.if_then_else
FloorDiv, FloorMod = _functions.floordiv, _functions.floormod
c2d_im2col = _operations.refuse("c2d_im2col", "copy the window in a loop")


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    from megatile.core.errors import did_you_mean
    from megatile.language.tile.errors import ProgramError

    known = [n for n in globals() if not n.startswith("_")]
    raise ProgramError(
        f"T.{name} is not in megatile's TileLang spelling", advice=did_you_mean(name, known, what="words of T")
    )


__all__ = [name for name in globals() if not name.startswith("_") and name not in ("annotations", "Any")]
_ = (Buffer, GemmWarpPolicy, device_assert)
