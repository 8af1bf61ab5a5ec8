"""``cost/links.py``: what the links of a machine have to carry."""

import pytest

import megatile as mt
from megatile.collectives.algorithms import ALGORITHMS
from megatile.collectives.requests import make_job
from megatile.core.expr import unit
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


def test_a_copy_between_two_other_cores_passes_the_links_between_them():
    b = PlanBuilder("row", scale="wafer", units=1)
    level = b.level("core", scale="core", grid=32, parent="wafer")
    x = b.tile("x", (2, 2048), "f32", memory="sram", level=level)
    with b.stream(level=level):
        b.copy(x[0:1, 0:2048].at(31), x[1:2, 0:2048].at(1))
    plan, hda = b.finish(), mt.machine("cerebras-wse2", width=40, height=2)
    link = 32 * 2048 * 4 / 4 / 1.1e9 * 1e12  # every core's copy takes the same way
    assert link <= floor(plan, hda) <= mt.simulate(plan, machine=hda).time_ps


def test_a_message_to_oneself_takes_no_link():
    def bound(shift: int) -> int:
        b = PlanBuilder("self", scale="device", units=2)
        c = b.channel("c", source=(unit - shift) % 2, slot_bytes=64, memory="hbm")
        x = b.tile("x", (16,), "f32", memory="hbm", role="inout")
        b.send(c, x, to=(unit + shift) % 2)
        b.receive(c, (16,), "f32", into=x)
        plan, hda = b.finish(), mt.machine("dgx-h100")
        found = floor(plan, hda)
        assert found <= mt.simulate(plan, machine=hda).time_ps
        return found

    assert bound(0) < bound(1)


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
