"""Scripts as people write them for PyTorch run unchanged, on two machines."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import pytest

import megatile as mt
from megatile.runtime.host.placement import DPPolicy
from megatile.runtime.host.workers import SpawnException

SIZE = 4


def reduction(rank: int, torch: Any) -> None:
    dist = torch.distributed
    device = torch.device(f"cuda:{rank}")
    torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl", init_method="tcp://127.0.0.1:23456", rank=rank, world_size=torch.cuda.device_count(),
        timeout=datetime.timedelta(seconds=5),
    )  # fmt: skip
    t = torch.ones(4, device=device) * (rank + 1)
    group = dist.new_group(list(range(dist.get_world_size())))
    work = dist.all_reduce(t, op=dist.ReduceOp.MAX, group=group, async_op=True)
    work.wait()
    assert dist.get_process_group_ranks(group) == list(range(SIZE))
    assert t[0].item() == SIZE
    assert (t.is_cuda, t.device.index, t.to(device) is t) == (True, rank, True)
    dist.all_reduce(t, group=dist.group.WORLD)
    assert t.tolist() == [SIZE**2] * 4
    dist.barrier()
    torch.cuda.synchronize()
    dist.destroy_process_group()


def objects(rank: int, torch: Any) -> None:
    dist = begun(rank, torch)
    given = [{"a": 7}, "x"] if rank == 0 else [None, None]
    dist.broadcast_object_list(given, src=0)
    assert given == [{"a": 7}, "x"]
    everything = [None] * SIZE
    dist.all_gather_object(everything, {"rank": rank})
    assert everything == [{"rank": r} for r in range(SIZE)]
    everything[0]["rank"] = 99  # a copy: nobody else sees it
    gathered = [None] * SIZE if rank == 2 else None
    dist.gather_object(rank * 10, gathered, dst=2)
    assert gathered == ([0, 10, 20, 30] if rank == 2 else None)
    mine = [None]
    dist.scatter_object_list(mine, ["a", "b", "c", "d"] if rank == 1 else None, src=1)
    assert mine == ["abcd"[rank]]
    half, _ = dist.new_subgroups(2)
    pair = [None, None]
    dist.all_gather_object(pair, rank, group=half)
    assert pair == [rank // 2 * 2, rank // 2 * 2 + 1]
    dist.monitored_barrier()


def gather_and_scatter(rank: int, torch: Any) -> None:
    dist = begun(rank, torch)
    t = torch.tensor([rank, rank], dtype=torch.float32)
    rows = [torch.zeros(2, dtype=torch.float32) for _ in range(SIZE)] if rank == 0 else None
    dist.gather(t, gather_list=rows, dst=0)
    if rows is not None:
        assert [row.tolist() for row in rows] == [[r, r] for r in range(SIZE)]
    back = torch.zeros(2, dtype=torch.float32)
    dist.scatter(back, scatter_list=rows, src=0)
    assert back.tolist() == [rank, rank]
    parts = torch.arange(SIZE * 2, dtype=torch.float32, device="cuda").reshape(SIZE, 2)
    dist.reduce_scatter(back, list(parts.unbind(0)))
    assert back.tolist() == [SIZE * 2 * rank, SIZE * (2 * rank + 1)]
    x = torch.arange(SIZE) + rank * 10
    y = torch.empty_like(x)
    dist.all_to_all_single(y, x)
    assert y.tolist() == [rank + 10 * r for r in range(SIZE)]


def into_chunks(rank: int, torch: Any) -> None:
    """The parts of a tensor are its own memory, as in torch."""
    dist = begun(rank, torch)
    big = torch.zeros(SIZE * 2, 3)
    dist.all_gather(list(big.chunk(SIZE)), torch.full((2, 3), float(rank)))
    assert big.numpy()[:, 0].tolist() == [r for r in range(SIZE) for _ in range(2)]
    flat = big.view(-1)
    flat += 1
    assert big.numpy()[-1].tolist() == [SIZE] * 3
    first, second = big.split([1, 2 * SIZE - 1])
    dist.broadcast(first, 1)
    second.fill_(5)
    assert big.numpy()[:, 1].tolist() == [1] + [5] * (2 * SIZE - 1)
    parts = torch.ones(SIZE * 2).chunk(SIZE)
    got = torch.zeros(SIZE, 2)
    dist.all_to_all(list(got.unbind(0)), [p * (rank + 1) for p in parts])
    assert got.numpy()[:, 0].tolist() == [r + 1 for r in range(SIZE)]


def data_parallel(rank: int, torch: Any) -> None:
    dist = begun(rank, torch)
    torch.manual_seed(rank)
    w = torch.randn(4, 4, dtype=torch.float32)
    dist.broadcast(w, 0)
    before = w.clone()
    gradient = torch.full((4, 4), float(rank), dtype=torch.float32)
    work = dist.all_reduce(gradient, async_op=True)
    work.wait()
    gradient /= dist.get_world_size()
    with torch.no_grad():
        w -= 0.1 * gradient
    np.testing.assert_allclose(w.numpy(), before.numpy() - 0.1 * 1.5, rtol=1e-6)
    loss = ((w - before) * (w - before)).mean()
    assert loss.shape == ()
    assert loss.item() == pytest.approx(0.15**2, rel=1e-5)


def pipeline(rank: int, torch: Any) -> None:
    dist = begun(rank, torch)
    x = torch.ones(3)
    if rank > 0:
        assert dist.recv(x, src=rank - 1) == rank - 1
    x += 1
    if rank < SIZE - 1:
        dist.send(x, dst=rank + 1)
    assert x.tolist() == [rank + 2] * 3
    a, b = torch.zeros(2), torch.full((2,), float(rank))
    requests = [
        dist.P2POp(dist.isend, b, (rank + 1) % SIZE), dist.P2POp(dist.irecv, a, (rank - 1) % SIZE)
    ]  # fmt: skip
    for request in dist.batch_isend_irecv(requests):
        request.wait()
    assert a.tolist() == [(rank - 1) % SIZE] * 2


def computing(rank: int, torch: Any) -> None:
    begun(rank, torch)
    torch.set_default_dtype(torch.float32)
    random = np.random.default_rng(rank)
    x, y, w = (random.standard_normal(s).astype(np.float32) for s in ((6, 8), (6, 8), (8, 4)))
    for dp in (None, DPPolicy("column_wise", "replicate", num_cubes=2, num_pes=1)):
        a, b = torch.empty(6, 8, dp=dp).copy_(x), torch.tensor(y)
        m = torch.tensor(w)
        pairs = [
            (a @ m, x @ w), (torch.matmul(a, m), x @ w), (a + b, x + y), (a - 2, x - 2), (1 - a, 1 - x),
            (a * b / 3, x * y / 3), (-a, -x), (2 / (b * b + 1), 2 / (y * y + 1)),
            (a + b[0].to(rank), x + y[0]),
            (torch.relu(a), np.maximum(x, 0)), (a.exp(), np.exp(x)), (torch.maximum(a, b), np.maximum(x, y)),
            (torch.nn.functional.softmax(a, dim=-1), np.exp(x) / np.exp(x).sum(1, keepdims=True)),
            (a.sum(), x.sum()), (a.sum(0), x.sum(0)), (a.mean(1, keepdim=True), x.mean(1, keepdims=True)),
            (a.amax(1), x.max(1)), (a.max(), x.max()), (a.t(), x.T), (a.view(2, 3, 8), x.reshape(2, 3, 8)),
            (a.reshape(4, 12), x.reshape(4, 12)), (a.narrow(1, 2, 3), x[:, 2:5]),
            (a.unsqueeze(1).squeeze(), x),
            (torch.cat([a, b], 1), np.concatenate([x, y], 1)), (torch.stack([a, b]), np.stack([x, y])),
            (torch.nn.functional.linear(a, b), x @ y.T), (a.to("cpu") + b.cpu(), x + y),
            (torch.nn.functional.embedding([3, 0], b), y[[3, 0]]),
        ]  # fmt: skip
        for number, (got, wanted) in enumerate(pairs):
            np.testing.assert_allclose(got.numpy(), wanted, rtol=2e-5, atol=1e-5, err_msg=str(number))
        assert (a.half().dtype, a.half().float().dtype, a.cuda() is a) == ("f16", "f32", True)
        assert float(a.sum() * 0 + 3) == int(torch.tensor([3])) == 3
        a *= 2
        a.add_(1)
        np.testing.assert_allclose(a.numpy(), 2 * x + 1, rtol=1e-6)


def begun(rank: int, torch: Any) -> Any:
    torch.accelerator.set_device_index(rank)
    torch.distributed.init_process_group()
    return torch.distributed


SCRIPTS = [reduction, objects, gather_and_scatter, into_chunks, data_parallel, pipeline, computing]


@pytest.mark.parametrize(
    "machine", [{"machine": "ahbm", "sips": SIZE}, {"machine": "dgx-h100", "gpus": SIZE}]
)
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_runs_as_it_is(script: Any, machine: dict[str, Any]) -> None:
    with mt.host(**machine) as torch:
        torch.multiprocessing.spawn(script, args=(torch,), nprocs=SIZE)
        assert torch.time_ns > 0


def test_what_is_computed_can_be_replayed() -> None:
    with mt.host("ahbm", sips=SIZE, log=True) as torch:
        found: dict[str, Any] = {}

        def worker(rank: int) -> None:
            dist = begun(rank, torch)
            big = torch.zeros(SIZE, 3, dtype="f32", name=f"big{rank}")
            dist.all_gather(list(big.chunk(SIZE)), torch.full((1, 3), rank + 1.0, dtype="f32"))
            big[1] = 8.0
            big.view(-1).narrow(0, 0, 2).mul_(3)
            found[big.name] = big

        torch.multiprocessing.spawn(worker, nprocs=SIZE)
        again = mt.replay(torch.op_log)
        for name, tensor in found.items():
            wanted = [[3, 3, 1], [8, 8, 8], [3, 3, 3], [4, 4, 4]]
            assert tensor.tolist() == again[name].tolist() == wanted


def test_lists_of_objects_that_do_not_fit() -> None:
    def worker(rank: int, torch: Any) -> None:
        begun(rank, torch).all_gather_object([None], rank)

    with mt.host("ahbm") as torch, pytest.raises(SpawnException, match="no room for 2 objects"):
        torch.multiprocessing.spawn(worker, args=(torch,), nprocs=2)
