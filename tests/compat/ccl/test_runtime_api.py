"""KernBench's Python names: run_bench and its traces, install_ipcq, memories by address, pointer dumps."""

from __future__ import annotations

import numpy as np
import pytest

import megatile as mt
from megatile.collectives import configure_sfr, load_ccl_config, pointer_dump, resolve_algorithm_config
from megatile.collectives.kernels import hello_send
from megatile.compat.runtime_api import (
    GraphEngine,
    RuntimeContext,
    resolve_device,
    resolve_topology,
    run_bench,
)
from megatile.core.errors import MegatileError
from megatile.hda.addresses import PhysAddr
from megatile.language.tl import IpcqDeadlock
from megatile.runtime.host.placement import DPPolicy, column_wise, replicate, row_wise
from megatile.runtime.host.storage import TensorError
from megatile.runtime.host.workers import DistributedError

PES = DPPolicy(cube="replicate", pe="column_wise", num_cubes=1)


def shifted(torch) -> None:
    """Every PE hands its tile to the next, through queues that install_ipcq wires."""
    plan = torch.install_ipcq(algorithm="ring_allreduce_tcm", world_size_override=8)
    assert plan["world_size"] == 8
    assert plan["neighbor_table"][0] == {"E": 1, "W": 7}
    x = torch.zeros((1, 64), dtype="f16", dp=PES, name="x")
    base, store = x._handle.va_base, torch.engine.memory_store
    for rank in range(8):
        store.write("hbm", base + rank * 16, np.full(8, rank + 1.0, np.float16))
    torch.launch("hello_send", hello_send.kernel, x, 8)
    for rank in range(8):
        found = store.read("hbm", base + rank * 16, shape=(8,), dtype="f16")
        assert (found == (rank - 1) % 8 + 1).all()


def test_run_bench_returns_a_trace_per_launch() -> None:
    result = run_bench(
        topology=resolve_topology("ahbm"),
        bench_fn=shifted,
        device=resolve_device("all"),
        engine_factory=lambda topology, device: GraphEngine(topology.topology_obj, enable_data=True),
    )
    assert result.completion.ok
    (kernel,) = [trace for trace in result.traces if trace["phase"] == "kernel"]
    assert (kernel["name"], kernel["sip"]) == ("hello_send", 0)
    assert kernel["total_ns"] > 0
    assert kernel["network_ns"] == pytest.approx(kernel["total_ns"] - kernel["pe_exec_ns"])
    assert {trace["phase"] for trace in result.traces} == {"install", "map", "kernel"}
    assert result.report["total_ns"] >= kernel["total_ns"]
    assert not run_bench("ahbm", lambda torch: 3).completion.ok


def test_installed_queues_decide_how_kernels_are_wired() -> None:
    def upwards(t_ptr, count, tl):
        tl.send(dir="S", src=tl.load(t_ptr + tl.program_id(0) * count * 2, shape=(count,), dtype="f16"))
        tl.store(t_ptr + tl.program_id(0) * count * 2, tl.recv(dir="N", shape=(count,), dtype="f16"))

    with mt.host("ahbm") as torch:
        torch.install_ipcq(algorithm="mesh_allreduce", world_size_override=4)
        x = torch.zeros((1, 32), dp=DPPolicy(pe="column_wise", num_cubes=1, num_pes=4))
        x.copy_(np.repeat(np.arange(4), 8).astype(np.float16).reshape(1, 32))
        torch.launch("upwards", upwards, x, 8)
        assert x.numpy()[0, ::8].tolist() == [2, 3, 0, 1]
        with pytest.raises(DistributedError, match="already installed"):
            torch.install_ipcq(algorithm="ring_allreduce_tcm")


