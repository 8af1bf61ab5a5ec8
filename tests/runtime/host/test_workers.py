"""``runtime/host/workers.py``: workers of ``torch.multiprocessing.spawn``."""

from __future__ import annotations

import numpy as np
import pytest
from tests.runtime.host.shared import SIZE, put, run, works

from megatile.runtime.host.groups import Call, ProcessGroup
from megatile.runtime.host.workers import DistributedError, SpawnException


def test_t1_ranks_take_turns_in_order(torch) -> None:
    order = []

    def worker(rank: int) -> None:
        for step in range(3):
            order.append((step, rank))
            torch.distributed.cooperative_yield()

    torch.multiprocessing.spawn(worker, nprocs=SIZE)
    assert order == [(step, rank) for step in range(3) for rank in range(SIZE)]


def test_a_rank_that_was_never_there_is_to_blame(torch) -> None:
    def body(rank):
        torch.distributed.all_reduce(put(torch, np.ones(4)))

    with pytest.raises(SpawnException, match=f"there is no worker of rank {SIZE - 1}") as caught:
        run(torch, body, nprocs=SIZE - 1)
    assert sorted(caught.value.errors) == [SIZE - 1]
    works(torch)


def test_t3_a_rank_that_leaves_before_the_collective(torch) -> None:
    def body(rank):
        x = put(torch, np.ones(4))
        if rank != 2:
            torch.distributed.all_reduce(x)

    with pytest.raises(SpawnException) as caught:
        run(torch, body)
    text = str(caught.value)
    assert sorted(caught.value.errors) == [2], "it is to blame, those that wait are not"
    assert "rank 0 waits in all_reduce of f32[4] at test_workers.py:" in text
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
    assert str(error).count("test_workers.py:") == 2
    assert "ranks disagree" in str(error)
    works(torch)


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
