"""``runtime/host/groups.py``: process groups."""

from __future__ import annotations

import numpy as np
import pytest
from tests.runtime.host.shared import WHOLE, put, run

import megatile as mt
from megatile.collectives.planner import predict

S = 64 << 20
FOUR, EIGHT = [0, 1, 2, 3], list(range(8))


def alone_us(ranks: int, nbytes: int) -> float:
    asked = {"machine": "dgx-h100", "ranks": ranks, "nbytes": nbytes, "dtype": "f16", "in_place": True}
    return predict("all_reduce", **asked).time_us


def waited_us(groups: list[list[int]], sizes: list[int]) -> list[float]:
    """How long each rank waits for all-reduces of its groups that it has begun at the same time."""
    found: dict[int, float] = {}

    def worker(rank: int) -> None:
        dist = torch.distributed
        dist.init_process_group(backend="nccl")
        torch.cuda.set_device(rank)
        made = [(ranks, dist.new_group(ranks)) for ranks in groups]
        data = [torch.zeros((nbytes // 2,), dtype=torch.float16) for nbytes in sizes]
        dist.barrier()
        began = torch.clock_ps
        handles = [
            dist.all_reduce(x, group=group, async_op=True)
            for (ranks, group), x in zip(made, data, strict=True)
            if rank in ranks
        ]
        for handle in handles:
            handle.wait()
        found[rank] = (torch.clock_ps - began) / 1e6

    with mt.host("dgx-h100", data=False) as torch:
        torch.multiprocessing.spawn(worker, nprocs=8)
    return [found[rank] for rank in range(8)]


def test_groups_on_links_of_their_own_take_as_long_as_alone() -> None:
    assert waited_us([FOUR, [4, 5, 6, 7]], [S, S]) == pytest.approx([alone_us(4, S)] * 8)
    uneven = waited_us([FOUR, [4, 5, 6, 7]], [S, (1 << 20) + 6])
    assert uneven == pytest.approx([alone_us(4, S)] * 4 + [alone_us(4, (1 << 20) + 6)] * 4)


@pytest.mark.parametrize("ranks", [FOUR, EIGHT], ids=["rings", "the switch's reduction"])
def test_two_communicators_of_the_same_ranks_share_their_links(ranks: list[int]) -> None:
    """Their kernels start at the same time; the bytes go one after the other."""
    alone = alone_us(len(ranks), S)
    both = waited_us([ranks, ranks], [S, S])[0]
    assert 1.6 * alone < both < 2 * alone


def test_tensor_and_data_parallel_groups_share_the_links_of_common_ranks() -> None:
    tensor, both = alone_us(4, S), waited_us([FOUR, [0, 4]], [S, S])
    assert tensor < both[0] < tensor + alone_us(2, S)
    assert both[5] == 0


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
