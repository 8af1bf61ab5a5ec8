"""The tile language: ``import megatile.language as T``."""

from megatile.ir.layout import Partial, Replica, Shard
from megatile.language.collective import all_to_all, allgather, allreduce, broadcast, lse_merge, reduce_scatter
from megatile.language.kernel import Kernel, Scale
from megatile.language.loops import Parallel, Persistent, Pipelined, serial, unroll, vectorized
from megatile.language.functions import (
    abs,
    cast,
    ceil,
    ceildiv,
    clamp,
    cos,
    erf,
    exp,
    exp2,
    floor,
    if_then_else,
    infinity,
    log,
    log2,
    max,
    min,
    rsqrt,
    sigmoid,
    sin,
    sqrt,
    tanh,
)
from megatile.language.memory import alloc, alloc_fragment, alloc_local, alloc_shared, dynamic, view
from megatile.language.ops import (
    GemmWarpPolicy,
    atomic_add,
    atomic_max,
    atomic_min,
    barrier,
    clear,
    copy,
    cumsum,
    device_assert,
    fill,
    gemm,
    read_scalar,
    reduce_absmax,
    reduce_abssum,
    reduce_max,
    reduce_min,
    reduce_sum,
    signal,
    wait,
)
from megatile.language.ops import breakpoint_ as breakpoint
from megatile.language.ops import print_ as print
from megatile.language.program import macro, program
from megatile.language.tiles import Tensor

FullRow = Shard(0)
FullCol = Shard(1)
prim_func = program

__all__ = [name for name in dir() if not name.startswith("_")]
