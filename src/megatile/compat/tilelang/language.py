"""``import megatile.tilelang.language as T``: TileLang's words over megatile's tile language."""

from __future__ import annotations

from typing import Any

from megatile.compat.tilelang import (
    atomics,
    buffers as _buffers,
    functions,
    launch,
    onesided,
    operations,
    reducers,
    scaled,
    scales,
    simt,
    vectors,
    warps,
)
from megatile.compat.tilelang.dtypes import NAMES, VECTORS, dtype
from megatile.compat.tilelang.kernel import NoCounterpartError
from megatile.compat.tilelang.reader import Macro
from megatile.compat.tilelang.source import prim_func
from megatile.compat.tilelang.tile_scheduler import PersistentTileScheduler
from megatile.core.errors import did_you_mean
from megatile.language.tile import functions as base, operations as tile_operations
from megatile.language.tile.errors import ProgramError


def _show(obj: Any = None, msg: str = "", *_: Any, **__: Any) -> None:
    """Show a tile, an element or a text."""
    tile_operations.print_(*([msg] if msg else []), *([] if obj is None else [obj]))


def _words(module: Any, names: str) -> dict[str, Any]:
    return {name: getattr(module, name) for name in names.split()}


WORDS: dict[str, Any] = {
    **{name: dtype(name) for name in (*NAMES, *VECTORS)},
    **_words(
        base,
        "exp exp2 log log2 sqrt rsqrt sin cos tanh erf sigmoid abs floor ceil max min if_then_else ceildiv",
    ),
    **_words(
        functions,
        "floordiv floormod truncdiv truncmod shift_left shift_right bitwise_and bitwise_or bitwise_xor "
        "bitwise_not Div fdiv Cast cast reinterpret infinity max_value min_value power log10 log1p exp10 tan "
        "fast_rcp isnan isinf isfinite clamp align_up round trunc likely any_of all_of Not fma const_value",
    ),
    **_words(
        launch,
        "Kernel ClusterKernel get_thread_binding get_thread_bindings get_block_binding get_block_bindings "
        "get_thread_extent get_block_extent grid Parallel Pipelined serial unroll vectorized Persistent "
        "barrier_arrive barrier_wait ws tcgen05_mma_arrive assume block_rank_in_cluster cluster_sync "
        "annotate_layout",
    ),
    **_words(
        operations,
        "copy async_copy tma_copy copy_cluster transpose gemm wgmma_gemm tcgen05_gemm fill clear reduce "
        "reduce_sum "
        "reduce_max reduce_min reduce_abssum reduce_absmax reduce_bitand reduce_bitor reduce_bitxor cumsum "
        "cummax im2col",
    ),
    **_words(
        _buffers,
        "alloc_barrier alloc_fragment alloc_global alloc_local "
        "annotate_safe_value alloc_buffer alloc_shared alloc_tmem alloc_var empty reshape view",
    ),
    **_words(
        simt,
        "access_ptr address_of ptx_cp_async thread_binding sync_grid attr comm_reducer "
        "tvm_thread_allreduce call_extern dp4a",
    ),
    **_words(scaled, "mma_gemm_blockscaled"),
    **_words(reducers, "alloc_reducer reducer_init reducer_update finalize_reducer"),
    **_words(warps, warps.WORDS),
    **_words(atomics, atomics.WORDS),
    **vectors.WORDS,
    **_words(scales, "Scale"),
    **_words(onesided, onesided.WORDS),
    **{
        word: launch.hint(word)
        for word in "use_swizzle annotate_l2_hit_ratio "
        "annotate_min_blocks_per_sm annotate_restrict_buffers set_max_nreg inc_max_nreg dec_max_nreg "
        "annotate_compile_flags annotate_pass_configs func_attr "
        "annotate_producer_reg_dealloc annotate_consumer_reg_alloc no_set_max_nreg "
        "disable_warp_group_reg_alloc import_source".split()
    },
    **{
        word: launch.nothing
        for word in "sync_threads sync_warp sync_global fence_proxy_async wait_wgmma warpgroup_arrive "
        "warpgroup_commit_batch warpgroup_wait warpgroup_fence_operand tma_store_arrive tma_store_wait "
        "tcgen05_before_thread_sync tcgen05_after_thread_sync evaluate pdl_trigger pdl_sync "
        "mbarrier_expect_tx ptx_wait_group ptx_commit_group named_barrier_arrive "
        " cluster_arrive cluster_wait deallocate_tmem fence quiet fence_cta fence_gpu fence_sys".split()
    },
    "Tensor": _buffers.TensorProxy(),
    "StridedTensor": _buffers.StridedTensorProxy(),
    "Layout": launch.Layout,
    "Fragment": launch.Layout,
    "GemmWarpPolicy": tile_operations.GemmWarpPolicy,
    "PersistentTileScheduler": PersistentTileScheduler,
    "device_assert": tile_operations.device_assert,
    "dtype": dtype,
    "macro": Macro,
    "prim_func": prim_func,
    "print": _show,
}
FAST = {
    f"__{word}": functions.fast(word, WORDS[word]) for word in "exp exp10 log log2 log10 sin cos tan".split()
}
"""Fast functions of CUDA by TileLang's names: the exact ones."""
ALIASES = {
    "const": _buffers.symbols, "dynamic": _buffers.symbols, "symbolic": _buffers.symbols,
    "alloc_cluster_barrier": "alloc_barrier", "WarpSpecialize": "ws", "mbarrier_arrive": "barrier_arrive",
    "mbarrier_wait_parity": "barrier_wait", 
    "cp_async_barrier_noinc": "barrier_arrive", "pow": "power", "Serial": "serial", "Unroll": "unroll",
    "Vectorized": "vectorized", "parallel": "Parallel", "Select": "if_then_else", "FloorDiv": "floordiv",
    "FloorMod": "floormod", "scale": "Scale", "c2d_im2col": "im2col",
    "Buffer": "Tensor", "SharedBuffer": "Tensor", "FragmentBuffer": "Tensor",
    "LocalBuffer": "Tensor", **onesided.ALIASES, **FAST, "__pow": "power", "__ffs": warps.ffs,
}  # fmt: skip
WORDS |= {name: WORDS[word] if isinstance(word, str) else word for name, word in ALIASES.items()}
globals().update(WORDS)
__all__ = list(WORDS)


_POINTERS = "give tensors as arguments (A: T.Tensor((M, N), dtype))"
_DEQUANTISED = "multiply by the scales in T.Parallel, then T.gemm"
LACKS = {
    "ptr": _POINTERS, "make_tensor": _POINTERS, "tcgen05_gemm_blockscaled": _DEQUANTISED,
    "tcgen05_cp_warpx4": _DEQUANTISED, "tcgen05_sf_warp_transpose": _DEQUANTISED,
    "make_blockscaled_gemm_layout": _DEQUANTISED,
}  # fmt: skip
"""Words of TileLang that are refused, with what to write in their place."""


def __getattr__(name: str) -> Any:
    if name in LACKS:
        raise ProgramError(f"T.{name} has no counterpart in megatile", advice=LACKS[name])
    if name.startswith("__"):
        raise NoCounterpartError(f"T.{name} has no counterpart in megatile", advice="use the words of T")
    raise ProgramError(
        f"T.{name} is not in megatile's TileLang spelling",
        advice=did_you_mean(name, WORDS, what="words of T"),
    )
