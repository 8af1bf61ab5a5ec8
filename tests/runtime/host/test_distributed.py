"""Collectives, groups, messages and workers of the host: NumPy is the judge of data."""

from __future__ import annotations

import numpy as np
import pytest
from tests.runtime.host.shared import SIZE, WHOLE, put, run, works

from megatile.runtime.host.storage import ShapeMismatch
from megatile.runtime.host.workers import SpawnException

REDUCTIONS = {"SUM": np.sum, "MAX": np.max, "MIN": np.min, "PRODUCT": np.prod, "AVG": np.mean}


@pytest.mark.parametrize("op", REDUCTIONS)
def test_all_reduce(torch, op: str) -> None:
    def body(rank):
        x = put(torch, WHOLE[rank])
        assert torch.distributed.all_reduce(x, getattr(torch.distributed.ReduceOp, op)) is None
        return x.numpy()

    for got in run(torch, body).values():
        np.testing.assert_allclose(got, REDUCTIONS[op](WHOLE, axis=0))


def test_rooted_collectives(torch) -> None:
    dist = torch.distributed

    def body(rank):
        x, y = put(torch, WHOLE[rank]), put(torch, WHOLE[rank])
        dist.broadcast(x, 2)
        dist.reduce(y, dst=1)
        parts = [torch.empty((8, 3), dtype="f32") for _ in range(SIZE)] if rank == 3 else None
        dist.gather(put(torch, WHOLE[rank]), parts, dst=3)
        part = torch.empty((2, 3), dtype="f32")
        given = [put(torch, WHOLE[0][2 * r : 2 * r + 2]) for r in range(SIZE)] if rank == 0 else None
        dist.scatter(part, given, src=0)
        return x.numpy(), y.numpy(), [p.numpy() for p in parts or ()], part.numpy()

    for rank, (x, y, parts, part) in run(torch, body).items():
        np.testing.assert_array_equal(x, WHOLE[2])
        np.testing.assert_array_equal(y, np.sum(WHOLE, axis=0) if rank == 1 else WHOLE[rank])
        assert len(parts) == (SIZE if rank == 3 else 0)
        for got, right in zip(parts, WHOLE, strict=False):
            np.testing.assert_array_equal(got, right)
        np.testing.assert_array_equal(part, WHOLE[0][2 * rank : 2 * rank + 2])


def test_gathers_and_scatters(torch) -> None:
    dist = torch.distributed

    def body(rank):
        x = put(torch, WHOLE[rank])
        y = torch.empty((8 * SIZE, 3), dtype="f32")
        dist.all_gather_into_tensor(y, x)
        parts = [torch.empty((8, 3), dtype="f32") for _ in range(SIZE)]
        dist.all_gather(parts, x)
        z = torch.empty((2, 3), dtype="f32")
        dist.reduce_scatter_tensor(z, x)
        w = torch.empty((2, 3), dtype="f32")
        dist.reduce_scatter(w, [put(torch, WHOLE[rank][2 * r : 2 * r + 2]) for r in range(SIZE)], "max")
        return y.numpy(), [p.numpy() for p in parts], z.numpy(), w.numpy()

    total = np.sum(WHOLE, axis=0)
    for rank, (y, parts, z, w) in run(torch, body).items():
        mine = slice(2 * rank, 2 * rank + 2)
        np.testing.assert_array_equal(y, np.concatenate(WHOLE))
        np.testing.assert_array_equal(np.concatenate(parts), y)
        np.testing.assert_array_equal(z, total[mine])
        np.testing.assert_array_equal(w, np.max(WHOLE, axis=0)[mine])


def test_all_to_all(torch) -> None:
    dist = torch.distributed
    splits = [[1, 2, 3, 2], [4, 0, 0, 4], [2, 2, 2, 2], [0, 8, 0, 0]]

    def body(rank):
        x, y = put(torch, WHOLE[rank]), torch.empty((8, 3), dtype="f32")
        dist.all_to_all_single(y, x)
        got = [row[rank] for row in splits]
        z = torch.empty((sum(got), 3), dtype="f32")
        dist.all_to_all_single(z, x, got, splits[rank])
        given = [put(torch, b) for b in np.split(WHOLE[rank], np.cumsum(splits[rank])[:-1])]
        lists = [torch.empty((n, 3), dtype="f32") for n in got]
        dist.all_to_all(lists, given)
        return y.numpy(), z.numpy(), np.concatenate([t.numpy() for t in lists])

    for rank, (y, z, w) in run(torch, body).items():
        np.testing.assert_array_equal(y, np.concatenate([x[2 * rank : 2 * rank + 2] for x in WHOLE]))
        right = [np.split(x, np.cumsum(s)[:-1])[rank] for x, s in zip(WHOLE, splits, strict=True)]
        np.testing.assert_array_equal(z, np.concatenate(right))
        np.testing.assert_array_equal(w, z)


