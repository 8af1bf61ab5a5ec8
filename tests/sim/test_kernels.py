"""``tl`` kernels on the simulated accelerator: right numbers, one time by every evaluator, any buffer."""

from __future__ import annotations

import numpy as np
import pytest
from tests.language.kernel import kernels

from megatile.hda import machine
from megatile.language import tl
from megatile.plan.execute import execute
from megatile.sim import simulate

AHBM = machine("ahbm")
ELEMENTS = 16


def everywhere(x: np.ndarray) -> np.ndarray:
    return np.broadcast_to(x.sum(axis=0), x.shape)


def shifted(x: np.ndarray) -> np.ndarray:
    return np.roll(x, 1, axis=0)


CASES = {
    "hello_send": (kernels.hello_send, (), 8, "ring_1d", shifted),
    "naive_ring": (kernels.naive_ring, (8,), 8, "ring_1d", everywhere),
    "chunked_ring": (kernels.chunked_ring, (8,), 8, "ring_1d", everywhere),
    "tree": (kernels.tree, (12,), 12, "tree_binary", everywhere),
    "mesh_4x4": (kernels.mesh, (4,), 16, "mesh_2d_no_wrap", everywhere),
    "two_way_ring_of_2": (kernels.two_way_ring, (2,), 2, "ring_1d", everywhere),
    "copy_to_destination": (kernels.copy_to_destination, (0xC0FFEE0000,), 4, "ring_1d", shifted),
    "from_anywhere": (
        kernels.from_anywhere,
        (),
        4,
        "ring_1d",
        lambda x: np.roll(x, 1, axis=0) + np.roll(x, -1, axis=0),
    ),
}


@pytest.mark.parametrize("buffer", ["tcm", "sram", "hbm"])
@pytest.mark.parametrize("name", CASES)
def test_kernels_on_ahbm(name: str, buffer: str) -> None:
    kernel, extra, units, topology, meaning = CASES[name]
    arguments = [tl.Tensor("t", (ELEMENTS,)), ELEMENTS, *extra]
    plan = tl.read_kernel(kernel, arguments, world_size=units, topology=topology, buffer_kind=buffer)
    x = np.random.default_rng(units).integers(-3, 4, (units, ELEMENTS)).astype("f2")
    r = simulate(plan, {"t": x}, machine=AHBM)
    np.testing.assert_array_equal(r.outputs["t"], meaning(x))
    np.testing.assert_array_equal(r.outputs["t"], execute(plan, {"t": x}, order=r)["t"])
    assert simulate(plan, machine=AHBM, engine="compiled").time_ps == r.time_ps
    assert sum(step.adds_ps for step in r.critical_path) == r.time_ps


def test_events_know_the_kernels_lines() -> None:
    plan = tl.read_kernel(kernels.hello_send, [tl.Tensor("t", (8,)), 8], world_size=4)
    r = simulate(plan, machine=AHBM)
    sends = r.trace.select(operation="send")
    source = r.trace[int(sends[0])].source
    line = kernels.hello_send.__code__.co_firstlineno + 2
    assert source.endswith(f"kernels.py:{line}")
    assert f"kernels.py:{line}" in r.why_slow()


def test_slower_buffers_take_longer() -> None:
    """Shared SRAM has a longer latency than a PE's own TCM, HBM a longer one still."""
    times = {}
    for buffer in ("tcm", "sram", "hbm"):
        arguments = [tl.Tensor("t", (64,)), 64, 8]
        plan = tl.read_kernel(kernels.naive_ring, arguments, world_size=8, buffer_kind=buffer)
        times[buffer] = simulate(plan, machine=AHBM).time_ps
    assert times["tcm"] < times["sram"] < times["hbm"]


def test_all_256_processing_elements() -> None:
    arguments = [tl.Tensor("t", (256,)), 256, 256]
    plan = tl.read_kernel(kernels.chunked_ring, arguments, world_size=256)
    x = np.random.default_rng(0).integers(-1, 2, (256, 256)).astype("f2")
    r = simulate(plan, {"t": x}, machine=AHBM)
    np.testing.assert_array_equal(r.outputs["t"], everywhere(x))
    assert r.time_ps == simulate(plan, machine=AHBM, engine="compiled").time_ps


def test_scratch_reused_by_a_later_kernel_does_not_leak() -> None:
    """The second kernel writes into the scratch of the first while its messages are still read."""

    def two_kernels(t_ptr, n_elem, tl):
        mine = t_ptr + tl.program_id(0) * n_elem * 2
        first = tl.load(mine, shape=(n_elem,), dtype="f16")
        tl.send(dir="E", src=first)
        doubled = first + first
        tl.send(dir="E", src=doubled)
        one = tl.recv(dir="W", shape=(n_elem,), dtype="f16")
        two = tl.recv(dir="W", shape=(n_elem,), dtype="f16")
        first = one + two
        tl.store(mine, first)

    plan = tl.read_kernel(two_kernels, [tl.Tensor("t", (8,)), 8], world_size=4)
    x = np.random.default_rng(1).integers(-5, 5, (4, 8)).astype("f2")
    r = simulate(plan, {"t": x}, machine=AHBM)
    np.testing.assert_array_equal(r.outputs["t"], 3 * shifted(x))
