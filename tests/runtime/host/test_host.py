"""Tensors and kernels of the host, on every machine with at least two devices; the benches and their
command."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.runtime.host.shared import MACHINES
from typer.testing import CliRunner

import megatile as mt
from megatile.cli.bench import benches, load
from megatile.cli.main import app
from megatile.compat.ccl.config import load_ccl_config
from megatile.core.errors import MegatileError
from megatile.runtime.host.placement import DPPolicy
from megatile.runtime.host.workers import DistributedError, SpawnException

# --- tensors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "policy", [("row_wise", "column_wise"), ("replicate", "row_wise"), ("column_wise",) * 2]
)
def test_what_is_copied_in_comes_out(torch, policy) -> None:
    data = np.arange(15 * 21, dtype=np.float32).reshape(15, 21)
    x = torch.empty((15, 21), dtype=torch.float32, dp=DPPolicy(*policy, num_cubes=3, num_pes=4)).copy_(data)
    np.testing.assert_array_equal(x.numpy(), data)
    np.testing.assert_array_equal(x[3:7, ::2].numpy(), data[3:7, ::2])
    assert x[2, 3] == data[2, 3]
    x[1:14, 5] = 7
    data[1:14, 5] = 7
    np.testing.assert_array_equal(x.data, data)
    y = x.clone()
    x.zero_()
    np.testing.assert_array_equal(y.numpy(), data)
    assert repr(x) == "tensor(shape=(15, 21), dtype=f32, device=ahbm:0, mean=0, norm=0)"
    assert (len(x), x.ndim, x.numel(), x.size(1), x.nbytes) == (15, 2, 315, 21, 1260)


def test_a_gather_costs_more_than_a_contiguous_copy(torch) -> None:
    def cost(policy: str) -> int:
        x = torch.empty((512, 64), dp=DPPolicy(cube=policy, num_cubes=4, num_pes=1))
        before = torch.clock_ps
        x.numpy()
        return torch.clock_ps - before

    assert cost("column_wise") > cost("row_wise")


# --- kernels ---------------------------------------------------------------------------------------


def test_a_collective_kernel_that_does_not_fit() -> None:
    def worker(rank, torch):
        torch.accelerator.set_device_index(rank)
        torch.distributed.init_process_group()
        torch.distributed.all_reduce(torch.zeros(8 << 20))

    torch = mt.host("ahbm", "ccl.yaml", algorithm="hello_send", data=False)
    with pytest.raises(SpawnException, match="memory 'tcm' of machine 'ahbm' has"):
        torch.multiprocessing.spawn(worker, args=(torch,), nprocs=2)


# --- benches ---------------------------------------------------------------------------------------

QUICK = [name for name in benches() if name not in ("qkv_gpt3", "probe")]


@pytest.mark.parametrize("name", QUICK)
def test_every_bench_runs_on_every_machine(name: str, capsys) -> None:
    """With right numbers everywhere, in other times: only benches within one node cannot tell nodes apart."""
    algorithm, times = "ring" if name == "ccl_allreduce" else None, {}
    machines = MACHINES[:2] if name == "tp_transformer_block" else MACHINES  # seconds on each machine
    for machine in machines:
        smaller = {"nodes": 2} if machine == "h100-cluster" else {}
        with mt.host(machine, algorithm=algorithm, **smaller) as torch:
            assert load(name).run(torch) == 0
            report = torch.report()
        assert "OK" in capsys.readouterr().out
        assert 0 < report["pe_exec_ns"] < report["kernels_ns"] < report["total_ns"]
        assert report["network_ns"] == pytest.approx(report["kernels_ns"] - report["pe_exec_ns"])
        assert 0 < report["bound_ns"] <= report["kernels_ns"]
        parts = report["host_copies_ns"] + report["setup_ns"] + report["kernels_ns"]
        assert report["host_copies_ns"] > 0
        assert parts >= report["total_ns"] * 0.999
        times[machine] = report["total_ns"]
    inside = name in ("gemm_single_pe", "va_offset")
    assert len(set(times.values())) == len(machines) - inside, times


@pytest.mark.parametrize("name", [n for n in mt.machine_names() if mt.machine(n).count("device") >= 2])
def test_a_bench_runs_on_every_shipped_machine(name: str, capsys) -> None:
    with mt.host(name) as torch:
        assert load("va_offset").run(torch) == 0
    assert "OK" in capsys.readouterr().out


def test_the_qkv_projection_of_gpt3_without_data(capsys) -> None:
    with mt.host("ahbm", data=False) as torch:
        assert load("qkv_gpt3").run(torch) == 0
        assert torch.report()["total_ns"] > 1e6
    assert "times only" in capsys.readouterr().out


MATRIX = [
    ("intercube_allreduce", {"sips": 2}, 2, 32),
    ("intercube_allreduce", {"sips": 4, "sip_topology": "torus_2d"}, 4, 64),
    ("ring_allreduce_tcm", {"sips": 8}, 8, 8),
    ("ring_allreduce_sram", {"sips": 16}, 16, 16),
    ("ring_allreduce_hbm", {"sips": 8}, 8, 8),
    ("mesh_allreduce", {"sips": 4}, 4, 4),
    ("tree_allreduce", {"sips": 7}, 7, 7),
    ("hierarchical_allreduce", {"sips": 2}, 2, 256),
]


@pytest.mark.parametrize(("algorithm", "sizes", "ranks", "checked"), MATRIX)
def test_the_matrix_of_collective_kernels(
    algorithm: str, sizes: dict, ranks: int, checked: int, capsys
) -> None:
    with mt.host("ahbm", "ccl.yaml", algorithm=algorithm, **sizes) as torch:
        assert load("ccl_allreduce").run(torch) == 0
        rings = [n.rx_base_pa for plan in torch.ccl.installs for pe in plan.pe_installs for n in pe.neighbors]
        places = [
            (plan.sip, pe.cube, pe.pe, plan.buffer_kind, n)
            for plan in torch.ccl.installs
            for pe in plan.pe_installs
            for n in pe.neighbors
        ]
    assert capsys.readouterr().out == f" {algorithm} (ws={ranks}): {checked} OK\n"
    assert len(set(rings)) == len(rings)
    for sip, cube, pe, kind, entry in places:
        found = torch.memory.layout.decode(entry.rx_base_pa)
        assert (found.rack_id * 16 + found.sip_id, found.cube_id, found.component) == (sip, cube, kind)
        assert found.pe_id in (pe, None)


def test_a_kernel_of_ccl_says_what_it_cannot_reduce() -> None:
    def worker(rank, torch, op="sum", **options):
        torch.accelerator.set_device_index(rank)
        torch.distributed.init_process_group()
        torch.distributed.all_reduce(torch.zeros(8, **options), op)

    with mt.host("ahbm", "ccl.yaml", algorithm="ring_allreduce_tcm") as torch:
        torch.multiprocessing.spawn(lambda rank: worker(rank, torch, "max", dtype="f32"), nprocs=2)
        with pytest.raises(MegatileError, match="does not reduce by 'avg'"):
            torch.multiprocessing.spawn(lambda rank: worker(rank, torch, "avg"), nprocs=2)
        policy = DPPolicy("row_wise", num_cubes=2, num_pes=1)
        with pytest.raises(MegatileError, match="needs 1 per SIP on 2 SIPs"):
            torch.multiprocessing.spawn(lambda rank: worker(rank, torch, dp=policy), nprocs=2)
        assert load("ccl_allreduce").run(torch) == 0


def test_the_command(tmp_path: Path) -> None:
    run = CliRunner().invoke
    out = run(
        app, ["bench", "ccl_allreduce", "--set", "sips=4", "-a", "tree_allreduce"], catch_exceptions=False
    )
    assert out.exit_code == 0
    assert " tree_allreduce (ws=4): 4 OK" in out.stdout
    assert all(
        word in out.stdout
        for word in ("total", "host copies", "kernels", "PE execution", "network", "roofline bound")
    )
    same = run(app, ["run", "--set", "sips=4", "--bench", "ccl_allreduce", "-a", "tree_allreduce"])
    assert (same.exit_code, same.stdout) == (0, out.stdout)
    assert run(app, ["run", "--bench=va_offset", "-m", "dgx-h100"]).exit_code == 0
    assert run(app, ["run", "--bench"]).exit_code == 2
    out = run(app, ["bench", "gemm_single_pe", "--json", "--trace", str(tmp_path / "t.jsonl")])
    found = json.loads(out.stdout)
    assert found["schema"] == "megatile.bench/1"
    assert found["failures"] == 0
    assert (tmp_path / "t.jsonl").stat().st_size > 1000
    out = run(app, ["bench", "va_offset", "--report", str(tmp_path / "page.html")])
    assert "va_offset on ahbm" in (tmp_path / "page.html").read_text()
    out = run(app, ["bench", "va_offset", "--log", str(tmp_path / "ops.jsonl")])
    assert out.exit_code == 0
    data = np.arange(4 * 4 * 96).reshape(16, 96)
    np.testing.assert_array_equal(mt.replay(tmp_path / "ops.jsonl", {"x": data})["x"], 2 * data)
    own = tmp_path / "own.py"
    own.write_text("def run(torch):\n    print(torch.spec['name'])\n    return 2\n")
    out = run(app, ["bench", str(own), "-m", "dgx-h100"])
    assert (out.exit_code, out.stdout.splitlines()[0]) == (1, "dgx-h100")
    for text, message in (("x = 1", "has no function run"), ("def", "own.py:1")):
        own.write_text(text)
        with pytest.raises(MegatileError, match=message):
            run(app, ["bench", str(own)], catch_exceptions=False)
    with pytest.raises(MegatileError, match="did you mean 'va_offset'"):
        run(app, ["bench", "va_ofset"], catch_exceptions=False)


def test_debug_mode_warns(torch, monkeypatch) -> None:
    torch.zeros(2)
    monkeypatch.setenv("MEGATILE_DEBUG", "1")
    with pytest.warns(UserWarning, match="no device was chosen"):
        torch.zeros(2)
    with pytest.warns(UserWarning, match="get_rank outside a worker is 0"):
        torch.distributed.get_rank()


def test_queues_are_installed_once_in_any_order() -> None:
    with mt.host("ahbm", "ccl.yaml", algorithm="intercube_allreduce") as torch:
        ccl = torch.ccl
        seats = [(sip, cube, pe) for sip in range(2) for cube, pe in ccl.participants]
        ccl.install(seats[::-1][:20])
        with pytest.raises(DistributedError, match=r"\(1, 15, 0\) is already installed"):
            ccl.install([seats[-1]])
        with pytest.raises(DistributedError, match="takes no part"):
            ccl.install([(0, 0, 5)])
        ccl.install(s for s in seats if s not in ccl.installed)
        with pytest.raises(DistributedError, match="is already installed"):
            ccl.install()
        torch.installed = True
        assert load("ccl_allreduce").run(torch) == 0
        places = [torch.memory.layout.decode(n.rx_base_pa) for n in ccl.installs[1].pe_installs[3].neighbors]
        assert {(p.sip_id, p.cube_id, p.pe_id, p.component) for p in places} == {(1, 3, 0, "tcm")}


def test_the_world_is_as_large_as_the_configuration_says() -> None:
    config = load_ccl_config()
    with mt.host("ahbm", config, algorithm="ring_allreduce_tcm", sips=4) as torch:
        assert torch.distributed.get_world_size() == 4
    config["algorithms"]["ring_allreduce_tcm"] |= {"world_size": 2}
    with mt.host("ahbm", config, algorithm="ring_allreduce_tcm", sips=4) as torch:
        assert torch.distributed.get_world_size() == 2
        with pytest.raises(RuntimeError, match="world size 2 is not the number of devices 4"):
            load("ccl_allreduce").run(torch)
    with mt.host("dgx-h100", "ccl.yaml") as torch:
        assert torch.distributed.get_world_size() == 8
        assert torch.distributed.participants() == ()


def test_a_deadlock_shows_where_queues_receive() -> None:
    def worker(rank, torch):
        torch.accelerator.set_device_index(rank)
        torch.distributed.init_process_group()
        torch.distributed.all_reduce(torch.zeros(8))

    entry = {"module": "tests.runtime.host.stuck_allreduce", "topology": "ring_1d"}
    with mt.host("ahbm", {"algorithms": {"stuck": entry}}, trust=True) as torch:
        with pytest.raises(SpawnException) as caught:
            torch.multiprocessing.spawn(worker, args=(torch,), nprocs=2)
        text = str(caught.value)
    assert "deadlocked" in text
    assert "sip0/cube0/pe0 W <-> sip1/cube0/pe0 E: receives at 0x" in text
    assert "= sip0/cube0/pe0 tcm+0x" in text


BAD = {
    "torch.zeros('a')": "is not a shape",
    "torch.zeros(4, dp='row_wise')": "is not a DPPolicy",
    "torch.zeros(1 << 60)": "asked for",
    "torch.zeros(4, device='cuda:x')": "there is no device",
    "torch.accelerator.set_device_index(None)": "there is no device None",
    "torch.accelerator.set_device_index(1.5)": "there is no device 1.5",
    "torch.from_numpy(['a'])": "unknown",
    "x.copy_('abcd')": "unknown",
    "x[9]": "out of bounds",
    "x.to(object())": "there is no device",
    "torch.launch('k', None, x)": "k",
    "torch.launch('k', print, x, nope=1)": "has no option 'nope'",
    "torch.multiprocessing.spawn(None)": "spawn takes a function",
    "torch.multiprocessing.spawn(print, nprocs='2')": "'2' workers do not fit",
    "torch.distributed.all_reduce(None)": "takes tensors",
    "torch.distributed.all_reduce(x, op='xor')": "is not a reduction",
    "torch.distributed.all_reduce(x, group='g')": "is not a group",
    "torch.distributed.broadcast(x, src=9)": "rank 9 is not in",
    "torch.distributed.new_group(3)": "is not a list of ranks",
    "torch.distributed.new_group([0, 9])": "is not a group of the ranks",
    "torch.distributed.all_gather(None, x)": "takes a list of tensors",
    "torch.distributed.send(x, 0)": "cannot send to itself",
    "torch.distributed.batch_isend_irecv([3])": "takes P2POps",
    "torch.distributed.get_global_rank(torch.distributed.world, 7)": "has no rank 7",
    "torch.memory.pe(0, 0, 0).alloc_hbm(-1)": "-1 bytes cannot be allocated",
    "mt.host(None)": "machine",
    "mt.host('ahbm', ccl=3)": "ccl is a file or a configuration",
    "mt.host('ahbm', algorithm='nope')": "unknown algorithm 'nope'",
}


@pytest.mark.parametrize("call", BAD)
def test_bad_input_is_one_clear_error(torch, call: str) -> None:
    torch.distributed.init_process_group()
    with pytest.raises(MegatileError, match=BAD[call]):
        eval(call, {"torch": torch, "x": torch.zeros(4), "mt": mt})  # noqa: S307
