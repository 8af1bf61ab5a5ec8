"""A KernBench user's own files: her bench, her ``ccl.yaml`` and kernels, with renamed imports only."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import megatile as mt
import megatile.parallel as tp
from megatile.cli.main import main
from megatile.compat.ccl.install import build_install_plans
from megatile.compat.ccl.spec import spec_of
from megatile.compat.runtime_api import (
    DeviceSelector,
    GraphEngine,
    RuntimeContext,
    resolve_topology,
)
from megatile.hda import HDA, machine
from megatile.language.tl import IpcqInvalidDirection
from megatile.runtime.host.placement import DPPolicy

BENCH = """
from __future__ import annotations
from dataclasses import dataclass
import numpy as np
from megatile.collectives import load_ccl_config, resolve_algorithm_config
from megatile.runtime.host.placement import DPPolicy

@dataclass(frozen=True)
class Settings:
    algorithm: str
    elements: int
    cubes: int
    ranks: int

def settings(torch) -> Settings:
    merged = resolve_algorithm_config(load_ccl_config())
    spec = torch.spec or {}
    ranks = torch.distributed.get_world_size()
    if ranks != int(spec.get("system", {}).get("sips", {}).get("count", 1)):
        raise RuntimeError("world_size is not the number of SIPs")
    mesh = spec["sip"]["cube_mesh"]
    return Settings(merged["algorithm"], int(merged.get("n_elem", 8)), int(mesh["w"]) * int(mesh["h"]), ranks)

def worker(rank: int, has: Settings, torch) -> None:
    torch.ahbm.set_device(rank)
    dp = DPPolicy(cube="row_wise", pe="replicate", num_cubes=has.cubes, num_pes=1)
    x = torch.zeros((has.cubes, has.elements), dtype="f16", dp=dp, name=f"x{rank}")
    x.copy_(torch.from_numpy(np.full((has.cubes, has.elements), rank + 1.0, dtype=np.float16)))
    torch.distributed.all_reduce(x, op="sum")
    if rank == 0:
        expected = has.cubes * sum(range(1, has.ranks + 1))
        word = "OK" if np.allclose(x.numpy(), expected) else f"[FAIL] {x.numpy().mean()}, not {expected}"
        print(f" {has.algorithm} (ws={has.ranks}): {has.ranks * has.cubes} {word}")

def run(torch) -> None:
    torch.distributed.init_process_group(backend="ahbm")
    has = settings(torch)
    torch.multiprocessing.spawn(worker, args=(has, torch), nprocs=has.ranks)
"""
HEAD = """
defaults:
  algorithm: {name}
  buffer_kind: tcm
  backpressure: sleep
  n_slots: 4
  slot_size: 4096
  vc_chunk_size: 256
  ipcq_credit_size_bytes: 16
algorithms:
  {name}:
    module: {module}
    topology: {topology}
    n_elem: 8
"""
OURS = "megatile.collectives.kernels."
# Kernels in KernBench's form: the SIP's own tensor, positional kernel_args, a table of the SIPs' topologies.
RING = """
def kernel_args(world_size: int, n_elem: int) -> tuple:
    return (n_elem, world_size)

def kernel(t_ptr, n_elem, world_size, tl):
    rank = tl.program_id(axis=1) * tl.num_programs(axis=0) + tl.program_id(axis=0)
    mine = t_ptr + rank * n_elem * 2
    total = current = tl.load(mine, shape=(n_elem,), dtype="f16")
    for _ in range(world_size - 1):
        tl.send(dir="E", src=current)
        current = tl.recv(dir="W", shape=(n_elem,), dtype="f16")
        total = total + current
    tl.store(mine, total)
"""
COLUMN = """
TOPO_NAME_TO_KIND = {"ring_1d": 0, "torus_2d": 1, "mesh_2d_no_wrap": 2}

def kernel_args(world_size: int, n_elem: int) -> tuple:
    return (n_elem, 4, 4, world_size)