def test_machines_without_queues_install_none() -> None:
    for call in ({}, {"algorithm": "ring_allreduce_tcm"}):
        with pytest.raises(DistributedError, match="is chosen that 'dgx-h100' can install"):
            mt.host("dgx-h100").install_ipcq(**call)
    with pytest.raises(MegatileError, match="no queues are installed"):
        pointer_dump(mt.host("dgx-h100"))
    torch = mt.host("ahbm")
    with pytest.raises(MegatileError, match="needs a square number of units, not 5"):
        torch.install_ipcq(algorithm="mesh_allreduce", world_size_override=5)
    assert torch.install_ipcq(algorithm="ring_allreduce_tcm")["world_size"] == 2  # as if it had not been


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda t: run_bench("ahbm", None), "a bench is a function of torch, not NoneType"),
        (lambda t: run_bench("ahbm", print, device="sip:7"), "there is no device 7"),
        (lambda t: resolve_device(None), "None selects no device"),
        (lambda t: t.memory_store.read("hbm", "x", shape=(1,)), "'x' is not an address"),
        (lambda t: t.cuda.Event().query(), "the event was not recorded"),
        (lambda t: t.multiprocessing.Process(target=7), "a process needs a function"),
    ],
)
def test_wrong_arguments_are_one_sentence(call, said) -> None:
    with pytest.raises(MegatileError, match=said):
        call(mt.host("ahbm"))


def test_sfr_of_an_engine_and_of_a_machine() -> None:
    config = resolve_algorithm_config(load_ccl_config(), name="intercube_allreduce")
    topology = resolve_topology("ahbm")
    engine = GraphEngine(topology, enable_data=True)
    plan = configure_sfr(engine, topology.spec, config)
    assert plan["world_size"] == len(plan["rank_to_pe"]) == 32
    assert all(pe == 0 for _, _, pe in plan["rank_to_pe"])
    with RuntimeContext(engine=engine, target_device=resolve_device("all"), spec=topology.spec) as ctx:
        assert configure_sfr(engine, ctx.spec, config)["neighbor_table"] == plan["neighbor_table"]
        assert ctx.ccl.installs[0].pe_installs[0].neighbors[0].rx_base_pa is not None


def receives(t_ptr, tl):
    tl.recv(dir="E", shape=(8,), dtype="f16")


def test_pointer_dump_counts_messages() -> None:
    with mt.host("ahbm") as torch:
        torch.install_ipcq(algorithm="ring_allreduce_tcm", world_size_override=8)
        before = pointer_dump(torch.engine)
        assert before.splitlines()[:2] == [
            "sip0.cube0.pe0", "  E: my_head=0 my_tail=0 peer_head_cache=0 peer_tail_cache=0",
        ]  # fmt: skip
        torch.distributed.init_process_group()
        x = torch.zeros((1, 64), dp=PES)
        for _ in range(2):
            torch.distributed.all_reduce(x)
        lines = pointer_dump(torch).splitlines()
        assert lines[1] == "  E: my_head=28 my_tail=0 peer_head_cache=0 peer_tail_cache=28"
        assert lines[2] == "  W: my_head=0 my_tail=28 peer_head_cache=28 peer_tail_cache=0"
        with pytest.raises(IpcqDeadlock) as stuck:
            torch.launch("stuck", receives, x)
        assert "my_head=0 my_tail=0" in pointer_dump(stuck.value)


def test_memory_by_address() -> None:
    with mt.host("ahbm") as torch:
        x = torch.zeros((2, 64), dp=DPPolicy(cube="replicate", pe="column_wise", num_cubes=2), name="x")
        shard = x.shards[3]
        assert isinstance(shard.pa, int)
        assert PhysAddr.decode(shard.pa) == shard.address
        assert (shard.address.cube_id, shard.pa < 1 << 51) == (0, True)
        store = torch.memory_store
        store.write("hbm", shard.pa, np.ones(4, np.float16))  # this copy
        assert x.numpy()[0, 24:28].tolist() == [1] * 4
        assert store.read("hbm", x.shards[11].pa, shape=(4,)).sum() == 0
        store.write("hbm", x.va_base + shard.offset_bytes, np.full(4, 2, np.float16))  # all copies
        assert store.read("hbm", x.shards[11].pa, shape=(4,)).tolist() == [2] * 4
        with pytest.raises(TensorError, match="no tensor lies at 0x7 of hbm"):
            store.read("hbm", 7, shape=(1,))
        with pytest.raises(TensorError, match="which ends after 32"):
            store.write("hbm", shard.pa, np.ones(17, np.float16))


@pytest.mark.parametrize("policy", [column_wise, row_wise, replicate])
def test_policies_are_functions(policy) -> None:
    shards = policy(shape=(1024, 512), itemsize=2, num_pe=8)
    each = 1024 * 512 * 2 // (1 if policy is replicate else 8)
    assert [(s.local_pe, s.nbytes) for s in shards] == [(i, each) for i in range(8)]
    assert shards[1].offset_bytes == (0 if policy is replicate else each)
