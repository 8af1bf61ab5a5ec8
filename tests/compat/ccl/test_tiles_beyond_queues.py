"""Tiles beyond what queues hold: shipped kernels reduce by pieces, others say which figure is too small."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

import megatile as mt
from megatile.collectives.job import CollectiveError
from megatile.collectives.kernels import ring_allreduce
from megatile.compat.ccl.config import load_ccl_config, resolve_algorithm_config
from megatile.compat.ccl.kernel_plans import kernel_plan
from megatile.hda import machine
from megatile.language.tl import IpcqDeadlock, IpcqInvalidDirection
from megatile.plan.execute import execute
from megatile.runtime.errors import LaunchError
from megatile.runtime.host.placement import DPPolicy
from megatile.runtime.host.workers import SpawnException
from megatile.sim import simulate

CONFIG = load_ccl_config()
KERNELS = [name for name in CONFIG["algorithms"] if name != "hello_send"]
SIPS = ("ring_1d", "torus_2d", "mesh_2d_no_wrap")


@pytest.mark.parametrize(
    ("name", "sip_topology"),
    [
        (name, sips)
        for name, sips in product(KERNELS, SIPS)
        if sips == "torus_2d" or "cube" in name or "lrab" in name
    ],
)
def test_every_size_is_right(name, sip_topology) -> None:
    hda = machine("ahbm", sips=4, sip_topology=sip_topology, cube_w=3, cube_h=2, pe_per_corner=1)
    config = resolve_algorithm_config(CONFIG, name) | {"topology": "none", "slot_size": 63}
    for n_elem in (8, 300):
        plan = kernel_plan(config, hda, n_elem=n_elem)
        x = np.random.default_rng(n_elem).integers(-3, 4, (plan.units, n_elem)).astype("f2")
        assert np.array_equal(execute(plan, {"t": x})["t"], np.broadcast_to(x.sum(0), x.shape))
        assert simulate(plan, machine=hda, data=False).time_ps > 0


@pytest.mark.parametrize("name", ["ring_allreduce_tcm", "tree_allreduce", "lrab_hierarchical_allreduce"])
def test_a_million_elements(name) -> None:
    hda = machine("ahbm", cube_w=2, cube_h=1)
    plan = kernel_plan(resolve_algorithm_config(CONFIG, name), hda, n_elem=1_000_000)
    assert simulate(plan, machine=hda, data=False).time_ps > 1e6
    x = np.random.default_rng(0).integers(-3, 4, (plan.units, 1_000_000)).astype("f2")
    assert np.array_equal(execute(plan, {"t": x})["t"][0], x.sum(0))


@pytest.mark.parametrize(("name", "topology"), list(product(KERNELS, SIPS)))
def test_kernels_run_on_their_topologies_or_name_them(name, topology) -> None:
    config = resolve_algorithm_config(CONFIG, name) | {"topology": topology}
    fits = name.partition("_")[0] == topology.partition("_")[0] or (name, topology) == (
        "mesh_allreduce",
        "torus_2d",
    )
    if fits and topology != "mesh_2d_no_wrap":
        kernel_plan(config, machine("ahbm", sips=4))
        return
    with pytest.raises(CollectiveError, match=f"allreduce runs on topology .*, not '{topology}'"):
        kernel_plan(config, machine("ahbm", sips=4))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"n_slots": 1}, "n_slots 1 and slot_size 4096: a queue of one slot cannot hold.*n_slots: 2"),
        ({"module": "hello"}, "a tile of 20000 bytes is 5 messages.*n_slots: 5, or slot_size: 5000"),
    ],
)
def test_figures_that_are_too_small_are_named(settings, said) -> None:
    n_elem, config = 8, CONFIG["algorithms"]["ring_allreduce_tcm"] | {"n_slots": 4} | settings
    if "module" in settings:
        n_elem, config["module"] = 10_000, "megatile.collectives.kernels.hello_send"

    def worker(rank, torch):
        torch.accelerator.set_device_index(rank)
        torch.distributed.init_process_group()
        torch.distributed.all_reduce(torch.zeros(n_elem))

    with (
        mt.host("ahbm", {"algorithms": {"x": config}}, algorithm="x", sips=4) as torch,
        pytest.raises(SpawnException, match=f"(?s)deadlocks with .*{said}") as caught,
    ):
        torch.multiprocessing.spawn(worker, args=(torch,), nprocs=4)
    (problem,) = set(caught.value.errors.values())
    assert isinstance(problem, IpcqDeadlock)
    assert problem.graph.pointers[0].n_slots == config["n_slots"]


def test_root_in_the_centre_needs_fewer_steps() -> None:
    times = {}
    for name in ("intercube_allreduce", "lrab_hierarchical_allreduce"):
        plan = kernel_plan(resolve_algorithm_config(CONFIG, name), machine("ahbm", sips=4), n_elem=4096)
        times[name] = simulate(plan, machine=machine("ahbm", sips=4), data=False).time_ps
    assert times["lrab_hierarchical_allreduce"] < times["intercube_allreduce"]


def test_deadlocking_launch() -> None:
    def receives(t_ptr, count, tl):
        tl.recv(dir="W", shape=(count,), dtype="f16")

    def upwards(t_ptr, count, tl):
        tl.recv(dir="N", shape=(count,), dtype="f16")

    with mt.host("ahbm") as torch:
        x = torch.zeros((1, 64), dp=DPPolicy(pe="column_wise", num_cubes=1), name="x")
        with pytest.raises(IpcqDeadlock, match="head tail peer_head peer_tail slots") as caught:
            torch.launch("stuck", receives, x, 8)
        assert isinstance(caught.value, LaunchError)
        assert {(p.my_head, p.my_tail, p.n_slots) for p in caught.value.graph.pointers} == {(0, 0, 4)}
        assert len(caught.value.graph.waiters) == 8
        with pytest.raises(IpcqInvalidDirection, match="kernel 'wrong': there is no direction 'N'"):
            torch.launch("wrong", upwards, x, 8)


def test_kernel_with_kernbench_arguments_in_the_mock() -> None:
    inputs = [np.full((16,), rank + 1.0, np.float16) for rank in range(4)]
    found = mt.run_kernel_in_mock(ring_allreduce.kernel, 4, "ring_1d", inputs, (16, 4))
    assert all((part == 10).all() for part in found)
