"""A Llama-like block run by ``parallel`` with data has the products and collectives of a model's step."""

from __future__ import annotations

from typing import Any

import numpy as np
from tests.parallel.hosts import on_ranks

import megatile as mt
import megatile.parallel as tp
from megatile.parallel.comm_debug import comm_debug

TOKENS, HIDDEN, HEADS, DIM, INNER, RANKS = 6, 32, 8, 4, 64, 4
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": HIDDEN, "num_hidden_layers": 1, "vocab_size": 64,
    "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "intermediate_size": INNER,
}  # fmt: skip
RANDOM = np.random.default_rng(0)


def weights(rows: int, parts: int, columns: int) -> np.ndarray:
    return (RANDOM.standard_normal((rows, parts, columns)) / 8).astype(np.float32)


def attend(qkv: np.ndarray) -> np.ndarray:
    """Causal attention of [tokens, 3 × heads × dim]."""
    q, k, v = (part.reshape(TOKENS, -1, DIM).swapaxes(0, 1) for part in np.split(qkv, 3, axis=1))
    scores = q @ k.swapaxes(1, 2) / np.sqrt(DIM) + np.triu(np.full((TOKENS, TOKENS), -1e4), 1)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    return (shares / shares.sum(-1, keepdims=True) @ v).swapaxes(0, 1).reshape(TOKENS, -1)


def gated(both: np.ndarray) -> np.ndarray:
    gate, up = np.split(both, 2, axis=1)
    return gate / (1 + np.exp(-gate)) * up


def test_a_block_with_data_is_the_block_of_a_step() -> None:
    x = RANDOM.standard_normal((TOKENS, HIDDEN)).astype(np.float32)
    w_qkv, w_out = weights(HIDDEN, 3, HEADS * DIM), weights(HEADS * DIM, 1, HIDDEN)[:, 0]
    w_up, w_down = weights(HIDDEN, 2, INNER), weights(INNER, 1, HIDDEN)[:, 0]
    middle = attend(x @ w_qkv.reshape(HIDDEN, -1)) @ w_out
    expected = gated(middle @ w_up.reshape(HIDDEN, -1)) @ w_down
    shapes: set[tuple[int, int, int]] = set()

    def body(rank: int, torch: Any) -> Any:
        tp.initialize_model_parallel(RANKS)
        made = {"dtype": "f16", "bias": False, "torch": torch}

        def layer(kind: Any, rows: int, columns: int, own: np.ndarray) -> Any:
            found = kind(rows, columns, **made)
            found.weight.copy_(own)
            shapes.add((TOKENS, found.weight.shape[1], found.weight.shape[0]))
            return lambda values: found(torch.empty(values.shape, dtype="f16").copy_(values)).numpy()

        def columns_of(whole: np.ndarray) -> np.ndarray:
            return np.split(whole, RANKS, axis=2)[rank].reshape(HIDDEN, -1)

        qkv = layer(tp.ColumnParallelLinear, HIDDEN, 3 * HEADS * DIM, columns_of(w_qkv))
        out = layer(tp.RowParallelLinear, HEADS * DIM, HIDDEN, np.split(w_out, RANKS)[rank])
        up = layer(tp.ColumnParallelLinear, HIDDEN, 2 * INNER, columns_of(w_up))
        down = layer(tp.RowParallelLinear, INNER, HIDDEN, np.split(w_down, RANKS)[rank])
        return down(gated(up(out(attend(qkv(x).astype(np.float32)))).astype(np.float32)))

    with comm_debug() as seen:
        found = on_ranks(body, "dgx-h100")
    for got in found:
        np.testing.assert_allclose(got, expected, atol=0.02)

    step = mt.model(CONFIG).step([(TOKENS, 0)], machine="dgx-h100", tp=RANKS)
    block = [t.operator for t in step.timed if t.operator.part in ("attention", "feed-forward")]
    reduced = [dict(o.extents) for o in block if o.kernel == "all_reduce"]
    seen.expect(all_reduce=len(reduced), nbytes=sum(r["bytes"] for r in reduced))
    assert [r["ranks"] for r in reduced] == [RANKS, RANKS]
    assert {tuple(dict(o.extents)[n] for n in "mnk") for o in block if o.kernel == "gemm"} == shapes
