"""Every setting of ``ccl.yaml`` has its effect, or is refused with a sentence."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from megatile.cli.main import app
from megatile.collectives.job import CollectiveError
from megatile.collectives.kernels import hierarchical_allreduce, intercube_allreduce, ring_allreduce
from megatile.compat.ccl.config import load_ccl_config, resolve_algorithm_config
from megatile.compat.ccl.install import build_install_plans, configure_sfr_intercube_multisip
from megatile.compat.ccl.kernel_plans import kernel_plan
from megatile.compat.ccl.spec import spec_of
from megatile.compat.ccl.topologies import floor_of, hierarchical_3level, intercube, resolve_validator
from megatile.core.dtypes import numpy_dtype
from megatile.hda import machine
from megatile.language import tl as tiles
from megatile.plan.execute import execute
from megatile.sim import simulate

CONFIG = load_ccl_config()
REDUCE = {"sum": np.sum, "max": np.max, "min": np.min, "prod": np.prod}


def entry(name: str, **changed: Any) -> dict[str, Any]:
    return resolve_algorithm_config(CONFIG, name) | changed


def values(units: int, dtype: str = "f2", n: int = 8) -> np.ndarray:
    return np.random.default_rng(units).integers(1, 3, (units, n)).astype(dtype)


# SIPs on a mesh without wrap-around


def test_a_mesh_without_wrap_has_none_at_its_corners() -> None:
    hda = machine("ahbm", sips=4, sip_topology="mesh_2d_no_wrap")
    plans = configure_sfr_intercube_multisip(None, hda, entry("intercube_allreduce")).plans
    corner = {n.direction for pe in plans[0].pe_installs for n in pe.neighbors if "global" in n.direction}
    assert corner == {"global_E", "global_S"}
    around = configure_sfr_intercube_multisip(
        None, machine("ahbm", sips=4, sip_topology="torus_2d"), entry("intercube_allreduce")
    ).plans
    every = {n.direction for pe in around[0].pe_installs for n in pe.neighbors if "global" in n.direction}
    assert every == {"global_E", "global_W", "global_S", "global_N"}


@pytest.mark.parametrize("sips", [1, 4, 9])
@pytest.mark.parametrize("topology", ["ring_1d", "torus_2d", "mesh_2d", "mesh_2d_no_wrap"])
def test_intercube_over_any_grid_of_sips(sips: int, topology: str) -> None:
    hda = machine("ahbm", sips=sips, sip_topology=topology, cube_w=2, cube_h=3)
    plan = kernel_plan(entry("intercube_allreduce", root_cube=1), hda)
    x = values(plan.units, "f4").astype("f2")
    assert np.array_equal(execute(plan, {"t": x})["t"], np.broadcast_to(x.sum(0), x.shape))


@pytest.mark.parametrize("root", range(6))
def test_every_cube_may_be_the_root(root: int) -> None:
    hda = machine("ahbm", sips=2, cube_w=3, cube_h=2)
    plan = kernel_plan(entry("intercube_allreduce", root_cube=root), hda)
    x = values(plan.units)
    timed = simulate(plan, {"t": x}, machine=hda)
    assert np.array_equal(timed.outputs["t"], np.broadcast_to(x.sum(0), x.shape))
    across = {e.unit for e in timed.trace if e.operation == "send" and "global" in e.operand}
    assert across <= {f"sip{sip}/cube{root}/pe0" for sip in range(2)}


def test_the_root_is_the_last_cube_by_default() -> None:
    plans = build_install_plans(2, "intercube", entry("intercube_allreduce"), "ahbm")
    assert plans[0].kernel_config["root_cube"] == 15
    with pytest.raises(CollectiveError, match="root_cube 16 does not exist"):
        build_install_plans(2, "intercube", entry("intercube_allreduce", root_cube=16), "ahbm")


# reductions and dtypes


@pytest.mark.parametrize("op", REDUCE)
@pytest.mark.parametrize(
    "name", ["ring_allreduce_tcm", "mesh_allreduce", "tree_allreduce", "intercube_allreduce"]
)
def test_reduce_op_has_its_effect(name: str, op: str) -> None:
    hda = machine("ahbm", sips=4, cube_w=2, cube_h=1)
    plan = kernel_plan(entry(name, reduce_op=op, dtype="f32"), hda)
    x = values(plan.units, "f4")
    assert np.array_equal(execute(plan, {"t": x})["t"], np.broadcast_to(REDUCE[op](x, axis=0), x.shape))


def test_hierarchical_reduces_by_max_too() -> None:
    hda = machine("ahbm", sips=2, cube_w=3, cube_h=1, pe_per_corner=1)
    plan = kernel_plan(entry("hierarchical_allreduce", reduce_op="max", dtype="bf16"), hda)
    x = np.arange(plan.units * 8).reshape(plan.units, 8) % 50
    got = execute(plan, {"t": x.astype(numpy_dtype("bf16"))})["t"].astype(int)
    assert np.array_equal(got, np.broadcast_to(x.max(0), x.shape))


def test_a_reduction_that_a_kernel_does_not_do_is_refused() -> None:
    with pytest.raises(CollectiveError, match="hello_send does not reduce by 'max'"):
        kernel_plan(entry("hello_send", reduce_op="max"), machine("ahbm"))
    with pytest.raises(CollectiveError, match="does not reduce by 'average'"):
        kernel_plan(entry("ring_allreduce_tcm", reduce_op="average"), machine("ahbm"))
    with pytest.raises(CollectiveError, match="reduce_op cannot be 3"):
        resolve_algorithm_config({"algorithms": {"x": {"module": "m", "reduce_op": 3}}})


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(CollectiveError, match="unknown key 'chunk_size'"):
        resolve_algorithm_config(
            {"algorithms": {"x": {"module": "m", "topology": "ring_1d", "chunk_size": 4}}}
        )


# who takes part


@pytest.mark.parametrize(("memory", "pes"), [("tcm", 8), ("hbm", 16), ("sram", 5), ("tcm", 256)])
def test_world_size_may_count_pes(memory: str, pes: int) -> None:
    hda = machine("ahbm")
    plan = kernel_plan(entry(f"ring_allreduce_{memory}", mapper="all_pes", world_size=pes), hda)
    assert plan.units == pes
    x = values(pes, n=8)
    assert np.array_equal(execute(plan, {"t": x})["t"], np.broadcast_to(x.sum(0), x.shape))


def test_world_size_beyond_the_machine_is_refused() -> None:
    with pytest.raises(CollectiveError, match="world_size 257 does not fit 2 SIPs"):
        kernel_plan(entry("ring_allreduce_tcm", mapper="all_pes", world_size=257), machine("ahbm"))
    with pytest.raises(CollectiveError, match="world_size 130 does not fit 2 SIPs"):
        kernel_plan(entry("hierarchical_allreduce", world_size=130), machine("ahbm"))
    assert kernel_plan(entry("hierarchical_allreduce", world_size=128), machine("ahbm")).units == 128


def test_the_validator_of_intercube_accepts_its_own_layout() -> None:
    spec = spec_of(machine("ahbm"))
    shards = [SimpleNamespace(sip=sip, cube=cube, pe=0) for sip in range(2) for cube in range(16)]
    resolve_validator(entry("intercube_allreduce")["validator"])(SimpleNamespace(shards=shards), 2, spec)
    with pytest.raises(CollectiveError, match="needs 16 per SIP"):
        resolve_validator("shard_per_cube")(SimpleNamespace(shards=shards[1:]), 2, spec)


def test_ccl_yaml_beside_one_is_read(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve_algorithm_config(load_ccl_config())["algorithm"] == "intercube_allreduce"
    (tmp_path / "ccl.yaml").write_text(
        "algorithms:\n  mine: {module: megatile.collectives.kernels.ring_allreduce, topology: ring_1d}\n"
    )
    assert resolve_algorithm_config(load_ccl_config())["algorithm"] == "mine"


# a module's own neighbours


def two(rank: int, world_size: int) -> dict[str, int]:
    return {"E": (rank + 1) % world_size, "W": (rank - 1) % world_size}


def three(rank: int, world_size: int, base: dict[str, int]) -> dict[str, int]:
    return base or two(rank, world_size)


@pytest.mark.parametrize(("own", "topology"), [(two, "none"), (three, "none"), (three, "ring_1d")])
def test_a_module_brings_its_neighbors(own: Any, topology: str) -> None:
    module = SimpleNamespace(
        kernel=ring_allreduce.kernel, kernel_args=ring_allreduce.kernel_args, neighbors=own, __name__="mine"
    )
    config = {"module": module, "topology": topology, "algorithm": "mine"}
    plan = kernel_plan(config, machine("ahbm", sips=4))
    x = values(4)
    assert np.array_equal(execute(plan, {"t": x})["t"], np.broadcast_to(x.sum(0), x.shape))


def test_neighbors_with_other_arguments_are_refused() -> None:
    module = SimpleNamespace(
        kernel=ring_allreduce.kernel, kernel_args=ring_allreduce.kernel_args, neighbors=lambda rank: {}
    )
    with pytest.raises(CollectiveError, match="takes 1 arguments"):
        kernel_plan({"module": module, "topology": "none"}, machine("ahbm"))


# the mock


def mocked(module: Any, hda: Any, topology: Any, pes: int, cubes: int, sips: int) -> None:
    floor, units = floor_of(hda), pes * cubes * sips
    config = {
        "n_elem": 8, "world_size": units, "pes_per_cube": pes, "cubes_per_sip": cubes, "num_sips": sips,
        "mesh_w": floor.mesh[0], "mesh_h": floor.mesh[1], "sip_w": floor.sips[0], "sip_h": floor.sips[1],
        "sip_wrap": floor.wrap, "root_cube": floor.cubes - 1,
    }  # fmt: skip
    x = values(units)
    found = tiles.run_kernel_in_mock(
        module.kernel, units, topology(floor), list(x), module.kernel_args(**config),
        pes_per_cube=pes, cubes_per_sip=cubes,
    )  # fmt: skip
    assert all(np.array_equal(part, x.sum(0)) for part in found)


def test_the_nested_kernels_run_in_the_mock() -> None:
    hda = machine("ahbm", sips=2, cube_w=2, cube_h=2, pe_per_corner=1)
    mocked(hierarchical_allreduce, hda, hierarchical_3level, 4, 4, 2)
    mocked(intercube_allreduce, hda, intercube, 1, 4, 2)
    mesh = machine("ahbm", sips=4, sip_topology="mesh_2d_no_wrap", cube_w=2, cube_h=2)
    mocked(intercube_allreduce, mesh, intercube, 1, 4, 4)


def axes(t_ptr: Any, n: int, tl: Any) -> None:
    mine = t_ptr + tl.rank * n * 2
    one = tl.load(mine, shape=(n,), dtype="f16") * 0
    tl.store(mine, one + tl.program_id(0) + 10 * tl.program_id(1) + 100 * tl.program_id(2))


def test_axes_mean_the_same_in_plan_and_mock() -> None:
    expected = [p + 10 * c + 100 * s for s in range(2) for c in range(3) for p in range(4)]
    got = tiles.run_kernel_in_mock(
        axes, 24, "ring_1d", [np.zeros(1, "f2")] * 24, (1,), pes_per_cube=4, cubes_per_sip=3
    )
    assert [int(part[0]) for part in got] == expected
    plan = tiles.read_kernel(axes, [tiles.Tensor("t", (1,)), 1], grid=(4, 3, 2))
    assert execute(plan, {"t": np.zeros((24, 1), "f2")})["t"].ravel().tolist() == expected
    with pytest.raises(tiles.KernelError, match="not whole SIPs"):
        tiles.run_kernel_in_mock(axes, 7, "ring_1d", [np.zeros(1, "f2")] * 7, (1,), pes_per_cube=4)


# one way, raw addresses, handles of one's own


def backwards(t_ptr: Any, n: int, tl: Any) -> None:
    tl.send(dir="W", src=tl.load(t_ptr + tl.rank * n * 2, shape=(n,), dtype="f16"))


def from_ahead(t_ptr: Any, n: int, tl: Any) -> None:
    tl.recv(dir="E", shape=(n,), dtype="f16")


@pytest.mark.parametrize(("kernel", "said"), [(backwards, "sent to 'W'"), (from_ahead, "received from 'E'")])
def test_a_ring_of_one_way_refuses_the_other(kernel: Any, said: str) -> None:
    with pytest.raises(tiles.IpcqInvalidDirection, match=said):
        tiles.read_kernel(kernel, [tiles.Tensor("t", (4,)), 4], world_size=3, topology="ring_1d_unidir")
    with pytest.raises(tiles.IpcqInvalidDirection, match=said):
        tiles.run_kernel_in_mock(kernel, 3, "ring_1d_unidir", [np.zeros(4, "f2")] * 3, (4,))


def raw_product(a_ptr: Any, b_ptr: Any, c_ptr: Any, n: int, tl: Any) -> None:
    tl.composite("gemm", tl.ref(a_ptr, (n, n)), tl.ref(b_ptr, (n, n)), 1 << 20, tile=(4, 4, 4))
    tl.store(c_ptr, tl.load(1 << 20, shape=(n, n), dtype="f16"))


def test_a_composite_writes_to_a_raw_address() -> None:
    tensors = [tiles.Tensor(name, (6, 6)) for name in "abc"]
    plan = tiles.read_kernel(raw_product, [*tensors, 6], world_size=1)
    random = np.random.default_rng(0)
    a, b = (random.integers(-3, 4, (1, 6, 6)).astype("f2") for _ in range(2))
    assert np.array_equal(execute(plan, {"a": a, "b": b, "c": a * 0})["c"], a @ b)


def handed_on(t_ptr: Any, n: int, tl: Any) -> None:
    mine = t_ptr + tl.rank * n * 2
    tl.send(dir="E", src=tiles.TensorHandle(mine, (n,), "f16", "hbm"))
    tl.store(mine, tl.recv(dir="W", shape=(n,), dtype="f16"))


def test_a_handle_of_ones_own_is_a_source() -> None:
    x = np.arange(12, dtype="f2").reshape(3, 4)
    plan = tiles.read_kernel(handed_on, [tiles.Tensor("t", (4,)), 4], world_size=3)
    assert np.array_equal(execute(plan, {"t": x})["t"], np.roll(x, 1, axis=0))
    assert np.array_equal(
        tiles.run_kernel_in_mock(handed_on, 3, "ring_1d", list(x), (4,)), np.roll(x, 1, axis=0)
    )


# command line


def test_collective_takes_kernels_of_ccl_yaml() -> None:
    runner = CliRunner()
    done = runner.invoke(
        app, ["collective", "all_reduce", "-m", "ahbm", "-a", "ring_allreduce_tcm,intercube_allreduce,ring",
              "-b", "64", "-d", "f16"],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "intercube_allreduce" in done.output
    refused = runner.invoke(
        app, ["collective", "all_gather", "-m", "ahbm", "-a", "tree_allreduce", "-b", "64"]
    )
    assert refused.exit_code != 0
