"""The tile language: ``import megatile.language as T``."""

from types import FunctionType
from typing import TYPE_CHECKING, Any

from megatile.core.frames import without_frames
from megatile.core.placement import Partial, Replicate as Replica, Shard
from megatile.core.public import PublicNames
from megatile.language.tile.collectives import (
    all_to_all,
    allgather,
    allreduce,
    broadcast,
    lse_merge,
    reduce_scatter,
)
from megatile.language.tile.errors import WORDS as _WORDS
from megatile.language.tile.functions import (
    DTYPES as _DTYPES,
    abs,
    bitcast,
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
    round,
    rsqrt,
    sigmoid,
    silu,
    sin,
    sqrt,
    tanh,
)
from megatile.language.tile.loops import Parallel, Persistent, Pipelined, bounded, serial, unroll, vectorized
from megatile.language.tile.memory import alloc, alloc_fragment, alloc_local, alloc_shared, dynamic, view
from megatile.language.tile.operations import (
    GemmWarpPolicy,
    breakpoint_ as breakpoint,
    clear,
    copy,
    cumsum,
    device_assert,
    fill,
    gemm,
    print_ as print,
    read_scalar,
    reduce_absmax,
    reduce_abssum,
    reduce_max,
    reduce_min,
    reduce_prod,
    reduce_sum,
    use_swizzle,
)
from megatile.language.tile.program import macro, program
from megatile.language.tile.recording import Recording as _Recording  # noqa: F401  (records bare launches)
from megatile.language.tile.scales import Kernel, Scale, Symmetric, implementation
from megatile.language.tile.synchronise import (
    atomic_add,
    atomic_cas,
    atomic_exchange,
    atomic_max,
    atomic_min,
    barrier,
    fence,
    signal,
    wait,
)
from megatile.language.tile.tiles import Input, Tensor

if TYPE_CHECKING:  # names that are made below or stand above, for type checkers and editors
    from megatile.language.tile.functions import DType

    float64 = float32 = float16 = bfloat16 = tfloat32 = DType()
    float8_e4m3 = float8_e4m3fn = float8_e5m2 = float8_e8m0 = float8_e8m0fnu = DType()
    float4_e2m1 = float4_e2m1fn = DType()
    int64 = int32 = int16 = int8 = int4 = uint64 = uint32 = uint16 = uint8 = uint4 = bool = DType()
    autotune: Any

FullRow = Shard(0)
FullCol = Shard(1)
prim_func = program
scale = Scale

__all__ = [
    "FullCol",
    "FullRow",
    "GemmWarpPolicy",
    "Input",
    "Kernel",
    "Parallel",
    "Partial",
    "Persistent",
    "Pipelined",
    "Replica",
    "Scale",
    "Shard",
    "Symmetric",
    "Tensor",
    "abs",
    "all_to_all",
    "allgather",
    "alloc",
    "alloc_fragment",
    "alloc_local",
    "alloc_shared",
    "allreduce",
    "atomic_add",
    "atomic_cas",
    "atomic_exchange",
    "atomic_max",
    "atomic_min",
    "barrier",
    "bitcast",
    "bounded",
    "breakpoint",
    "broadcast",
    "cast",
    "ceil",
    "ceildiv",
    "clamp",
    "clear",
    "copy",
    "cos",
    "cumsum",
    "device_assert",
    "dynamic",
    "erf",
    "exp",
    "exp2",
    "fence",
    "fill",
    "floor",
    "gemm",
    "if_then_else",
    "implementation",
    "infinity",
    "log",
    "log2",
    "lse_merge",
    "macro",
    "max",
    "min",
    "prim_func",
    "print",
    "program",
    "read_scalar",
    "reduce_absmax",
    "reduce_abssum",
    "reduce_max",
    "reduce_min",
    "reduce_prod",
    "reduce_scatter",
    "reduce_sum",
    "round",
    "rsqrt",
    "scale",
    "serial",
    "sigmoid",
    "signal",
    "silu",
    "sin",
    "sqrt",
    "tanh",
    "unroll",
    "use_swizzle",
    "vectorized",
    "view",
    "wait",
]
__all__.extend(_DTYPES)
globals().update(_DTYPES)

for _word in set(__all__) - {"macro", "program", "prim_func"}:  # which look at their caller's frame
    if isinstance(globals()[_word], FunctionType):
        globals()[_word] = without_frames(globals()[_word])
_WORDS.update({word: globals()[word] for word in __all__})
__getattr__ = PublicNames(__name__, {})  # autotune, which stands above


def __dir__() -> list[str]:
    """Return the words of the language, without the modules and helpers that define them."""
    return sorted({*__all__, *__getattr__.places()})
