"""Tensors and kernels of the host, on every machine with at least two devices; the benches and their
command."""

from __future__ import annotations

import gc
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import megatile as mt
from megatile.cli.bench import benches, load
from megatile.cli.main import app
from megatile.compat.ccl.config import load_ccl_config
from megatile.core.errors import MegatileError
from megatile.runtime.host.allocators import AllocationError
from megatile.runtime.host.context import DeviceSelector, HostError
from megatile.runtime.host.placement import DPPolicy, PlacementError
from megatile.runtime.host.storage import ShapeMismatch, TensorError
from megatile.runtime.host.tl_kernels import LaunchError
from megatile.runtime.host.workers import DistributedError, SpawnException

MACHINES = ["ahbm", "dgx-h100", "h100-cluster", "hgx-a100", "mi300x-8"]


@pytest.fixture
def torch():
    with mt.host("ahbm") as namespace:
        yield namespace


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


def test_conversions(torch) -> None:
    data = np.linspace(0, 1, 8, dtype=np.float32)
    x = torch.tensor(data)
    assert (x.dtype, x.device) == ("f32", "ahbm:0")
    half = x.to(torch.float16)
    np.testing.assert_array_equal(half.numpy(), data.astype(np.float16))
    there = x.to(1)
    assert there.device == "ahbm:1"
    np.testing.assert_array_equal(there.numpy(), data)
    assert x.to("cpu").device == x.cpu().device == "cpu"
    assert x.to(torch.float32) is x
    assert torch.ones(3).tolist() == [1, 1, 1]
    assert torch.tensor([5]).item() == 5
    with pytest.raises(HostError, match="there is no device 2"):
        torch.accelerator.set_device_index(2)
    with pytest.raises(HostError, match="there is no device 'ahbm:9'"):
        x.to("ahbm:9")


def test_mistakes_with_tensors(torch) -> None:
    x = torch.zeros((2, 3), name="x")
    with pytest.raises(ShapeMismatch, match=r"copy_ shape mismatch: \(3, 2\) into \(2, 3\)"):
        x.copy_(np.zeros((3, 2)))
    with pytest.raises(ValueError, match="'x'"):
        x[0] = np.zeros(4)
    with pytest.raises(TensorError, match="6 elements"):
        x.item()
    with pytest.raises(PlacementError, match="is not a shape"):
        torch.zeros((2, -1))
    with pytest.raises(MegatileError, match="dtype 'f17' is unknown"):
        torch.zeros(2, dtype="f17")
    with pytest.raises(TensorError, match="host has no shards"):
        _ = torch.from_numpy(np.ones(2)).shards
    with pytest.raises(HostError, match="selects no device"):
        DeviceSelector("sip:x")


def test_memory_comes_back(torch) -> None:
    pool = torch.memory.pe(0, 0, 0).pools["hbm"]
    free = pool.free_bytes
    x = torch.zeros(1 << 20, name="x")
    assert pool.free_bytes < free
    x.free()
    assert pool.free_bytes == free
    for use in (x.numpy, lambda: x[0], lambda: torch.launch("k", print, x)):
        with pytest.raises(TensorError, match="'x' is used after it was freed"):
            use()
    with pytest.raises(AllocationError, match="'x' was already freed"):
        x.free()
    y = torch.zeros(1 << 20)
    assert pool.free_bytes < free
    del y
    gc.collect()
    assert pool.free_bytes == free
    with pytest.raises(
        AllocationError, match=r"hbm of sip0/cube0/pe0: 7 GiB asked for tensor 'big', 6 GiB free"
    ):
        torch.empty(7 << 29, dtype="f16", name="big")
    assert torch.zeros(4).tolist() == [0, 0, 0, 0]


def test_every_machine_has_its_own_pools() -> None:
    with mt.host("dgx-h100", data=False) as torch:
        first = torch.empty(39_000_000_000, dtype="f16")
        assert first.device == "device:0"
        with pytest.raises(AllocationError, match="hbm of sip0: 80 GB asked"):
            torch.empty(40_000_000_000, dtype="f16", name="second")
        torch.accelerator.set_device_index(1)
        assert torch.empty(39_000_000_000, dtype="f16").device == "device:1"
        with pytest.raises(TensorError, match="has no contents"):
            torch.empty(2).numpy()


