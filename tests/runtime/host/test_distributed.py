"""Collectives, groups, messages and workers of the host: NumPy is the judge of data."""

from __future__ import annotations

import numpy as np
import pytest

import megatile as mt
from megatile.runtime.host.context import RuntimeContext
from megatile.runtime.host.groups import Call, ProcessGroup
from megatile.runtime.host.storage import ShapeMismatch
from megatile.runtime.host.workers import DistributedError, SpawnException

SIZE = 4


@pytest.fixture(scope="module")
def torch():
    with mt.host("ahbm", sips=SIZE) as namespace:
        yield namespace


def data_of(rank: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(rank).integers(-4, 5, shape).astype(np.float32)


def run(torch, body, nprocs: int = SIZE) -> dict[int, object]:
    """What ``body(rank, torch)`` gives on every rank, after the usual beginning."""
    found: dict[int, object] = {}

    def worker(rank: int) -> None:
        torch.accelerator.set_device_index(rank)
        torch.distributed.init_process_group()
        found[rank] = body(rank)

    torch.multiprocessing.spawn(worker, nprocs=nprocs)
    return found


def put(torch, array):
    return torch.empty(array.shape, dtype=torch.float32).copy_(array)


WHOLE = [data_of(r, 8, 3) for r in range(SIZE)]
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


def test_groups(torch) -> None:
    dist = torch.distributed

    def body(rank):
        pairs = [dist.new_group([0, 2]), dist.new_group([1, 3])]
        mine = pairs[rank % 2]
        x = put(torch, WHOLE[rank])
        dist.all_reduce(x, group=mine)
        other = pairs[1 - rank % 2]
        with pytest.warns(UserWarning, match=f"on global rank {rank} which does not belong"):
            assert dist.all_reduce(x, group=other) is None
        with pytest.warns(UserWarning, match="Running all_gather_object on"):
            dist.all_gather_object([], "x", group=other)
        with pytest.warns(UserWarning, match="Running isend on"):
            assert dist.isend(x, other.ranks[0], group=other) is None
        assert (dist.get_rank(other), dist.get_world_size(other)) == (-1, -1)
        y = put(torch, WHOLE[rank])
        dist.broadcast(y, src=mine.ranks[1], group=mine)
        return x.numpy(), y.numpy(), dist.get_rank(mine), dist.get_world_size(mine), dist.get_rank(pairs[0])

    for rank, (x, y, number, size, other) in run(torch, body).items():
        np.testing.assert_array_equal(x, WHOLE[rank % 2] + WHOLE[rank % 2 + 2])
        np.testing.assert_array_equal(y, WHOLE[rank % 2 + 2])
        assert (number, size) == (rank // 2, 2)
        assert other == (-1 if rank % 2 else rank // 2)


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


def test_messages(torch) -> None:
    dist = torch.distributed

    def body(rank):
        x, y = put(torch, WHOLE[rank]), torch.empty((8, 3), dtype="f32")
        ahead, behind = (rank + 1) % SIZE, (rank - 1) % SIZE
        works = dist.batch_isend_irecv([dist.P2POp(dist.isend, x, ahead), dist.P2POp(dist.irecv, y, behind)])
        for work in works:
            work.wait()
        z = torch.empty((8, 3), dtype="f32")
        if rank == 0:
            assert dist.recv(z) == 2
        elif rank == 2:
            dist.send(x, 0)
        return y.numpy(), z.numpy()

    found = run(torch, body)
    for rank, (y, _) in found.items():
        np.testing.assert_array_equal(y, WHOLE[(rank - 1) % SIZE])
    np.testing.assert_array_equal(found[0][1], WHOLE[2])


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


def test_uneven_and_empty_tensors(torch) -> None:
    def body(rank):
        x = put(torch, data_of(rank, 7))
        torch.distributed.all_reduce(x)
        none = put(torch, data_of(rank, 0))
        torch.distributed.all_reduce(none)
        return x.numpy(), none.numpy()

    right = np.sum([data_of(r, 7) for r in range(SIZE)], axis=0)
    for x, none in run(torch, body).values():
        np.testing.assert_array_equal(x, right)
        assert none.shape == (0,)


# --- T1–T5, and what else goes wrong: afterwards the next spawn works -----------------------------


def works(torch) -> None:
    """The host is clean: a collective over all ranks gives what it should."""

    def body(rank):
        x = put(torch, np.full(3, rank + 1.0))
        torch.distributed.all_reduce(x)
        return x.numpy()[0]

    assert set(run(torch, body).values()) == {10.0}
    assert not torch.workers.running
    assert not torch.distributed.is_initialized()


def test_t1_ranks_take_turns_in_order(torch) -> None:
    order = []

    def worker(rank: int) -> None:
        for step in range(3):
            order.append((step, rank))
            torch.distributed.cooperative_yield()

    torch.multiprocessing.spawn(worker, nprocs=SIZE)
    assert order == [(step, rank) for step in range(3) for rank in range(SIZE)]


def test_t2_an_all_reduce_completes_after_every_rank_submitted(torch) -> None:
    log = []

    def body(rank):
        x = put(torch, np.ones(4))
        log.append(("submit", rank))
        torch.distributed.all_reduce(x)
        log.append(("done", rank))

    run(torch, body)
    assert [what for what, _ in log[:SIZE]] == ["submit"] * SIZE
    assert sorted(log[SIZE:]) == [("done", r) for r in range(SIZE)]


def test_t3_a_rank_that_leaves_before_the_collective(torch) -> None:
    def body(rank):
        x = put(torch, np.ones(4))
        if rank != 2:
            torch.distributed.all_reduce(x)

    with pytest.raises(SpawnException) as caught:
        run(torch, body)
    text = str(caught.value)
    assert sorted(caught.value.errors) == [2], "it is to blame, those that wait are not"
    assert "rank 0 waits in all_reduce of f32[4] at test_distributed.py:" in text
    assert "for rank 2" in text
    assert "rank 2 has ended" in text
    works(torch)


def test_t4_a_rank_that_joins_twice(torch) -> None:
    group = ProcessGroup(torch, [0, 1], lambda group, calls: 0)
    group.join(Call("barrier", 0, 0, "f32"), epoch=0)
    with pytest.raises(RuntimeError, match="rank 0 attempted duplicate join to epoch 0"):
        group.join(Call("barrier", 0, 0, "f32"), epoch=0)
    group.reset()
    group.join(Call("barrier", 0, 0, "f32"), epoch=0)

    def body(rank):
        x = put(torch, np.ones(4))
        torch.distributed.all_reduce(x)
        if rank == 1:
            torch.distributed.all_reduce(x)

    with pytest.raises(SpawnException, match=r"rank 1 waits in all_reduce .* rank 0 has ended .*all_reduce"):
        run(torch, body)
    works(torch)


@pytest.mark.parametrize("when", ["before", "inside", "after"])
def test_t5_a_worker_that_raises_leaves_nothing_behind(torch, when: str) -> None:
    ended = []

    def body(rank):
        x = put(torch, np.ones(4))
        try:
            if rank == 1 and when == "before":
                raise KeyError("mine")
            if rank == 1 and when == "inside":
                torch.distributed.all_reduce(np.ones(4))
            torch.distributed.all_reduce(x)
            if rank == 1 and when == "after":
                raise KeyError("mine")
            torch.distributed.barrier()
        except SystemExit:
            ended.append(rank)
            raise

    with pytest.raises(SpawnException) as caught:
        run(torch, body)
    assert list(caught.value.errors) == [1], "the others are not to blame"
    assert str(caught.value).startswith("spawn failed on ranks [1]: rank 1 raised ")
    assert ended
    works(torch)


def wrong_order(torch, rank, x):
    dist = torch.distributed
    (dist.all_reduce if rank else dist.broadcast)(x)


def wrong_shape(torch, rank, x):
    torch.distributed.all_reduce(put(torch, np.ones(4 + (rank == 3))))


def wrong_type(torch, rank, x):
    torch.distributed.all_reduce(torch.zeros(4, dtype="f16" if rank == 2 else "f32"))


def wrong_op(torch, rank, x):
    torch.distributed.all_reduce(x, op="max" if rank == 1 else "sum")


def wrong_root(torch, rank, x):
    torch.distributed.broadcast(x, src=rank % 2)


@pytest.mark.parametrize("wrong", [wrong_order, wrong_shape, wrong_type, wrong_op, wrong_root])
def test_calls_that_differ_name_both_places(torch, wrong) -> None:
    with pytest.raises(SpawnException) as caught:
        run(torch, lambda rank: wrong(torch, rank, put(torch, np.ones(4))))
    (error,) = caught.value.errors.values()
    assert isinstance(error, DistributedError)
    assert str(error).count("test_distributed.py:") == 2
    assert "ranks disagree" in str(error)
    works(torch)


def test_a_host_read_inside_an_unfinished_epoch_does_not_wait(torch) -> None:
    def body(rank):
        x = put(torch, np.ones(4))
        work = torch.distributed.all_reduce(x, async_op=True)
        seen = x.numpy()[0]
        work.wait()
        return seen, x.numpy()[0]

    found = run(torch, body)
    assert found[0] == (1, 4)
    assert all(after == 4 for _, after in found.values())


def test_debug_mode_warns_of_such_a_read(torch, monkeypatch) -> None:
    monkeypatch.setenv("MEGATILE_DEBUG", "1")

    def body(rank):
        x = put(torch, np.ones(4))
        work = torch.distributed.all_reduce(x, async_op=True)
        x.numpy()
        work.wait()

    with pytest.warns(UserWarning, match="is read before a collective on it is complete"):
        run(torch, body)


def test_nested_spawn_is_refused(torch) -> None:
    with pytest.raises(SpawnException, match="spawn inside a worker is refused"):
        run(torch, lambda rank: torch.multiprocessing.spawn(print, nprocs=1))
    works(torch)


def test_a_worker_that_catches_its_end(torch) -> None:
    def body(rank):
        if rank == 3:
            raise ValueError("mine")
        while True:
            try:
                torch.distributed.barrier()
            except SystemExit:
                continue

    with pytest.raises(SpawnException, match=r"ranks \[3\]"):
        run(torch, body)
    works(torch)


def test_asynchronous_work_that_nobody_completes(torch) -> None:
    def body(rank):
        if rank == 1:
            torch.distributed.barrier(async_op=True)

    with pytest.raises(SpawnException, match=r"rank 1 waits in barrier .* for ranks 0, 2, 3"):
        run(torch, body)
    works(torch)


def test_spawn_takes_torchs_arguments(torch) -> None:
    seen = []
    context = torch.multiprocessing.spawn(
        lambda rank, a, b: seen.append((rank, a, b)), args=(1, 2), nprocs=2, join=False, daemon=False
    )
    assert seen == []
    assert context.join()
    assert seen == [(0, 1, 2), (1, 1, 2)]
    with pytest.raises(DistributedError, match="do not fit 4 devices"):
        torch.multiprocessing.spawn(print, nprocs=5)


def test_outside_workers(torch) -> None:
    dist = torch.distributed
    assert (dist.get_rank(), dist.get_world_size()) == (0, SIZE)
    with pytest.raises(DistributedError, match="has not been initialized"):
        dist.all_reduce(torch.zeros(4))
    dist.init_process_group("ahbm")
    assert dist.is_initialized()
    assert dist.get_backend() == "ahbm"
    with pytest.raises(DistributedError, match="there are no workers"):
        dist.all_reduce(torch.zeros(4))
    with pytest.raises(DistributedError, match="the host's and has no shards"):
        dist.all_reduce(torch.from_numpy(np.ones(4)))
    with pytest.raises(DistributedError, match="there is no backend 'nickel'"):
        dist.init_process_group("nickel")
    with pytest.raises(DistributedError, match="does not fit 4 devices"):
        dist.init_process_group(world_size=9)
    dist.destroy_process_group()
    works(torch)


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


def test_the_active_context_is_held_weakly(torch) -> None:
    with mt.host("ahbm", data=False) as inner:
        assert RuntimeContext.active() is inner
    assert RuntimeContext.active() is None
