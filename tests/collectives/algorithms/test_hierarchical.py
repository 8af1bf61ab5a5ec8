"""``collectives/algorithms/hierarchical.py``: level by level, inside the smallest groups first, as the
machine is nested, or a grid has dimensions."""

import pytest
from hypothesis import given, strategies as st
from tests.collectives.closed_forms import BANDWIDTH, SIZE, alpha, block, elements, few, seconds
from tests.collectives.shared import NIC

import megatile as mt
from megatile.collectives.algorithms import find_algorithm
from megatile.collectives.job import CollectiveError
from megatile.collectives.planner import predict
from megatile.collectives.provenance import prove
from megatile.collectives.ranking import variants
from megatile.collectives.requests import make_job
from toy_machines import chips


@pytest.mark.parametrize("nodes", [2, 3])
@pytest.mark.parametrize("chunks", [1, 3, 4])
@pytest.mark.parametrize("in_place", [False, True])
def test_overlapped_levels_are_right(nodes, chunks, in_place):
    hda = mt.machine("h100-cluster", nodes=nodes)
    for count in (1, 7, 500):
        job, _ = make_job("all_reduce", machine=hda, nbytes=4 * count, in_place=in_place)
        prove(find_algorithm("hierarchical").plan(job, chunks=chunks, overlap=True), job)


def test_overlapped_levels_take_the_time_of_the_longer():
    hda, nbytes = mt.machine("h100-cluster", nodes=4), 256 << 20
    asked = {"machine": hda, "nbytes": nbytes, "algorithm": "hierarchical", "protocol": "Simple"}
    one_by_one = predict("all_reduce", **asked, settings={"overlap": False}).time_ps
    overlapped = predict("all_reduce", **asked).time_ps
    inside = 2 * nbytes * 7 / 8 / hda.network("nvlink").effective_bandwidth * 1e12
    between = 2 * nbytes / 8 * 3 / 4 / NIC * 1e12
    assert max(inside, between) <= overlapped <= 1.3 * max(inside, between)
    assert one_by_one >= inside + between


@pytest.mark.parametrize("nodes", [2, 4, 16])
@pytest.mark.parametrize("megabytes", [16, 64, 1024])
def test_a_large_all_reduce_overlaps_its_levels_without_being_asked(nodes, megabytes):
    asked = {"machine": mt.machine("h100-cluster", nodes=nodes), "nbytes": megabytes << 20}
    every = [
        predict("all_reduce", algorithm="hierarchical", **asked, settings=settings).time_ps
        for settings in ({}, {"overlap": False}, {"inner": "direct"}, {"overlap": True, "chunks": 8})
    ]
    assert every[0] < 0.9 * min(every[1:3])
    assert every[0] < 1.12 * every[3]


@pytest.mark.parametrize(("nodes", "levels"), [(4, "overlapped"), (80, "one by one")])
def test_no_option_set_is_tried_twice(nodes, levels):
    """Between many nodes levels do not overlap by themselves: chunks are tried instead of `overlap=False`."""
    job, _ = make_job("all_reduce", machine=mt.machine("h100-cluster", nodes=nodes), nbytes=64 << 20)
    known = find_algorithm("hierarchical")
    tried = list(variants(known, job))
    assert ({"overlap": False} in tried) == (levels == "overlapped")
    assert ({"chunks": 4} in tried) == (levels == "one by one")
    plans = [str(known.plan(job, **options)) for options in tried if "outer" not in options]
    assert len(set(plans)) == len(plans)


@pytest.mark.parametrize("settings", [{"inner": "ring"}, {"outer": "messages"}, {"overlap": False}])
def test_a_named_way_inside_or_between_nodes_goes_level_by_level(settings):
    hda = mt.machine("h100-cluster", nodes=2)
    job, _ = make_job("all_reduce", machine=hda, nbytes=32 << 20)
    plan = find_algorithm("hierarchical").plan
    assert plan(job, **settings) == plan(job, overlap=False) != plan(job)
    assert plan(job) == plan(job, overlap=True, chunks=8) == plan(job, chunks=8)


def test_what_cannot_be_overlapped_is_reported():
    asked = {"machine": "h100-cluster", "nbytes": 64, "algorithm": "hierarchical"}
    with pytest.raises(CollectiveError, match="overlaps direct exchange inside groups with messages"):
        mt.collective("all_reduce", **asked, settings={"overlap": True, "inner": "ring"})
    with pytest.raises(CollectiveError, match=r"overlap='yes' is not valid .*use True or False"):
        mt.collective("all_reduce", **asked, settings={"overlap": "yes"})
    with pytest.raises(CollectiveError, match="an all_reduce over two levels, not all_gather over 2"):
        mt.collective("all_gather", **asked, settings={"overlap": True})


def test_torus_by_dimension():
    n = 8
    along_x = 2 * (n - 1) * (alpha() + SIZE / n / BANDWIDTH)
    along_y = 2 * (n - 1) * (alpha() + SIZE / n / n / BANDWIDTH)
    machine = chips("torus", n * n, dims=[n, n])
    assert seconds(machine, "by_dimension") == pytest.approx(along_x + along_y, rel=1e-3)


@few
@given(st.integers(2, 9), st.integers(2, 9), elements)
def test_torus_of_any_size(x, y, count):
    along_x = 2 * (x - 1) * (alpha() + block(count, x) / BANDWIDTH)
    along_y = 2 * (y - 1) * (alpha() + block(-(-count // x), y) / BANDWIDTH)
    took = seconds(chips("torus", x * y, dims=[x, y]), "by_dimension", 4 * count)
    assert took == pytest.approx(along_x + along_y, rel=1e-3)


@pytest.mark.parametrize(("nodes", "by_halves"), [(2, True), (3, False)])
def test_many_nodes_halve_and_double_where_they_are_a_power_of_two(monkeypatch, nodes, by_halves):
    monkeypatch.setattr("megatile.collectives.algorithms.hierarchical.MAX_RING_NODES", 1)
    hda = mt.machine("h100-cluster", nodes=nodes)
    job, _ = make_job("all_reduce", machine=hda, nbytes=4 * 16 * nodes)
    plan = find_algorithm("hierarchical").plan(job, outer="messages")
    prove(plan, job)
    assert any(channel.name.startswith("partners") for channel in plan.channels) == by_halves
