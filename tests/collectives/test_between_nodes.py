"""What collectives do between nodes: who is addressed when, what goes far, what a network card loses."""

import numpy as np
import pytest

import megatile as mt
from megatile.collectives.algorithms import find_algorithm
from megatile.collectives.job import CollectiveError
from megatile.collectives.planner import predict
from megatile.collectives.provenance import prove
from megatile.collectives.rank_groups import beyond, nearest_last
from megatile.collectives.ranking import variants
from megatile.collectives.requests import make_job
from megatile.core.expr import Symbol
from megatile.plan.model import Transport
from megatile.timing.collective_choice import rule_of, times_ps
from megatile.timing.transports import Asked, kernel_view

NIC = mt.machine("h100-cluster").network("infiniband").effective_bandwidth


def values(expression, n, **names):
    units = np.arange(n, dtype=np.int64)
    return np.broadcast_to(expression.evaluate({"unit": units, **names}), units.shape)


@pytest.mark.parametrize("nesting", [(8, 4), (8, 1), (3, 5), (12,), (2, 3, 4), (1, 6)])
def test_peers_are_met_once_and_from_both_sides(nesting):
    n = int(np.prod(nesting))
    step = Symbol("step")
    to = beyond(nesting, step + 1)
    source = beyond(nesting, step + 1, back=True)
    met = np.stack([values(to, n, step=k) for k in range(n - 1)])
    for k in range(n - 1):
        assert sorted(met[k]) == list(range(n)), "a permutation: nobody is addressed twice at once"
        back = values(source, n, step=k)
        assert (back[met[k]] == np.arange(n)).all()
    assert all(sorted({u, *met[:, u].tolist()}) == list(range(n)) for u in range(n))


def test_the_first_remote_peers_of_a_node_differ():
    to = beyond((8, 4), Symbol("step") + 1)
    first = {int(values(to, 32, step=7)[u]) for u in range(8)}
    assert first == set(range(8, 16))


@pytest.mark.parametrize("nodes", [2, 4])
def test_all_to_all_is_bound_by_network_cards(nodes):
    nbytes, n = 64 << 20, 8 * nodes
    found = predict(
        "all_to_all", machine=mt.machine("h100-cluster", nodes=nodes), nbytes=nbytes, algorithm="direct"
    )
    wire = nbytes * (n - 8) / n / NIC * 1e12
    assert wire <= found.time_ps <= 1.1 * wire


@pytest.mark.parametrize("n", [2, 3, 4, 8, 12, 16])
def test_positions_far_apart_are_neighbours(n):
    core = 1 << (n.bit_length() - 1)
    places = values(nearest_last(n, core).me, n).tolist()
    assert sorted(places) == list(range(n))
    assert places[core:] == list(range(core, n))
    if core > 1:
        assert places[0] ^ places[1] == core // 2


@pytest.mark.parametrize("ranks", [3, 5, 8, 12, 16, 32])
@pytest.mark.parametrize("count", [1, 7, 96])
def test_halving_doubling_is_right(ranks, count):
    job, _ = make_job("all_reduce", machine=mt.machine("h100-cluster"), nbytes=4 * count, ranks=ranks)
    prove(find_algorithm("halving_doubling").plan(job), job)


def test_the_largest_blocks_of_halving_doubling_stay_inside_nodes():
    hda = mt.machine("h100-cluster", nodes=4)
    nbytes = 64 << 20
    found = predict("all_reduce", machine=hda, nbytes=nbytes, algorithm="halving_doubling")
    # Inside a node 1/2, 1/4 and 1/8 are exchanged; 1/16 and 1/32 go between nodes, each twice.
    far = 2 * nbytes * (1 / 16 + 1 / 32) / NIC
    near = 2 * nbytes * (1 / 2 + 1 / 4 + 1 / 8) / hda.network("nvlink").effective_bandwidth
    assert found.time_ps * 1e-12 <= 1.35 * (far + near)


