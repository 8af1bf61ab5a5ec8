"""Collective kernels on the accelerator machine: rings in three memories, and all 256 PEs at once."""

import numpy as np

from megatile.collectives import kernel_plan, load_ccl_config, resolve_algorithm_config
from megatile.hda import machine
from megatile.sim import simulate

config = load_ccl_config()
random = np.random.default_rng(0)
for name, options in (
    ("ring_allreduce_tcm", {"sips": 8}),
    ("ring_allreduce_sram", {"sips": 8}),
    ("ring_allreduce_hbm", {"sips": 8}),
    ("intercube_allreduce", {"sips": 4, "sip_topology": "torus_2d"}),
    ("hierarchical_allreduce", {"sips": 2}),
):
    hda = machine("ahbm", **options)
    plan = kernel_plan(resolve_algorithm_config(config, name), hda, n_elem=64)
    x = random.integers(-3, 4, (plan.units, 64)).astype("f2")
    r = simulate(plan, {"t": x}, machine=hda)
    wrong = int((r.outputs["t"] != x.sum(axis=0)).sum())
    print(
        f"{name} (ws={plan.units}): {plan.units} OK" if not wrong else f"{name}: {wrong} wrong",
        r.time_ns,
        "ns",
    )
