"""Collectives of the host go between the PEs where tensors lie: these decide results and times."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import megatile as mt
from megatile.collectives.columns import side_by_side
from megatile.collectives.planner import collective
from megatile.compat.ccl.kernel_plans import kernel_plan
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
    """The link between the SIPs is a bound: 2 × 512 KiB at 128 GB/s. One PE alone also adds and stores half
    of it at 150 GB/s after the last byte; eight PEs do an eighth each."""
    one, cube, sip = all_reduce_ns(ONE), all_reduce_ns(CUBE), all_reduce_ns(SIP)
    assert 2**20 / 128 < sip < cube < one - 7 / 8 * 2 * 2**19 / 150
    assert all_reduce_ns(DPPolicy(num_cubes=1, num_pes=8)) > 2 * one, "eight copies, each for itself"
    far = all_reduce_ns(DPPolicy(cube="row_wise", num_cubes=8, num_pes=1))
    assert cube < far, "eight PEs in as many cubes"


@pytest.mark.parametrize("sips", [2, 3, 4])
def test_the_planner_sees_that_columns_share_links(sips: int) -> None:
    one, ring, sip = (
        all_reduce_ns(*asked, sips=sips) for asked in ((ONE, "auto"), (SIP, "ring"), (SIP, "auto"))
    )
    assert sip <= ring < one


@pytest.mark.parametrize(
    ("dp", "key", "less", "more"),
    [
        (ONE, "pe.components.pe_math.attrs.lanes", 8, 1024),
        (ONE, "cube.hbm.bandwidth", "300 GB/s", "4 TB/s"),
        (SIP, "cube.hbm.bandwidth", "150 GB/s", "4 TB/s"),
        (SIP, "sip.cube_mesh.link.bandwidth", "16 GB/s", "512 GB/s"),
        (CUBE, "cube.noc.link.bandwidth", "16 GB/s", "512 GB/s"),
        (SIP, "system.sips.link.bandwidth", "64 GB/s", "128 GB/s"),
    ],
)
def test_more_of_anything_takes_less_time(dp: DPPolicy, key: str, less: Any, more: Any) -> None:
    assert all_reduce_ns(dp, **{key: less}) > 1.02 * all_reduce_ns(dp, **{key: more})


class SeedRing:
    """KernBench's own ring kernel: whole tiles go round, all ranks add what passes."""

    kernel_args = staticmethod(lambda world_size, n_elem, **_: (n_elem, world_size))

    @staticmethod
    def kernel(t_ptr: Any, n_elem: int, world_size: int, tl: Any) -> None:
        mine = t_ptr + tl.rank * n_elem * 2
        acc = tl.load(mine, shape=(n_elem,), dtype="f16")
        current = acc
        for _ in range(world_size - 1):
            tl.send(dir="E", src=current)
            recv = tl.recv(dir="W", shape=(n_elem,), dtype="f16")
            acc = acc + recv
            current = recv
        tl.store(mine, acc)


def second_all_reduce(count: int, dtype: str, sips: int, **settings: Any) -> int:
    with mt.host("ahbm", sips=sips, **settings) as torch:

        def body(rank: int, torch: Any = torch) -> int:
            x = torch.ones((count,), dtype=dtype)
            torch.distributed.all_reduce(x)
            before = torch.clock_ps
            torch.distributed.all_reduce(x)
            assert (x.numpy() == sips**2).all()
            return torch.clock_ps - before

        return spawn(torch, body)[0]


def ccl_of(entry: dict[str, Any]) -> dict[str, Any]:
    return {"algorithms": {"ring": entry}, "defaults": {"algorithm": "ring"}}


@pytest.mark.parametrize(
    ("sips", "topology"), [(2, "ring_1d"), (3, "ring_1d"), (4, "torus_2d"), (6, "mesh_2d"), (8, "ring_1d")]
)
@pytest.mark.parametrize("count", [8, 8192, 100_003, 524_288])
@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_the_ring_kernel_and_the_library_agree(sips: int, topology: str, count: int, dtype: str) -> None:
    """Both are a reduce-scatter and an all-gather, through queues in HBM that hold blocks, as shipped."""
    entry = mt.collectives.load_ccl_config()["algorithms"]["ring_allreduce_hbm"]
    how = {"count": count, "dtype": dtype, "sips": sips, "sip_topology": topology}
    kernel = second_all_reduce(ccl=ccl_of(entry), **how)
    assert kernel == pytest.approx(
        second_all_reduce(algorithm="ring", **how), rel=0.1 if count == 8 else 0.02
    )


@pytest.mark.parametrize("sips", [2, 4, 8])
@pytest.mark.parametrize("count", [8192, 100_003, 524_288])
def test_the_seed_ring_kernel_and_the_naive_ring_agree(sips: int, count: int) -> None:
    """Whole tiles go round in both; each rank reads its tile, and writes the sum, once."""
    entry = {
        "module": SeedRing, "topology": "ring_1d", "mapper": "leader_only", "buffer_kind": "hbm",
        "n_slots": 4, "slot_size": 2 * count,
    }  # fmt: skip
    kernel = second_all_reduce(count, "f16", sips, ccl=ccl_of(entry))
    assert kernel == pytest.approx(second_all_reduce(count, "f16", sips, algorithm="ring_naive"), rel=0.02)


@pytest.mark.parametrize("kind", ["hbm", "tcm", "sram"])
def test_rings_of_kernel_and_library_agree_on_all_pes(kind: str) -> None:
    """Between SIPs the library keeps eight messages in flight, inside a cube four."""
    for sips, slots in ((1, 4), (2, 8)):
        machine = mt.machine("ahbm", sips=sips, cube_w=1, cube_h=1)
        entry = {
            **mt.collectives.load_ccl_config()["algorithms"][f"ring_allreduce_{kind}"],
            "mapper": "all_pes",
        }
        entry |= {"n_slots": slots, "slot_size": 2 * -(-100_003 // (8 * sips))}
        kernel = kernel_plan(entry, machine, world_size=sips, n_elem=100_003)
        ring = collective(
            "all_reduce", machine=machine, scale="pe", ranks=8 * sips, nbytes=200_006, dtype="f16",
            algorithm="ring", memory="hbm", slot_memory=kind, in_place=True,
        )  # fmt: skip
        kernel_ps, ring_ps = (mt.simulate(plan, machine=machine).time_ps for plan in (kernel, ring))
        assert kernel_ps == pytest.approx(ring_ps, rel=0.05)


def test_sums_too_large_for_near_memory_pass_in_pieces() -> None:
    for algorithm in ("ring", "ring_naive"):
        plan = collective(
            "all_reduce", machine=mt.machine("ahbm", **{"pe.tcm.size": "64 KiB", "pe.tcm.reserved": 0}),
            scale="pe", ranks=[0, 128], nbytes=2 * 50_001 * 2, dtype="f16", algorithm=algorithm, memory="hbm",
            in_place=True,
        )  # fmt: skip
        check(plan, "ahbm")
        near = plan.tile("near")
        assert near.versions * near.elements * 2 <= 32 << 10
        x = np.random.default_rng(0).integers(0, 9, (2, 100_002)).astype(np.float16)
        (found,) = execute(plan, {"x": x}).values()
        assert np.array_equal(found, np.repeat(x[:1] + x[1:], 2, axis=0))


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
