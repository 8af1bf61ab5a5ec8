"""Decompositions into rings answer at once; the local attention kernel is about as fast as torch's own."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from harness import Row, at_most, bench, best_of, ratio_at_most, side_by_side, sized
from megatile.collectives.decompositions import gen_hamilton_circle


@bench("decompositions")
def decompositions() -> Iterator[Row]:
    slowest = max(best_of(lambda n=n: gen_hamilton_circle(n), repeat=1) for n in range(1, sized(129, 10)))
    yield Row("rings of K*_n, the slowest n up to 128", slowest, "s", bar=at_most(0.1))
    n = sized(1024, 16)
    yield Row(f"rings of K*_{n}", best_of(lambda: gen_hamilton_circle(n), repeat=2), "s", bar=at_most(5.0))


@bench("local attention", needs=["torch"])
def local_attention() -> Iterator[Row]:
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    from megatile.attention import hamilton_attention

    torch.set_num_threads(1)
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, sized(1024, 64), 8, 64) for _ in range(3))
    inner = [x.transpose(1, 2) for x in (q, k, v)]
    with torch.no_grad():
        for causal in (False, True):
            ours = best_of(lambda c=causal: hamilton_attention(q, k, v, causal=c))
            torchs = best_of(lambda c=causal: scaled_dot_product_attention(*inner, is_causal=c))
            name = f"attention forward, {'causal' if causal else 'full'}"
            yield Row(name, ours, "s", torchs, "torch SDPA", ratio_at_most(1 / 0.8))


SHAPES = [
    (64, 8, 8, 64), (128, 8, 8, 64), (256, 8, 2, 64), (512, 8, 8, 128),
    (1024, 8, 2, 128), (2048, 8, 8, 64), (4096, 4, 1, 128),
]  # fmt: skip
"""Tokens, heads, KV heads, dim."""


@bench("local attention kernel, shapes", needs=["torch"])
def kernel_shapes() -> Iterator[Row]:
    """The kernel alone, with its log-sum-exp."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    from megatile.attention.block_kernels import KernelOptions
    from megatile.attention.flash import choose_kernel
    from megatile.attention.schedules.bands import Band, MaskTile

    torch.set_num_threads(1)
    torch.manual_seed(0)
    with torch.no_grad():
        for (tokens, heads, kv_heads, dim), kind, causal in product(
            sized(SHAPES, SHAPES[:1]), (torch.float32, torch.bfloat16), (False, True)
        ):
            q, k, v = (torch.randn(1, tokens, h, dim).to(kind) for h in (heads, kv_heads, kv_heads))
            inner = [x.transpose(1, 2) for x in (q, k, v)]
            options = KernelOptions(dim**-0.5)
            kernel, tile = choose_kernel(q, v, options), MaskTile(Band(None, 0 if causal else None))
            ours, torchs = side_by_side(
                lambda kernel=kernel, a=(q, k, v, tile, options): kernel.forward(*a),
                lambda x=inner, c=causal: scaled_dot_product_attention(*x, is_causal=c, enable_gqa=True),
                5 if tokens > 512 else 30,
            )
            what = f"{tokens} x {heads}/{kv_heads} x {dim} {str(kind)[6:]} {'causal' if causal else 'full'}"
            yield Row(what, ours, "s", torchs, "torch SDPA", ratio_at_most(1 / 0.8))