# --- kernels ---------------------------------------------------------------------------------------


def double(x, count, tl):
    pid = tl.program_id(0) + tl.program_id(1) * tl.num_programs(0)
    mine = x + pid * count * 2
    tl.store(mine, tl.load(mine, shape=(count,), dtype="f16") * 2.0)


def add_row(x, row, out, count, tl):
    """Rows of x are divided over cubes; every PE of a cube has a copy, every cube all of ``row``."""
    cube = tl.program_id(1)
    total = tl.load(x + cube * count * 2, shape=(count,), dtype="f16") + tl.load(
        row, shape=(count,), dtype="f16"
    )
    tl.store(out + cube * count * 2, total)


def by_column(x, count, tl):
    mine = x + tl.program_id(0) * count * 2
    tl.store(mine, tl.load(mine, shape=(count,), dtype="f16") + 1.0)


@pytest.mark.parametrize("name", MACHINES)
def test_a_kernel_runs_where_its_tensors_lie(name: str) -> None:
    with mt.host(name) as torch:
        cubes, pes = min(2, torch.shape.cubes), min(2, torch.shape.pes)
        data = np.arange(cubes * pes * 8, dtype=np.float16).reshape(-1, 8)
        for device in (0, 1):
            torch.accelerator.set_device_index(device)
            x = torch.empty(
                data.shape, dp=DPPolicy("row_wise", "row_wise", num_cubes=cubes, num_pes=pes)
            ).copy_(data)
            launch = torch.launch("double", double, x, 8)
            np.testing.assert_array_equal(x.numpy(), 2 * data)
            assert launch.devices == (device,)
        assert launch.end_ps <= torch.clock_ps
        units = {event.unit for event in torch.trace}
        assert len(units) >= 2 * cubes * pes


def test_copies_and_parts_in_one_kernel(torch) -> None:
    data = np.arange(32, dtype=np.float16).reshape(2, 16)
    counts = {"num_cubes": 2, "num_pes": 4}
    x = torch.empty((2, 16), dp=DPPolicy(cube="row_wise", **counts)).copy_(data)
    row = torch.empty((16,), dp=DPPolicy(**counts)).copy_(np.ones(16))
    out = torch.zeros((2, 16), dp=DPPolicy(cube="row_wise", **counts))
    torch.launch("add_row", add_row, x, row, out, 16)
    np.testing.assert_array_equal(out.numpy(), data + 1)
    np.testing.assert_array_equal(out.contents(), out._data[[3, 7]].reshape(2, 16), "the last copies agree")
    inner = torch.empty((2, 16), dp=DPPolicy(pe="column_wise", **counts)).copy_(data)
    torch.launch("by_column", by_column, inner, 8)
    np.testing.assert_array_equal(inner.numpy(), data + 1)


def test_launches_on_different_devices_overlap(torch) -> None:
    tensors = []
    for device in (0, 1):
        torch.accelerator.set_device_index(device)
        tensors.append(torch.zeros(8))
    one, two = (torch.launch("double", double, x, 8, _defer_wait=True) for x in tensors)
    assert one.submit_ps == two.submit_ps
    again = torch.launch("double", double, tensors[0], 8)
    assert again.submit_ps == one.end_ps
    assert torch.clock_ps == again.end_ps


def test_one_tensor_given_twice_is_one_piece_of_memory(torch) -> None:
    def swap(a, b, tl):
        first = tl.load(a, shape=(4,), dtype="f16")
        tl.store(b, first + 1.0)

    x, y = torch.zeros(4), torch.zeros(4)
    torch.launch("swap", swap, x, y)
    torch.launch("swap", swap, x, x)
    assert (x.tolist(), y.tolist()) == ([1] * 4, [1] * 4)