def along(tl, total, place, last, up, down, n_elem):
    if place > 0:
        total = total + tl.recv(dir=up, shape=(n_elem,), dtype="f16")
    if place < last:
        tl.send(dir=down, src=total)
        total = tl.recv(dir=down, shape=(n_elem,), dtype="f16")
    if place > 0:
        tl.send(dir=up, src=total)
    return total

def kernel(t_ptr, n_elem, cube_w, cube_h, n_sips, sip_rank, kind, sip_w, sip_h, tl):
    cube = tl.program_id(axis=1)
    mine = t_ptr + cube * n_elem * 2
    total = tl.load(mine, shape=(n_elem,), dtype="f16")
    total = along(tl, total, cube % cube_w, cube_w - 1, "W", "E", n_elem)
    total = along(tl, total, cube // cube_w, cube_h - 1, "N", "S", n_elem)
    if kind == 0:
        total = along(tl, total, sip_rank, n_sips - 1, "global_W", "global_E", n_elem)
    else:
        total = along(tl, total, sip_rank % sip_w, sip_w - 1, "global_W", "global_E", n_elem)
        total = along(tl, total, sip_rank // sip_w, sip_h - 1, "global_N", "global_S", n_elem)
    tl.store(mine, total)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bench.py").write_text(BENCH)
    return tmp_path


def ccl(name: str, module: str, topology: str, *more: str) -> None:
    text = HEAD.format(name=name, module=module, topology=topology)
    Path("ccl.yaml").write_text(text + "".join(f"    {line}\n" for line in more))


def megatile(capsys, monkeypatch, *arguments: str) -> str:
    monkeypatch.setattr(sys, "argv", ["megatile", *arguments])
    with pytest.raises(SystemExit):
        main()
    shown = capsys.readouterr()
    return shown.out + shown.err


def test_bench_and_its_ccl_file(folder, capsys, monkeypatch) -> None:
    ccl("intercube_allreduce", f"{OURS}intercube_allreduce", "none", "root_cube: 15")
    for bench in ("bench.py", "ccl_allreduce"):
        assert " intercube_allreduce (ws=2): 32 OK\n" in megatile(capsys, monkeypatch, "bench", bench)
    assert "hierarchical_allreduce" in megatile(
        capsys, monkeypatch, "bench", "ccl_allreduce", "-a", "hierarchical_allreduce"
    )  # not in ./ccl.yaml, which is what counts


@pytest.mark.parametrize("topology", ["ring_1d", "torus_2d", "mesh_2d_no_wrap"])
def test_kernel_in_kernbench_form(folder, capsys, monkeypatch, topology) -> None:
    (folder / "column.py").write_text(COLUMN)
    ccl("column", "column", "none")
    options = ("--set", "sips=4", "--set", f"sip_topology={topology}", "--trust")
    assert " column (ws=4): 64 OK\n" in megatile(capsys, monkeypatch, "bench", "bench.py", *options)
    assert "would run its code" in megatile(capsys, monkeypatch, "bench", "bench.py", *options[:-1])


@pytest.mark.parametrize(
    ("module", "topology", "ranks"),
    [("ring_allreduce", "ring_1d", 8), ("mesh_allreduce", "mesh_2d", 4), ("tree_allreduce", "tree_binary", 7),
     ("ring_allreduce", "ring_1d", 16), ("ring", "ring_1d", 8), ("ring", "ring_1d", 2)],
)  # fmt: skip
def test_ranks_beyond_the_sips_are_pes(folder, capsys, monkeypatch, module, topology, ranks) -> None:
    (folder / "ring.py").write_text(RING)
    ccl("mine", module if module == "ring" else OURS + module, topology, f"world_size: {ranks}")
    shown = megatile(capsys, monkeypatch, "bench", "ccl_allreduce", "--trust")
    assert f" mine (ws={ranks}): {ranks} OK\n" in shown


def test_one_driver_reduces_over_pes(folder) -> None:
    """KernBench's older form: no workers, one tensor whose shards are the ranks'."""
    ccl("mine", f"{OURS}ring_allreduce", "ring_1d", "world_size: 8")
    with mt.host("ahbm") as torch:
        torch.distributed.init_process_group(backend="ahbm")
        assert torch.distributed.get_world_size() == 8
        x = torch.zeros((1, 64), dtype="f16", dp=DPPolicy(pe="column_wise", num_cubes=1, num_pes=8))
        x.copy_(np.repeat(np.arange(1, 9), 8).astype(np.float16).reshape(1, 64))
        torch.distributed.all_reduce(x, op="sum")
        assert (x.numpy() == 36).all()


def test_pes_that_are_not_whole_cubes(folder, capsys, monkeypatch) -> None:
    ccl("mine", f"{OURS}ring_allreduce", "ring_1d", "world_size: 12")
    assert "12 PEs of a SIP that take part are not whole cubes" in megatile(
        capsys, monkeypatch, "bench", "ccl_allreduce"
    )


@pytest.mark.parametrize("n_elem", [8, 40])
def test_n_elem_decides_the_size(folder, n_elem) -> None:
    ccl("mine", f"{OURS}ring_allreduce", "ring_1d", "buffer_kind: sram")
    Path("ccl.yaml").write_text(Path("ccl.yaml").read_text().replace("n_elem: 8", f"n_elem: {n_elem}"))
    from megatile.runtime.benches import ccl_allreduce

    with mt.host("ahbm") as torch:
        assert ccl_allreduce.run(torch) == 0
        (done,) = torch.communications
    assert done.nbytes == n_elem * 2


def test_local_file_is_for_machines_with_cubes_and_for_nobody_who_chose(folder) -> None:
    ccl("mine", f"{OURS}ring_allreduce", "ring_1d")
    assert mt.host("ahbm").distributed.algorithm == "mine"
    assert mt.host("dgx-h100").ccl is None
    assert mt.host("ahbm", algorithm="auto").ccl is None
    assert mt.host("ahbm", "ccl.yaml").ccl.name == "mine"


def test_tensor_parallel_layers_beside_a_kernel_for_cubes(folder) -> None:
    ccl("intercube_allreduce", f"{OURS}intercube_allreduce", "none", "root_cube: 15")
    found = {}

    def worker(rank, torch):
        torch.ahbm.set_device(rank)
        layer = tp.RowParallelLinear(in_features=64, out_features=32, torch=torch)
        layer.weight.copy_(np.full((32, 32), 0.01 * (rank + 1), np.float16))
        x = torch.zeros((4, 32), dtype="f16").copy_(np.full((4, 32), 0.1 * (rank + 1), np.float16))
        found[rank] = layer.forward(x).numpy()
        with pytest.raises(RuntimeError, match="runs on 16 PEs of 2 SIPs, the tensors have 2 shards"):
            torch.ccl.check([s for other in (0, 1) for s in torch.ones(4, device=other).shards])

    with mt.host("ahbm") as torch:
        torch.distributed.init_process_group(backend="ahbm")
        tp.initialize_model_parallel(2)
        torch.multiprocessing.spawn(worker, args=(torch,), nprocs=2)
    np.testing.assert_allclose(found[0], 0.16, rtol=1e-2)
    np.testing.assert_array_equal(found[0], found[1])


def test_spec_is_a_nested_dict_of_any_machine() -> None:
    spec = mt.host("ahbm", sips=4, sip_topology="torus_2d").spec
    assert spec["system"]["sips"]["count"] == 4
    assert spec["system"]["sips"]["topology"] == "torus_2d"
    assert (spec["sip"]["cube_mesh"]["w"], spec["sip"]["cube_mesh"]["h"]) == (4, 4)
    assert len(spec["cube"]["pe_layout"]["corners"]) * spec["cube"]["pe_layout"]["pe_per_corner"] == 8
    again = HDA.from_dict(spec)
    assert [level.total for level in again.levels] == [512, 64, 4, 1]
    assert again.memory("tcm").reserved == machine("ahbm").memory("tcm").reserved
    config = {"module": f"{OURS}intercube_allreduce", "algorithm": "x"}
    assert build_install_plans(4, "x", config, spec) == build_install_plans(4, "x", config, again)
    gpus = spec_of(machine("dgx-h100"))
    assert gpus["system"]["sips"]["count"] == 8
    assert gpus["sip"]["cube_mesh"]["w"] * gpus["cube"]["pe_layout"]["pe_per_corner"] == 132


def mapper(spec, rank):
    mesh = spec["sip"]["cube_mesh"]
    return [(mesh["w"] * mesh["h"] - 1, 0)]


def validator(tensor, world_size, spec):
    if len(tensor.shards) != spec["system"]["sips"]["count"]:
        raise ValueError(f"{len(tensor.shards)} shards")


def test_own_mapper_and_validator_get_the_dict(folder) -> None:
    own = f"{__name__}:"
    ccl("mine", f"{OURS}ring_allreduce", "ring_1d", f"mapper: {own}mapper", f"validator: {own}validator")
    with mt.host("ahbm", trust=True) as torch:
        assert torch.distributed.participants() == ((15, 0),)
        x = torch.zeros((16, 8), dp=DPPolicy(cube="row_wise", num_pes=1))
        with pytest.raises(RuntimeError, match="all_reduce by 'mine': 16 shards"):
            torch.ccl.check(x.shards)


APP = """
import importlib
import math
import numpy as np
from megatile.collectives import configure_sfr_intercube_multisip, load_ccl_config, resolve_algorithm_config
from megatile.runtime.host.placement import DPPolicy

def run_allreduce(ctx, engine, spec, *, algorithm=None, ccl_yaml=None):
    cfg = resolve_algorithm_config(load_ccl_config(ccl_yaml), algorithm)
    algo_module = importlib.import_module(cfg["module"])
    kernel_fn, kinds = algo_module.kernel, algo_module.TOPO_NAME_TO_KIND
    n_elem = int(cfg.get("n_elem", 8))
    n_sips = int(spec.get("system", {}).get("sips", {}).get("count", 1))
    sip_topo = str(spec.get("system", {}).get("sips", {}).get("topology", "ring_1d"))
    cube_w, cube_h = int(spec["sip"]["cube_mesh"]["w"]), int(spec["sip"]["cube_mesh"]["h"])
    n_cubes = cube_w * cube_h
    side = 0 if sip_topo == "ring_1d" else int(round(math.sqrt(n_sips)))
    configure_sfr_intercube_multisip(engine, spec, cfg)
    dp = DPPolicy(cube="row_wise", pe="replicate", num_pes=1, num_cubes=n_cubes)
    tensors = []
    for sip in range(n_sips):
        ctx.ahbm.set_device(sip)
        t = ctx.zeros((n_cubes, n_elem), dtype="f16", dp=dp, name=f"sip{sip}")
        t.copy_(ctx.from_numpy(np.full((n_cubes, n_elem), float(sip + 1), dtype=np.float16)))
        tensors.append(t)
    t_start, all_pending = engine._env.now, []
    for sip_rank, t in enumerate(tensors):
        pending = ctx.launch(
            "allreduce", kernel_fn, t, n_elem, cube_w, cube_h, n_sips, sip_rank, kinds.get(sip_topo, 0),
            side, side, _defer_wait=True,
        )
        all_pending.extend(pending)
    for h, sip_id, meta in all_pending:
        ctx.wait(h, _meta=meta)
    latency_ns = engine._env.now - t_start
    traces = [trace for _, trace in engine._results.values() if trace["name"] == "allreduce"]
    expected = float(n_cubes * sum(range(1, n_sips + 1)))
    for t in tensors:
        assert np.allclose(t.numpy(), expected), t.numpy()
    return {"ok_cubes": n_sips * n_cubes, "latency_ns": latency_ns, "traces": traces}
"""


@pytest.mark.parametrize(
    "module", ["column_kernel", f"{OURS}intercube_allreduce", f"{OURS}lrab_hierarchical_allreduce"]
)
@pytest.mark.parametrize(
    ("sips", "topology"), [(1, "ring_1d"), (2, "ring_1d"), (4, "torus_2d"), (4, "mesh_2d_no_wrap")]
)
def test_launches_on_all_sips_exchange_messages(folder, monkeypatch, sips, topology, module) -> None:
    """KernBench's test program ``allreduce_app``: a deferred launch per SIP, then all are waited for."""
    monkeypatch.syspath_prepend(str(folder))
    Path("column_kernel.py").write_text(COLUMN)
    ccl("column", module, "none")
    namespace: dict = {}
    exec(APP, namespace)
    topo = resolve_topology(machine("ahbm", sips=sips, sip_topology=topology))
    engine = GraphEngine(topo.topology_obj, enable_data=True)
    with RuntimeContext(engine=engine, target_device=DeviceSelector("all"), trust=True) as ctx:
        found = namespace["run_allreduce"](ctx, engine, topo.spec, ccl_yaml="ccl.yaml")
    assert found["ok_cubes"] == 16 * sips
    (trace,) = found["traces"]
    assert trace["sips"] == tuple(range(sips))
    assert trace["network_ns"] + trace["pe_exec_ns"] == pytest.approx(trace["total_ns"])
    assert found["latency_ns"] == pytest.approx(trace["total_ns"])
    assert trace["total_ns"] > 783 + (sips > 1) * 2 * 300, "the messages between SIPs take their time"


def test_held_launches_run_when_their_tensors_are_needed(folder) -> None:
    """A deferred launch of one SIP alone, and two of one SIP one after the other."""

    def double(t_ptr, count, tl):
        mine = t_ptr + tl.program_id(1) * count * 2
        tl.store(mine, tl.load(mine, shape=(count,), dtype="f16") * 2.0)

    with mt.host("ahbm", ccl="ccl.yaml") as torch:
        torch.install_ipcq(algorithm="intercube_allreduce")
        dp = DPPolicy(cube="row_wise", num_cubes=16, num_pes=1)
        x = torch.ones((16, 8), dp=dp)
        one = torch.launch("double", double, x, 8, _defer_wait=True)
        two = torch.launch("double", double, x, 8, _defer_wait=True)
        assert (x.numpy() == 4).all()
        assert one.end_ps < two.end_ps
        torch.wait(two)
        ((held, device, _),) = torch.launch("double", double, x, 8, _defer_wait=True)
        assert device == 0
        x.copy_(np.ones((16, 8), np.float16))
        assert (x.numpy() == 1).all()
        assert held.end_ps <= torch.clock_ps
        torch.launch("double", double, x, 8, _defer_wait=True)
        assert torch.report()["kernels_ns"] == pytest.approx(4 * one.took_ps / 1000)
        torch.launch("double", double, x, 8, _defer_wait=True)
        before = torch.clock_ps
        torch.synchronize()
        assert torch.clock_ps > before


def test_ranks_launch_kernels_that_send_to_each_other() -> None:
    """Each rank has its own launch; one that alone waits for messages of the others is a deadlock."""

    def swap(t_ptr, count, tl):
        mine = t_ptr + tl.program_id(1) * count * 2
        tl.send(dir="global_E", src=tl.load(mine, shape=(count,), dtype="f16"))
        tl.store(mine, tl.recv(dir="global_W", shape=(count,), dtype="f16"))

    dp = DPPolicy(cube="row_wise", num_cubes=16, num_pes=1)
    with mt.host("ahbm", ccl="ccl.yaml", log=True) as torch:
        torch.install_ipcq(algorithm="intercube_allreduce")

        def worker(rank) -> None:
            torch.ahbm.set_device(rank)
            x = torch.ones((16, 8), dp=dp, name=f"x{rank}").copy_(np.full((16, 8), rank + 1.0, np.float16))
            launch = torch.launch("swap", swap, x, 8, _defer_wait=True)
            torch.wait(launch)
            assert (x.numpy() == 2 - rank).all()

        torch.multiprocessing.spawn(worker, nprocs=2)
        again = mt.replay(torch.op_log)
        assert (again["x0"] == 2).all()
        lonely = torch.launch("swap", swap, torch.ones((16, 8), dp=dp), 8, _defer_wait=True)
        with pytest.raises(IpcqInvalidDirection, match="global_E"):
            torch.wait(lonely)
