"""``timing/memory_layers.py``: the memories of a machine as a plan sees them."""

import pytest
from tests.timing.rules_cases import H100, MI, adding, slow_core

import megatile as mt
from megatile.hda import machine
from megatile.plan.build import PlanBuilder
from megatile.timing import Resources

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


def test_units_that_share_a_memory_have_an_even_part_of_it():
    def per_unit(units):
        plan = adding(MI, "hbm", "block", units)
        return Resources(H100, plan).compute_ps(plan.streams[0].body[0], MI, 0)

    assert per_unit(132) == pytest.approx(132 * per_unit(1), rel=0.01)
    assert 132 * 3 * 4 * MI / (per_unit(132) * 1e-12) <= 1.001 * H100.memory("hbm").effective_bandwidth


def test_one_unit_alone_gets_a_part_of_a_shared_memory():
    """100 kB at 1 GB/s by one core; as long by each of four that share 4 GB/s, twice as long at 2 GB/s."""

    def seconds(units, **changed):
        b = PlanBuilder("copies", scale="block", units=units)
        x = b.tile("x", (25_000,), "f32", memory="ram")
        y = b.tile("y", (25_000,), "f32", memory="scratch")
        b.copy(y, x)
        return mt.simulate(b.finish(), machine=slow_core(**changed)).time_ps / 1e12

    assert seconds(1) == pytest.approx(100e-6, rel=1e-3)
    assert seconds(1, **{"memory.l3_cache.unit_bandwidth": None}) == pytest.approx(25e-6, rel=1e-2)
    assert seconds(4, **{"memory.l3_cache.bandwidth": "2 GB/s"}) >= 2 * seconds(1)
    waits = seconds(1, **{"engines.load_store.prefetch": False})
    latencies = sum(slow_core().memory(name).latency_ps for name in ("ram", "l3_cache", "scratch")) / 1e12
    assert waits - seconds(1) == pytest.approx(latencies, rel=0.05)
