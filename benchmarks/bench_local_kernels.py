"""Decompositions into rings answer at once; the local attention kernel is about as fast as torch's own."""

from __future__ import annotations

from collections.abc import Iterator

from harness import Row, at_most, bench, best_of, ratio_at_most
from megatile.collectives.decompositions import gen_hamilton_circle


@bench("decompositions")
def decompositions() -> Iterator[Row]:
    slowest = max(best_of(lambda n=n: gen_hamilton_circle(n), repeat=1) for n in range(1, 129))
    yield Row("rings of K*_n, the slowest n up to 128", slowest, "s", bar=at_most(0.1))
    yield Row("rings of K*_1024", best_of(lambda: gen_hamilton_circle(1024), repeat=2), "s", bar=at_most(5.0))


@bench("local attention", needs=["torch"])
def local_attention() -> Iterator[Row]:
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    from megatile.attention import hamilton_attention

    torch.set_num_threads(1)
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 1024, 8, 64) for _ in range(3))
    inner = [x.transpose(1, 2) for x in (q, k, v)]
    with torch.no_grad():
        for causal in (False, True):
            ours = best_of(lambda c=causal: hamilton_attention(q, k, v, causal=c))
            torchs = best_of(lambda c=causal: scaled_dot_product_attention(*inner, is_causal=c))
            name = f"attention forward, {'causal' if causal else 'full'}"
            yield Row(name, ours, "s", torchs, "torch SDPA", ratio_at_most(1 / 0.8))
