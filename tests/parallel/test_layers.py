"""Megatron's layers and mappings against NumPy, and what they communicate."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.parallel.hosts import on_ranks

import megatile.parallel as tp
from megatile.parallel.comm_debug import CommContract, comm_debug
from megatile.parallel.state import ParallelError

RANDOM = np.random.default_rng(0)


def values(*shape: int) -> np.ndarray:
    return (RANDOM.standard_normal(shape) / 4).astype(np.float32)


def put(torch: Any, array: np.ndarray, dtype: str = "f32") -> Any:
    return torch.empty(array.shape, dtype=dtype).copy_(array)


def part(array: np.ndarray, dim: int, rank: int, size: int) -> np.ndarray:
    return np.split(array, size, dim)[rank]


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


def test_gather_output_and_whole_inputs() -> None:
    x, w = values(4, 8), values(8, 12)

    def body(rank: int, torch: Any) -> Any:
        tp.initialize_model_parallel(4)
        column = tp.ColumnParallelLinear(8, 12, dtype="f32", torch=torch, gather_output=True)
        column.weight.copy_(part(w, 1, rank, 4))
        row = tp.RowParallelLinear(
            8, 12, dtype="f32", torch=torch, input_is_parallel=False, skip_bias_add=True
        )
        row.weight.copy_(part(w, 0, rank, 4))
        y, bias = row(put(torch, x))
        assert bias is None
        return column(put(torch, x)).numpy(), y.numpy()

    for one, two in on_ranks(body):
        np.testing.assert_allclose(one, x @ w, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(two, x @ w, rtol=1e-4, atol=1e-5)


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


def test_tensor_and_data_parallel_groups() -> None:
    def body(rank: int, torch: Any) -> Any:
        tp.initialize_model_parallel(2)
        x = put(torch, np.full((2, 2), float(rank + 1), np.float32))
        tp.reduce_from_tp_region(x)
        y = put(torch, np.full((2, 2), float(rank + 1), np.float32))
        torch.distributed.all_reduce(y, group=tp.get_data_parallel_group())
        return (
            tp.get_tensor_model_parallel_rank(), tp.get_data_parallel_rank(),
            tp.get_data_parallel_world_size(), float(x.numpy()[0, 0]), float(y.numpy()[0, 0]),
        )  # fmt: skip

    assert on_ranks(body) == [
        (0, 0, 2, 3.0, 4.0),
        (1, 0, 2, 3.0, 6.0),
        (0, 1, 2, 7.0, 4.0),
        (1, 1, 2, 7.0, 6.0),
    ]


def test_embedding_divided_by_rows() -> None:
    table, words = values(12, 5), np.array([[0, 11, 3], [7, 7, 2]])

    def body(rank: int, torch: Any) -> Any:
        tp.initialize_model_parallel(4)
        layer = tp.VocabParallelEmbedding(12, 5, dtype="f32", torch=torch)
        layer.weight.copy_(part(table, 0, rank, 4))
        return layer(words).numpy()

    for got in on_ranks(body):
        np.testing.assert_allclose(got, table[words])


@pytest.mark.parametrize(("scatter", "gather"), [("tp", "tp"), ("sequence", "sequence")])
def test_what_is_scattered_can_be_gathered(scatter: str, gather: str) -> None:
    x = values(8, 12)

    def body(rank: int, torch: Any) -> Any:
        tp.initialize_model_parallel(4)
        mine = getattr(tp, f"scatter_to_{scatter}_region")(put(torch, x))
        assert np.array_equal(mine.numpy(), part(x, 1 if scatter == "tp" else 0, rank, 4))
        return getattr(tp, f"gather_from_{gather}_region")(mine).numpy()

    assert all(np.array_equal(got, x) for got in on_ranks(body))


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


def test_a_contract_that_does_not_hold_says_what_happened() -> None:
    def body(rank: int, torch: Any) -> None:
        torch.distributed.all_reduce(put(torch, values(2, 2)))

    with comm_debug() as seen:
        on_ranks(body)
    with pytest.raises(
        CommContract,
        match=r"expected 1 all_gather at scale 'device', but there were 1 all_reduce[\s\S]*test_layers.py",
    ):
        seen.expect(all_gather=1)
    with pytest.raises(CommContract, match="expected 8 bytes at scale 'device', but 16"):
        seen.expect(all_reduce=1, nbytes=8)


def ring_sum(x, count, tl):
    """A PE adds its neighbour's tile to its own."""
    mine = x + tl.program_id(0) * count * 2
    tile = tl.load(mine, shape=(count,), dtype="f16")
    tl.send(dir="E", src=tile)
    tl.store(mine, tile + tl.recv(dir="W", shape=(count,), dtype="f16"))


def test_contracts_at_other_scales() -> None:
    import megatile as mt
    from megatile.runtime.host.placement import DPPolicy

    with mt.host("ahbm") as torch, comm_debug() as seen:
        x = torch.ones((8, 16), dp=DPPolicy(pe="row_wise", num_cubes=1))
        torch.launch("ring_sum", ring_sum, x, 16, topology="ring_1d")
        assert (x.numpy() == 2).all()
        torch.launch("ring_sum", ring_sum, x, 16, topology="ring_1d")
    seen.expect()
    seen.expect(send=16, nbytes=16 * 32, scale="pe")
    with pytest.raises(
        CommContract, match=r"expected 8 send at scale 'pe', but there were 16 send:\n.*ring_sum"
    ):
        seen.expect(send=8, scale="pe")
    with pytest.raises(CommContract, match="expected 3 bytes at scale 'pe', but 512 were"):
        seen.expect(send=16, nbytes=3, scale="pe")

    with mt.host("ahbm", ccl="ccl.yaml", algorithm="tree_allreduce", sips=4) as torch, comm_debug() as seen:

        def worker(rank: int) -> None:
            torch.accelerator.set_device_index(rank)
            torch.distributed.init_process_group()
            torch.distributed.all_reduce(torch.ones(64))

        torch.multiprocessing.spawn(worker, nprocs=4)
    for scale in ("device", "sip", "pe"):
        seen.expect(all_reduce=1, nbytes=128, scale=scale)

    for machine, scale, ranks in (("ahbm", "cube", 16), ("h100-cluster", "node", None)):
        plan = mt.collective(
            "all_reduce", machine=machine, scale=scale, ranks=ranks, nbytes=1024, algorithm="ring"
        )
        with comm_debug() as seen:
            seen.add(mt.simulate(plan, machine=machine, data=False))
        n = plan.units
        seen.expect(send=2 * n * (n - 1), nbytes=2 * (n - 1) * 1024, scale=scale)
