"""Megatron's layers and mappings against NumPy, and what they communicate."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.parallel.hosts import on_ranks
from tests.parallel.shared import part, put, values

import megatile.parallel as tp
from megatile.parallel.comm_debug import comm_debug
from megatile.parallel.state import ParallelError


@pytest.mark.parametrize("machine", ["ahbm", "dgx-h100"])
@pytest.mark.parametrize("bias", [False, True])
def test_column_and_row_make_a_product(machine: str, bias: bool) -> None:
    x, w1, w2 = values(6, 16), values(16, 24), values(24, 8)
    b1, b2 = values(24), values(8)
    hidden = np.maximum(x @ w1 + (b1 if bias else 0), 0)
    expected = hidden @ w2 + (b2 if bias else 0)

    def body(rank: int, torch: Any) -> Any:
        tp.initialize_model_parallel(4)
        up = tp.ColumnParallelLinear(16, 24, bias=bias, dtype="f32", torch=torch)
        down = tp.RowParallelLinear(24, 8, bias=bias, dtype="f32", torch=torch)
        assert (up.weight.shape, down.weight.shape) == ((16, 6), (6, 8))
        up.weight.copy_(part(w1, 1, rank, 4))
        down.weight.copy_(part(w2, 0, rank, 4))
        if bias:
            up.bias.copy_(part(b1, 0, rank, 4))
            down.bias.copy_(b2)
        return down(tp.relu(up(put(torch, x)))).numpy()

    with comm_debug() as seen:
        found = on_ranks(body, machine)
    seen.expect(all_reduce=1, nbytes=6 * 8 * 4)
    for got in found:
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
    assert all(np.array_equal(got, found[0]) for got in found)


def test_sequence_parallel() -> None:
    x, w1, w2 = values(8, 4), values(4, 8), values(8, 4)

    def body(rank: int, torch: Any) -> Any:
        tp.initialize_model_parallel(4)
        up = tp.ColumnParallelLinear(4, 8, dtype="f32", torch=torch, sequence_parallel=True)
        down = tp.RowParallelLinear(8, 4, dtype="f32", torch=torch, sequence_parallel=True)
        up.weight.copy_(part(w1, 1, rank, 4))
        down.weight.copy_(part(w2, 0, rank, 4))
        return down(up(put(torch, part(x, 0, rank, 4)))).numpy()

    with comm_debug() as seen:
        found = on_ranks(body)
    seen.expect(all_gather=1, reduce_scatter=1)
    np.testing.assert_allclose(np.concatenate(found), x @ w1 @ w2, rtol=1e-4, atol=1e-5)


def test_embedding_divided_by_rows() -> None:
    table, words = values(12, 5), np.array([[0, 11, 3], [7, 7, 2]])

    def body(rank: int, torch: Any) -> Any:
        tp.initialize_model_parallel(4)
        layer = tp.VocabParallelEmbedding(12, 5, dtype="f32", torch=torch)
        layer.weight.copy_(part(table, 0, rank, 4))
        return layer(words).numpy()

    for got in on_ranks(body):
        np.testing.assert_allclose(got, table[words])


def block(x: np.ndarray, w: dict[str, np.ndarray], heads: int, shared: int) -> np.ndarray:
    """A transformer block: GQA attention and an MLP, both after RMSNorm, both added."""

    def norm(a: np.ndarray, g: np.ndarray) -> np.ndarray:
        return a / np.sqrt((a * a).mean(-1, keepdims=True) + 1e-5) * g

    tokens, dim = x.shape[0], x.shape[1] // heads
    y = norm(x, w["n1"])
    q = (y @ w["q"]).reshape(tokens, heads, dim)
    k, v = ((y @ w[n]).reshape(tokens, shared, dim).repeat(heads // shared, 1) for n in "kv")
    scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(dim)
    scores[:, np.triu(np.ones((tokens, tokens), bool), 1)] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    x = x + np.einsum("hij,jhd->ihd", weights, v).reshape(tokens, -1) @ w["o"]
    z = norm(x, w["n2"]) @ w["up"]
    return x + (z / (1 + np.exp(-z))) @ w["down"]


@pytest.mark.parametrize(("machine", "ranks"), [("ahbm", 4), ("mi300x-8", 8)])
def test_a_transformer_block(machine: str, ranks: int) -> None:
    tokens, hidden, heads, shared = 8, 64, 16, 8
    x = values(tokens, hidden)
    w = {"q": values(hidden, hidden), "k": values(hidden, hidden // 2), "v": values(hidden, hidden // 2),
         "o": values(hidden, hidden), "up": values(hidden, 128), "down": values(128, hidden),
         "n1": values(hidden) + 1, "n2": values(hidden) + 1}  # fmt: skip

    def body(rank: int, torch: Any) -> Any:
        tp.initialize_model_parallel(ranks)

        def layer(name: str) -> Any:
            kind = tp.RowParallelLinear if name in ("o", "down") else tp.ColumnParallelLinear
            made = kind(*w[name].shape, dtype="f32", torch=torch)
            made.weight.copy_(part(w[name], int(name not in ("o", "down")), rank, ranks))
            return made

        inside = put(torch, x)
        y = tp.rms_norm(inside, put(torch, w["n1"]))
        q, k, v = (layer(name)(y) for name in "qkv")
        o = tp.attention(q, k, v, heads=heads // ranks, kv_heads=shared // ranks)
        inside = tp.add(inside, layer("o")(o))
        z = tp.silu(layer("up")(tp.rms_norm(inside, put(torch, w["n2"]))))
        return tp.add(inside, layer("down")(z)).numpy()

    with comm_debug() as seen:
        found = on_ranks(body, machine)
    seen.expect(all_reduce=2, nbytes=2 * tokens * hidden * 4)
    for got in found:
        np.testing.assert_allclose(got, block(x, w, heads, shared), rtol=2e-3, atol=2e-3)


def test_mistakes_are_named() -> None:
    with pytest.raises(RuntimeError, match="no active host"):
        tp.get_tensor_model_parallel_world_size()
    with pytest.raises(TypeError, match="requires torch="):
        tp.ColumnParallelLinear(4, 4)

    def body(rank: int, torch: Any) -> None:
        if rank == 0:  # the others follow, and share the host's groups
            with pytest.raises(RuntimeError, match="TP group not initialised"):
                tp.get_tensor_model_parallel_world_size()
        with pytest.raises(ParallelError, match="3 does not divide 4 ranks"):
            tp.initialize_model_parallel(3)
        tp.initialize_model_parallel(4)
        with pytest.raises(ValueError, match=r"out_features \(6\) must be divisible by TP world size \(4\)"):
            tp.ColumnParallelLinear(4, 6, torch=torch)
        with pytest.raises(ValueError, match=r"in_features \(6\)"):
            tp.RowParallelLinear(6, 4, torch=torch)

    on_ranks(body)
