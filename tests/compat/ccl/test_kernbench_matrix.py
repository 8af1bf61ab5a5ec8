"""KernBench's matrix: its collective kernels on its machine, each row once.

Every row passes ``check``, gives NumPy's sums (executed, and simulated with data), and is proved: over the
integers each result holds every unit's contribution exactly once.
"""

from __future__ import annotations

import numpy as np
import pytest

from megatile.collectives.provenance import over_integers
from megatile.compat.ccl.config import load_ccl_config, resolve_algorithm_config
from megatile.compat.ccl.kernel_plans import kernel_plan
from megatile.hda import machine
from megatile.plan.check import check
from megatile.plan.execute import execute
from megatile.sim import simulate

CONFIG = load_ccl_config()
ONE_CUBE = {"sips": 1, "cube_w": 1, "cube_h": 1}
# name: (algorithm of ccl.yaml, what of it is different, machine, units)
ROWS = {
    "ring, tcm, 8 PEs": ("ring_allreduce_tcm", {"mapper": "all_pes"}, ONE_CUBE, 8),
    "ring, hbm, 8 PEs": ("ring_allreduce_hbm", {"mapper": "all_pes"}, ONE_CUBE, 8),
    "ring, sram, 8 PEs": ("ring_allreduce_sram", {"mapper": "all_pes"}, ONE_CUBE, 8),
    "mesh 2×2": ("mesh_allreduce", {}, {"sips": 4}, 4),
    "tree of 7": ("tree_allreduce", {}, {"sips": 7}, 7),
    "multi-cube, 16 cubes": ("ring_allreduce_tcm", {"mapper": "cube_leaders"}, {"sips": 1}, 16),
    "full system, 256 PEs, hierarchical in 3 levels": ("hierarchical_allreduce", {}, {}, 256),
    "intercube, ring of 2 SIPs": (
        "intercube_allreduce",
        {},
        {"sips": 2, "sip_topology": "ring_1d"},
        32,
    ),
    "intercube, torus of 4 SIPs": (
        "intercube_allreduce",
        {},
        {"sips": 4, "sip_topology": "torus_2d"},
        64,
    ),
    "intercube, mesh of 4 SIPs": ("intercube_allreduce", {}, {"sips": 4, "sip_topology": "mesh_2d"}, 64),
}
# Beyond it: other numbers of everything.
MORE = (
    {
        "ring of 8 SIPs": ("ring_allreduce_tcm", {}, {"sips": 8}, 8),
        "ring of 16 PEs in two cubes": (
            "ring_allreduce_tcm",
            {"mapper": "all_pes"},
            {"sips": 1, "cube_w": 2, "cube_h": 1},
            16,
        ),
        "intercube, 1 SIP": ("intercube_allreduce", {}, {"sips": 1, "sip_topology": "ring_1d"}, 16),
        "intercube, mesh of 4 SIPs that does not wrap": (
            "intercube_allreduce",
            {},
            {"sips": 4, "sip_topology": "mesh_2d_no_wrap"},
            64,
        ),
    }
    | {f"tree of {sips}": ("tree_allreduce", {}, {"sips": sips}, sips) for sips in (1, 2, 3, 12)}
    | {
        f"intercube, {width}×{height} cubes": (
            "intercube_allreduce",
            {"root_cube": width * height - 1},
            {"sips": 3, "cube_w": width, "cube_h": height},
            3 * width * height,
        )
        for width, height in [(1, 1), (3, 1), (1, 5)]
    }
    | {
        f"hierarchical, {per_corner} PEs per corner, {cubes} cubes, {sips} SIPs": (
            "hierarchical_allreduce",
            {},
            {"sips": sips, "cube_w": cubes, "cube_h": 1, "pe_per_corner": per_corner},
            4 * per_corner * cubes * sips,
        )
        for per_corner, cubes, sips in [(2, 1, 1), (1, 3, 1), (2, 5, 2), (2, 1, 2)]
    }
)


@pytest.mark.parametrize("row", [*ROWS, *MORE])
def test_everybody_holds_the_sum(row):
    name, changed, parameters, units = (ROWS | MORE)[row]
    hda = machine("ahbm", **parameters)
    config = resolve_algorithm_config(CONFIG, name) | changed
    plan = kernel_plan(config, hda)
    assert (plan.units, len(plan.streams)) == (units, 1)
    memories = {channel.memory for channel in plan.channels}
    assert memories == {config["buffer_kind"]} or (units == 1 and not memories)  # one unit needs no queue
    check(plan, hda)
    random = np.random.default_rng(1)
    values = random.integers(-3, 4, (units, *plan.tile("t").shape)).astype("f2")
    sums = np.broadcast_to(values.sum(0), values.shape)
    assert np.array_equal(execute(plan, {"t": values})["t"], sums)
    timed = simulate(plan, {"t": values}, machine=hda)
    assert timed.time_ps > 0
    assert np.array_equal(timed.outputs["t"], sums)
    numbers = random.integers(-(2**63), 2**63 - 1, values.shape, dtype=np.int64)
    with np.errstate(over="ignore"):
        proof = execute(over_integers(plan), {"t": numbers})["t"]
        assert np.array_equal(proof, np.broadcast_to(numbers.sum(0), numbers.shape))