def test_groups_of_one_and_other_types(torch) -> None:
    dist = torch.distributed

    def body(rank):
        alone = [dist.new_group([r]) for r in range(SIZE)][rank]
        x, found = put(torch, WHOLE[rank]), []
        dist.all_reduce(x, group=alone)
        dist.barrier(group=alone)
        for call in (
            lambda y: dist.all_gather_into_tensor(y, x, group=alone),
            lambda y: dist.reduce_scatter_tensor(y, x, group=alone),
            lambda y: dist.all_to_all_single(y, x, [8], [8], group=alone),
            lambda y: dist.gather(x, [y], rank, group=alone),
            lambda y: dist.scatter(y, [x], rank, group=alone),
        ):
            y = torch.zeros((8, 3), dtype="f32")
            call(y)
            found.append(y.numpy())
        number = torch.tensor(rank + 0.5)
        dist.all_reduce(number)
        wide, narrow = torch.full((5,), rank + 1, dtype="i32"), torch.full((5,), 1.5, dtype="bf16")
        dist.all_reduce(wide, "prod")
        dist.all_reduce(narrow)
        return found, number.item(), wide.tolist(), narrow.numpy().astype(float).tolist()

    for rank, (found, number, wide, narrow) in run(torch, body).items():
        for got in found:
            np.testing.assert_array_equal(got, WHOLE[rank])
        assert (number, wide, narrow) == (8.0, [24] * 5, [6.0] * 5)


def test_work_handles_and_time(torch) -> None:
    """A collective begins when its last rank has joined, and its end is every rank's time after waiting."""
    dist = torch.distributed

    def body(rank):
        x = put(torch, WHOLE[rank])
        for _ in range(rank):
            x.copy_(WHOLE[rank])  # later ranks come later
        before = torch.clock_ps
        work = dist.all_reduce(x, async_op=True)
        assert torch.clock_ps == before
        assert work.wait()
        assert work.is_completed()
        return before, torch.clock_ps

    found = run(torch, body)
    assert found[3][0] > found[0][0]
    assert len({round(end, -6) for _, end in found.values()}) == 1
    assert found[0][1] > found[3][0]


def test_a_barrier_brings_all_to_one_time(torch) -> None:
    def body(rank):
        x = put(torch, WHOLE[rank])
        for _ in range(rank):
            x.copy_(WHOLE[rank])
        torch.distributed.barrier()
        return torch.clock_ps

    assert len(set(run(torch, body).values())) == 1


# --- T1–T5, and what else goes wrong: afterwards the next spawn works -----------------------------


def test_a_tensor_of_another_device(torch) -> None:
    def worker(rank: int, device: int | None) -> None:
        if device is not None:
            torch.accelerator.set_device_index(device)
        torch.distributed.init_process_group()
        torch.distributed.all_reduce(torch.zeros(4))

    with pytest.raises(SpawnException, match="tensor has no shards on SIP 1"):
        torch.multiprocessing.spawn(worker, args=(0,), nprocs=SIZE)
    torch.multiprocessing.spawn(worker, args=(None,), nprocs=SIZE)  # a rank's own device
    works(torch)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda d, t: d.all_gather_into_tensor(t.zeros(4), t.zeros(4)), "16 elements are needed"),
        (lambda d, t: d.all_gather([t.zeros(4)], t.zeros(4)), "needs 4 tensors of 4 elements"),
        (lambda d, t: d.reduce_scatter_tensor(t.zeros(4), t.zeros(4)), "16 elements are needed"),
        (lambda d, t: d.all_to_all_single(t.zeros(6), t.zeros(6)), "do not divide into 4 equal blocks"),
        (lambda d, t: d.all_to_all_single(t.zeros(4), t.zeros(4), [1, 1], [1, 1]), "do not make up 4 rows"),
    ],
)
def test_sizes_that_do_not_go_together(torch, call, message: str) -> None:
    torch.distributed.init_process_group()
    with pytest.raises(ShapeMismatch, match=message):
        call(torch.distributed, torch)
    torch.distributed.destroy_process_group()