def test_kernels_that_cannot_be_launched(torch) -> None:
    x = torch.zeros(8, name="x")
    with pytest.raises(LaunchError, match="has no tensor"):
        torch.launch("none", double, 8)
    with pytest.raises(LaunchError, match="on 1 PEs of device 0, 'b' on 2 of device 0"):
        torch.launch("two", add_row, x, torch.zeros(8, name="b", dp=DPPolicy(num_cubes=1, num_pes=2)), x, 8)
    with pytest.raises(TensorError, match="uneven"):
        torch.launch("odd", double, torch.zeros((3, 4), dp=DPPolicy("row_wise", num_cubes=2, num_pes=1)), 8)
    with pytest.raises(LaunchError, match="kernel 'type': tensor 'wide' holds f32, not f16"):
        torch.launch("type", double, torch.zeros(8, dtype="f32", name="wide"), 8)
    text = (
        r"test_host.py:\d+: kernel 'beyond': tensor 'x' .* has no elements 0:9.*is mapped at 0x100000000 to"
    )
    for torch.engine.data in (False, True):
        with pytest.raises(LaunchError, match=text):
            torch.launch("beyond", double, x, 9)
    torch.launch("good", double, x, 8)


def test_what_is_no_block_of_a_tensor_is_said_with_its_name_and_address(torch) -> None:
    def skewed(t1, other, tl):
        tl.store(t1, tl.load(t1 + 2, shape=(6,), dtype="f16"))

    x = torch.zeros((4, 4), name="t1", dp=DPPolicy(num_cubes=1, num_pes=1))
    with pytest.raises(LaunchError) as error:
        torch.launch("skewed", skewed, x, torch.zeros(4, name="t0", dp=DPPolicy(num_cubes=1, num_pes=1)))
    said = str(error.value)
    block = "6 elements at <t1 + 2> are not a block of tensor 't1' (4, 4); 't1' is mapped at 0x100000000 to"
    assert f"kernel 'skewed': {block}" in said
    assert "is the first to reach for it, at 0x100000002" in said
    assert "'t0'" not in said


def shifted(x, count, offset, tl):
    mine = x + (tl.program_id(0) + tl.program_id(1) * tl.num_programs(0)) * 64
    tl.store(mine, tl.load(mine + offset, shape=(count,), dtype="f16"))


def one_too_far(x, tl):
    me = tl.program_id(0) + tl.program_id(1) * tl.num_programs(0)
    if me == 5:
        tl.store(x + me * 64 + 2, tl.load(x + me * 64, shape=(32,), dtype="f16"))


@pytest.mark.parametrize(("machine", "first", "sixth"), [
    ("ahbm", "sip0/cube0/pe0", "sip0/cube2/pe1"), ("dgx-h100", "gpu0/gpc0/tpc0/sm0", "gpu0/gpc2/tpc0/sm1"),
])  # fmt: skip
def test_an_access_outside_names_tensor_unit_and_address(machine: str, first: str, sixth: str) -> None:
    base = 0x100000000
    cases = [(shifted, (33, 0), first, 0), (shifted, (32, -2), first, -2), (shifted, (32, 4096), first, 4096),
             (one_too_far, (), sixth, 5 * 64 + 2)]  # fmt: skip
    for kernel, args, unit, offset in cases:
        with mt.host(machine) as torch:
            x = torch.zeros((8, 32), name="w", dp=DPPolicy("row_wise", "row_wise", num_cubes=4, num_pes=2))
            said = f"tensor 'w'.*mapped at 0x100000000 to.*; {unit} is the first .*, at {base + offset:#x}"
            with pytest.raises(LaunchError, match=said):
                torch.launch("k", kernel, x, *args)
            x.zero_()


def large(x, count, tl):
    tl.store(x, tl.load(x, shape=(count,), dtype="f16") * 2.0)


def test_scratch_must_fit_beside_what_is_allocated(torch) -> None:
    size = (3 << 20) - 64  # two tiles of nearly 6 MiB fill 12 MiB
    x = torch.zeros(size)
    torch.launch("large", large, x, size)
    torch.memory.pe(0, 0, 0).alloc_tcm(1024)
    with pytest.raises(AllocationError, match=r"tcm of sip0/cube0/pe0: .* for scratch of kernel 'large'"):
        torch.launch("large", large, x, size)
    with pytest.raises(LaunchError, match="memory 'tcm' of machine 'ahbm' has"):
        torch.launch("larger", large, torch.zeros(2 * size), 2 * size)


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
    for machine in MACHINES:
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
    inside = name in ("gemm_single_pe", "va_offset", "tp_transformer_block")
    assert len(set(times.values())) == len(MACHINES) - inside, times


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
