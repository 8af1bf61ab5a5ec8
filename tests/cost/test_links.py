"""``cost/links.py``: what the links of a machine have to carry."""

import pytest

import megatile as mt
from megatile.collectives.algorithms import ALGORITHMS
from megatile.collectives.requests import make_job
from megatile.cost.static_bound import floor
from megatile.plan.build import PlanBuilder


def test_cores_of_a_mesh_are_bounded_by_their_links():
    b = PlanBuilder("row", scale="wafer", units=1)
    level = b.level("core", scale="core", grid=32, parent="wafer")
    x = b.tile("x", (2, 2048), "f32", memory="sram", level=level)
    with b.stream(level=level):
        b.copy(x[0:1, 0:2048].at(31), x[1:2, 0:2048])
    plan, hda = b.finish(), mt.machine("cerebras-wse2", width=40, height=2)
    link = 30 * 2048 * 4 / 4 / 1.1e9 * 1e12  # all but one pass the last link but one
    assert link <= floor(plan, hda) <= mt.simulate(plan, machine=hda).time_ps


@pytest.mark.parametrize("machine", ["dgx-h100", "mi300x-8", "hgx-a100", "h100-cluster"])
def test_a_small_message_takes_its_latency(machine):
    hda = mt.machine(machine)
    job, _ = make_job(
        "all_reduce", machine=hda, scale="device", nbytes=256, dtype="f32", ranks=tuple(range(8))
    )
    plan = ALGORITHMS["ring"].plan(job)
    network = next(n for n in hda.networks if n.connects == hda.scale("device").level)
    bound, time = floor(plan, hda, launch=False), mt.simulate(plan, machine=hda, launch=False).time_ps
    assert network.latency_ps < bound <= time
