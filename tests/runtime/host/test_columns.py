"""Collectives of the host go between the PEs where tensors lie: these decide results and times."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import megatile as mt
from megatile.collectives.columns import side_by_side
from megatile.collectives.planner import collective
from megatile.plan.check import check
from megatile.plan.execute import execute
from megatile.runtime.host.placement import DPPolicy

CUBE = DPPolicy(pe="row_wise", num_cubes=1)
SIP = DPPolicy(cube="row_wise", pe="row_wise")
ONE = DPPolicy(num_cubes=1, num_pes=1)


def spawn(torch: Any, body: Any) -> dict[int, Any]:
    found: dict[int, Any] = {}

    def worker(rank: int) -> None:
        torch.accelerator.set_device_index(rank)
        torch.distributed.init_process_group()
        found[rank] = body(rank)

    torch.multiprocessing.spawn(worker, nprocs=torch.shape.devices)
    return found


def all_reduce_ns(dp: DPPolicy = ONE, algorithm: str = "ring", **settings: Any) -> float:
    """Return the time of the second all-reduce of 1 MiB over two SIPs; its queues are installed."""
    with mt.host("ahbm", algorithm=algorithm, data=False, **settings) as torch:

        def body(rank: int) -> float:
            x = torch.empty((128, 4096), dtype="f16", dp=dp)
            torch.distributed.all_reduce(x)
            before = torch.clock_ps
            torch.distributed.all_reduce(x)
            return (torch.clock_ps - before) / 1000

        return spawn(torch, body)[0]


@pytest.mark.parametrize("algorithm", ["ring", "ring_bidirectional", "recursive_doubling", "tree", "direct"])
def test_columns_do_what_one_does(algorithm: str) -> None:
    one = collective(
        "all_reduce", machine="ahbm", scale="pe", ranks=[0, 128], nbytes=24, dtype="f32",
        algorithm=algorithm, memory="hbm", in_place=True,
    )  # fmt: skip
    plan = side_by_side(one, [(0, 128), (9, 137), (127, 255)])
    check(plan, "ahbm")
    x = np.random.default_rng(0).integers(0, 9, (6, 6)).astype(np.float32)
    (found,) = execute(plan, {"x": x}).values()
    assert np.array_equal(found, np.repeat(x[0::2] + x[1::2], 2, axis=0))


def test_where_a_tensor_lies_decides() -> None:
    """The link between the SIPs is a bound: 2 × 512 KiB at 128 GB/s. One PE alone is slower."""
    one, cube, sip = all_reduce_ns(ONE), all_reduce_ns(CUBE), all_reduce_ns(SIP)
    assert 2**20 / 128 < sip < cube < 0.5 * one
    assert all_reduce_ns(DPPolicy(num_cubes=1, num_pes=8)) > 2 * one, "eight copies, each for itself"
    far = all_reduce_ns(DPPolicy(cube="row_wise", num_cubes=8, num_pes=1))
    assert cube < far, "eight PEs in as many cubes"


@pytest.mark.parametrize(
    ("dp", "key", "less", "more"),
    [
        (ONE, "pe.components.pe_math.attrs.lanes", 8, 1024),
        (ONE, "cube.hbm.bandwidth", "300 GB/s", "4 TB/s"),
        (SIP, "cube.hbm.bandwidth", "300 GB/s", "4 TB/s"),
        (SIP, "sip.cube_mesh.link.bandwidth", "16 GB/s", "512 GB/s"),
        (CUBE, "cube.noc.link.bandwidth", "16 GB/s", "512 GB/s"),
        (SIP, "system.sips.link.bandwidth", "64 GB/s", "128 GB/s"),
    ],
)
def test_more_of_anything_takes_less_time(dp: DPPolicy, key: str, less: Any, more: Any) -> None:
    assert all_reduce_ns(dp, **{key: less}) > 1.02 * all_reduce_ns(dp, **{key: more})


@pytest.mark.parametrize("count", [8192, 131072, 524288])
def test_the_ring_kernel_and_the_library_agree(count: int) -> None:
    """Whole tiles go round in both, through queues in HBM that hold one."""
    times = []
    base = mt.collectives.load_ccl_config()["algorithms"]["ring_allreduce_hbm"]
    entry = {**base, "mapper": "leader_only", "n_slots": 4, "slot_size": 2 * count}
    entry.pop("world_size", None)
    ccl = {"algorithms": {"ring": entry}, "defaults": {"algorithm": "ring"}}
    for settings in ({"ccl": ccl}, {"algorithm": "ring_naive"}):
        with mt.host("ahbm", **settings) as torch:

            def body(rank: int, torch: Any = torch) -> int:
                x = torch.ones((count,), dtype="f16")
                torch.distributed.all_reduce(x)
                before = torch.clock_ps
                torch.distributed.all_reduce(x)
                assert (x.numpy() == 4).all()
                return torch.clock_ps - before

            times.append(spawn(torch, body)[0])
    assert times[0] == pytest.approx(times[1], rel=0.1)


POLICIES = {
    "one PE": ONE,
    "cube": CUBE,
    "columns of two cubes": DPPolicy(cube="column_wise", pe="row_wise", num_cubes=2, num_pes=2),
    "uneven": DPPolicy(cube="row_wise", pe="replicate", num_cubes=3, num_pes=1),
    "copies": DPPolicy(cube="replicate", num_cubes=2, num_pes=1),
}


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("machine", ["ahbm", "dgx-h100"])
def test_results_are_right_however_tensors_lie(name: str, machine: str) -> None:
    n = 3 if machine == "ahbm" else 8
    with mt.host(machine, **({"sips": 3} if machine == "ahbm" else {})) as torch:
        dist, shape = torch.distributed, (16, 8)
        data = np.random.default_rng(1).integers(-9, 9, (n, *shape)).astype(np.float32)

        def put(values: Any) -> Any:
            policy = POLICIES[name]
            if torch.shape.cubes == 1:
                policy = DPPolicy(pe=policy.pe, num_cubes=1, num_pes=policy.num_pes)
            elif (policy.num_cubes or 1) > torch.shape.cubes:
                policy = ONE
            return torch.empty(shape, dtype="f32", dp=policy).copy_(values)

        def body(rank: int) -> None:
            x = put(data[rank])
            dist.all_reduce(x, op="max")
            assert np.array_equal(x.numpy(), data.max(0))
            x = put(data[rank])
            dist.broadcast(x, src=1)
            assert np.array_equal(x.numpy(), data[1])
            x = put(data[rank])
            dist.reduce(x, dst=2)
            assert np.array_equal(x.numpy(), data.sum(0) if rank == 2 else data[rank])
            out = [put(np.zeros(shape)) for _ in range(n)]
            dist.all_gather(out, put(data[rank]))
            assert np.array_equal([t.numpy() for t in out], data)
            x = put(np.zeros(shape))
            dist.reduce_scatter(x, [put(data[rank] + i) for i in range(n)])
            assert np.array_equal(x.numpy(), data.sum(0) + n * rank)
            out = [put(np.zeros(shape)) for _ in range(n)]
            dist.all_to_all(out, [put(data[rank] + 10 * i) for i in range(n)])
            assert np.array_equal([t.numpy() for t in out], data + 10 * rank)
            x = put(np.zeros(shape))
            dist.scatter(x, [put(data[i]) for i in range(n)] if rank == 1 else None, src=1)
            assert np.array_equal(x.numpy(), data[rank])
            out = [put(np.zeros(shape)) for _ in range(n)] if rank == 1 else None
            dist.gather(put(data[rank]), out, dst=1)
            assert out is None or np.array_equal([t.numpy() for t in out], data)
            if rank == 0:
                dist.send(put(data[0]), 2)
            elif rank == 2:
                x = put(np.zeros(shape))
                dist.recv(x, 0)
                assert np.array_equal(x.numpy(), data[0])

        spawn(torch, body)


def test_ranks_whose_tensors_lie_differently_still_get_right_results() -> None:
    with mt.host("ahbm") as torch:

        def body(rank: int) -> None:
            x = torch.empty((16, 8), dtype="f32", dp=(ONE, CUBE)[rank]).fill_(rank + 1.0)
            torch.distributed.all_reduce(x)
            assert (x.numpy() == 3).all()

        spawn(torch, body)


def test_the_log_of_a_divided_tensor_can_be_replayed() -> None:
    with mt.host("ahbm", algorithm="ring", log=True) as torch:

        def body(rank: int) -> Any:
            x = torch.empty((9, 4), dtype="f32", dp=CUBE, name=f"x{rank}").copy_(np.full((9, 4), rank + 1.0))
            torch.distributed.all_reduce(x)
            return x.numpy()

        found = spawn(torch, body)
        again = mt.replay(torch.op_log)
    assert all(np.array_equal(again[f"x{rank}"], found[rank]) and (found[rank] == 3).all() for rank in (0, 1))
