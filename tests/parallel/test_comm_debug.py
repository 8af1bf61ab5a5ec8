"""``parallel/comm_debug.py``: counts of what a piece of host code communicates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.parallel.hosts import on_ranks
from tests.parallel.shared import S0, S1, A, B, P, R, put, values

from megatile.parallel import distribute_tensor, init_device_mesh
from megatile.parallel.comm_debug import CommContract, comm_debug


def test_sharding_propagates_without_communication() -> None:
    def body(rank: int, torch: Any) -> list[Any]:
        mesh = init_device_mesh("ahbm", (2, 2), mesh_dim_names=("dp", "tp"))
        x = distribute_tensor(A, mesh, [S0, R])
        w1, w2 = distribute_tensor(B, mesh, [R, S1]), distribute_tensor(B.T.copy(), mesh, [R, S0])
        with comm_debug() as seen:
            h = (x @ w1).relu()
            y = h @ w2
        assert seen.calls == []
        found = [h.placements, y.placements]
        y = y.redistribute(placements=[S0, R])
        assert np.array_equal(y.full_tensor().numpy(), np.maximum(A @ B, 0) @ B.T)
        return found

    assert on_ranks(body) == [[(S0, S1), (S0, P)]] * 4


def test_a_contract_that_does_not_hold_says_what_happened() -> None:
    def body(rank: int, torch: Any) -> None:
        torch.distributed.all_reduce(put(torch, values(2, 2)))

    with comm_debug() as seen:
        on_ranks(body)
    with pytest.raises(
        CommContract,
        match=r"expected 1 all_gather at scale 'device', but there were 1 all_reduce[\s\S]*comm_debug.py",
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
