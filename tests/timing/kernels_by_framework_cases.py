"""What files that test kernels by framework share."""

import megatile as mt
from megatile.timing.formulas import kernel_times_us

H100 = mt.machine("dgx-h100")


SHAPES = {
    "gemm": {"m": 100, "n": 1000, "k": 3000},
    "grouped_gemm": {"m": 100, "n": 1000, "k": 3000, "groups": 7},
    "attention": {"batch": 5, "queries": 1, "context": 1000, "heads": 12, "kv_heads": 4},
    "mla": {"batch": 5, "queries": 1, "context": 1000, "heads": 16},
    "moe": {
        "tokens": 77,
        "hidden": 2048,
        "inner": 768,
        "topk": 8,
        "experts": 128,
        "expert_parallel": 4,
        "skew": 101,
    },
    "elementwise": {"bytes": 123456},
    "all_reduce": {"ranks": 8, "bytes": 123456},
    "all_gather": {"ranks": 8, "bytes": 123456},
    "moe_dispatch": {"hidden": 2048, "tokens": 100, "topk": 8, "experts": 128},
    "moe_combine": {"hidden": 2048, "tokens": 100, "topk": 8, "experts": 128, "low_latency": 1},
}


def us(operation, dtype="bf16", library="vllm", **extents):
    return kernel_times_us(H100, operation, dtype, library, **extents)