@pytest.mark.parametrize("operation", ["reduce_scatter", "all_gather"])
@pytest.mark.parametrize("ranks", [2, 4, 16, 32])
@pytest.mark.parametrize("in_place", [False, True])
def test_blocks_that_go_to_the_nearest_partner_first_come_home(operation, ranks, in_place):
    hda, options = mt.machine("h100-cluster"), {"ranks": ranks, "in_place": in_place}
    job, _ = make_job(operation, machine=hda, nbytes=12 * ranks, **options)
    prove(find_algorithm("halving_doubling").plan(job, near=True), job)
    uneven, _ = make_job(operation, machine=hda, nbytes=12 * ranks + 4, **options)
    with pytest.raises(CollectiveError, match="needs blocks of one size"):
        find_algorithm("halving_doubling").plan(uneven, near=True)


@pytest.mark.parametrize("operation", ["reduce_scatter", "all_gather"])
def test_large_blocks_to_near_partners_are_chosen_between_nodes(operation):
    hda, nbytes = mt.machine("h100-cluster", nodes=2), 4 << 20
    far = predict(operation, machine=hda, nbytes=nbytes, algorithm="halving_doubling")
    found = predict(operation, machine=hda, nbytes=nbytes, algorithm="fastest")
    assert found.candidate.label == "halving_doubling(near=True)"
    assert found.time_ps < 0.6 * far.time_ps
    # Also where the copies of the blocks cost time of their own.
    plans = [
        mt.collective(
            operation,
            machine=hda,
            nbytes=nbytes,
            algorithm="halving_doubling",
            settings=settings,
            transport="copy_engine",
        )
        for settings in ({}, {"near": True})
    ]
    times = [mt.simulate(plan, machine=hda).time_ps for plan in plans]
    assert times[1] < 0.65 * times[0]


@pytest.mark.parametrize("protocol", ["Simple", "LL"])
def test_the_share_of_nvlink_is_not_that_of_network_cards(protocol):
    near, far = (
        f"transports.device.nccl.protocols.{protocol}.share",
        f"transports.device.nccl.protocols.{protocol}.far_share",
    )
    hda = mt.machine("h100-cluster", **{near: "50 %", far: "80 %"})
    transport, asked = Transport("kernel", "nccl", "tree", protocol), Asked("all_reduce", 16)
    view = kernel_view(hda, "device", transport, 1 << 20, asked)
    wire = 0.5 if protocol == "LL" else 1.0
    assert view.networks["infiniband"].effective_bandwidth == pytest.approx(0.8 * wire * NIC)
    assert view.networks["nvlink"].efficiency == pytest.approx(0.5 * wire * hda.network("nvlink").efficiency)


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


def test_what_cannot_be_overlapped_is_said():
    asked = {"machine": "h100-cluster", "nbytes": 64, "algorithm": "hierarchical"}
    with pytest.raises(CollectiveError, match="overlaps direct exchange inside groups with messages"):
        mt.collective("all_reduce", **asked, settings={"overlap": True, "inner": "ring"})
    with pytest.raises(CollectiveError, match=r"overlap='yes' is not valid .*use True or False"):
        mt.collective("all_reduce", **asked, settings={"overlap": "yes"})
    with pytest.raises(CollectiveError, match="an all_reduce over two levels, not all_gather over 2"):
        mt.collective("all_gather", **asked, settings={"overlap": True})


@pytest.mark.parametrize("machine", ["h100-cluster", "a100-cluster", "mi300x-cluster"])
@pytest.mark.parametrize("operation", ["all_to_all", "scatter"])
def test_exchanges_over_nodes_take_the_rules_time_without_a_factor(machine: str, operation: str) -> None:
    hda = mt.machine(machine, nodes=2)
    for nbytes in (4096, 1 << 20, 64 << 20):
        found = predict(operation, machine=hda, nbytes=nbytes)
        (transport,) = found.plan.transports
        assert transport.pace == pytest.approx(1, abs=0.01)
        rule = float(times_ps(rule_of(hda), operation, hda.count("device"), nbytes))
        assert found.time_ps == pytest.approx(rule, rel=0.02)


def test_a_summary_says_that_messages_were_scaled() -> None:
    plan, why = mt.collective("broadcast", machine="dgx-h100", nbytes=1 << 20, explain=True)
    pace = f"{plan.transports[0].pace:g}"
    assert f"messages scaled by {pace} so" in str(why)
    assert f"messages scaled by {pace} so" in mt.simulate(plan, machine="dgx-h100").summary()
