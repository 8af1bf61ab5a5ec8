"""Predicted attention beside published measurements, as a section of docs/fidelity.md; building plans;
the whole function on one rank beside torch's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, product

import fidelity_attention as fidelity
from harness import Bar, Row, bench, best_of, in_turn, ratio_at_most, sized, smoke
from megatile.attention.plans import Problem, attention_plan


@bench("published speed-ups of Hamilton attention")
def speedups() -> Iterator[Row]:
    compared = list(islice(fidelity.compare(), sized(None, 3)))
    for row in compared:
        yield Row(row.name, row.ours, row.unit, row.published, "published", _bar(row))
    if not smoke():
        fidelity.write_page(compared)


def _bar(row: fidelity.Compared) -> Bar | None:
    """The side of what is allowed that is nearer."""
    if row.allowed is None:
        return None
    above = row.ours > row.published
    return Bar(1 + row.allowed if above else 1 - row.allowed, on_ratio=True, at_most=above)


@bench("building plans of attention")
def building() -> Iterator[Row]:
    for ranks in sized((8, 32), (2,)):
        problem = Problem(ranks * 512, causal=True)

        def build(ranks: int = ranks, problem: Problem = problem) -> object:
            return attention_plan("hamilton", problem, ranks=ranks)

        yield Row(f"plan of {ranks} ranks", best_of(build, 1), "s")


@bench("attention on one rank", needs=["torch"])
def one_rank() -> Iterator[Row]:
    """What the arguments, their checks and the layout cost: most of all where there is little else to do."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    from megatile.attention import hamilton_attention

    torch.set_num_threads(1)
    torch.manual_seed(0)
    with torch.no_grad():
        for tokens, causal in product(sized((64, 128, 256, 512, 1024, 4096), (64,)), (False, True)):
            q, k, v = (torch.randn(1, tokens, 8, 64) for _ in range(3))
            inner = [x.transpose(1, 2) for x in (q, k, v)]
            ours, torchs = in_turn(
                lambda x=(q, k, v), c=causal: hamilton_attention(*x, causal=c),
                lambda x=inner, c=causal: scaled_dot_product_attention(*x, is_causal=c),
                max(5, 100_000 // tokens),
            )
            name = f"{tokens} tokens, {'causal' if causal else 'full'}"
            yield Row(name, ours, "s", torchs, "torch SDPA", ratio_at_most(1 / 0.8))
