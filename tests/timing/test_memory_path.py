"""Memories that units share are reached through their own ports, not through one of the units."""

import megatile as mt
from megatile.hda import machine
from megatile.plan.build import PlanBuilder
from megatile.timing import Resources

H100 = machine("dgx-h100")
SMS = 132
COUNT = 1 << 10


def reading(units=SMS):
    """Every block reads the tensor that block 0 has in HBM."""
    b = PlanBuilder("reading", scale="block", units=units)
    x = b.tile("x", (COUNT,), "f32", memory="hbm")
    y = b.tile("y", (COUNT,), "f32", memory="shared")
    b.copy(y, x.whole().at(0))
    return b.finish()


def keys(path):
    return [s.resource for s in path.stages]


def test_one_tensor_read_by_all_blocks():
    took = mt.simulate(reading(), machine=H100)
    assert not any("dsmem" in str(link) for link in took.links)
    plan = reading()
    resources = Resources(H100, plan)
    least = SMS * 4 * COUNT / H100.memory("hbm").effective_bandwidth * 1e12
    rest = resources.start_ps(0) + resources.dma.latency_ps + H100.memory("hbm").latency_ps
    assert least <= took.time_ps - rest <= least + 200_000
    bounds = mt.price(plan, H100)
    assert bounds.lower_ps <= took.time_ps <= bounds.upper_ps


def test_stages_inside_a_device():
    r = Resources(H100, reading())
    read = r.path(0, "hbm", 5, "shared")
    assert keys(read) == [("memory", "hbm", 0), None]
    memories = H100.memory("hbm").latency_ps + H100.memory("shared").latency_ps
    assert read.latency_ps == memories + r.dma.latency_ps
    assert keys(r.path(5, "shared", 0, "hbm")) == [None, ("memory", "hbm", 0)]


def test_a_slice_belongs_to_its_unit():
    """HBM of ahbm is divided among the PEs: another's slice is reached over the network."""
    b = PlanBuilder("p", scale="pe", units=4)
    b.tile("x", (4,), "f32", memory="hbm")
    r = Resources(machine("ahbm"), b.finish())
    assert len(r.path(0, "tcm", 3, "hbm").stages) > 2
    assert len(r.path(0, "tcm", 3, "sram").stages) == 2
