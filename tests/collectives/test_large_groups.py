"""Large groups: what is simulated for all units at once equals what is simulated one by one."""

from __future__ import annotations

import pytest

import megatile as mt
from megatile.collectives import ranking
from megatile.core.expr import eq, unit
from megatile.plan.build import PlanBuilder
from toy_machines import chips


@pytest.mark.parametrize(
    ("machine", "algorithm", "settings"),
    [
        (mt.machine("h100-cluster", nodes=9), "hierarchical", {"outer": "in_network"}),
        (mt.machine("h100-cluster", nodes=70), "hierarchical", {}),
        (mt.machine("h100-cluster", nodes=9), "hierarchical", {"inner": "ring"}),
        (mt.machine("h100-cluster", nodes=5), "in_network_tree", {"chunks": 3}),
        (mt.machine("h100-cluster", nodes=128, gpus=1), "halving_doubling", {}),
        (mt.machine("h100-cluster", nodes=16), "halving_doubling", {}),
        (mt.machine("h100-cluster", nodes=16), "bruck", {}),
        (chips("switch", 64), "recursive_doubling", {}),
        (chips("torus", 64, dims=[8, 8]), "halving_doubling", {}),
        (chips("ring", 70), "ring", {"chunks": 4}),
        (chips("torus", 72, dims=[9, 8]), "by_dimension", {}),
        (chips("switch", 66, in_network_reduction=["sum"]), "in_network", {}),
    ],
    ids=str,
)
@pytest.mark.parametrize("count", [5, 1024, 9_999])
def test_all_at_once_equals_one_by_one(machine, algorithm, settings, count):
    plan = mt.collective(
        "all_reduce", machine=machine, algorithm=algorithm, settings=settings, nbytes=4 * count
    )
    usual = mt.simulate(plan, machine=machine)
    assert usual.time_ps == mt.simulate(plan, machine=machine, engine="compiled").time_ps


def between_nodes(nodes, nbytes):
    """Halving and doubling between nodes: links have many users, who never meet on them."""
    cluster = mt.machine("h100-cluster", nodes=nodes, gpus=2)
    asked = {"machine": cluster, "algorithm": "hierarchical", "settings": {"outer": "messages"}}
    plan = mt.collective("all_reduce", nbytes=nbytes, protocol="Simple", **asked)
    return lambda engine=None: mt.simulate(plan, machine=cluster, engine=engine)


@pytest.mark.parametrize("nbytes", [64, 1 << 16, 1 << 20])
def test_links_that_are_used_one_after_the_other_need_no_arbitration(nbytes):
    run = between_nodes(8, nbytes)
    assert run("compiled").time_ps == run("plain").time_ps


def test_messages_that_meet_on_a_link_are_arbitrated():
    machine = chips("ring", 64)
    plan = mt.collective("reduce_scatter", machine=machine, algorithm="halving_doubling", nbytes=1 << 20)
    times = {mt.simulate(plan, machine=machine, engine=e).time_ps for e in ("plain", "compiled")}
    assert len(times) == 1


def test_units_that_take_turns():
    """One command, other units each time it is issued."""
    n = 64
    b = PlanBuilder("turns", scale="device", units=n)
    x = b.tile("x", (1024,), "f32", memory="l2", role="inout")
    channel = b.channel("next", source=(unit - 1) % n, slot_bytes=4096, memory="l2", members=1, slots=2)
    with b.loop(0, 2) as scope:
        with b.when(eq(unit % 2, scope.index)):
            b.send(channel, x, to=(unit + 1) % n)
        with b.when(eq((unit - 1) % 2, scope.index)):
            b.copy(x, b.receive(channel, (1024,), "f32"), engine="vector")
    plan, machine = b.finish(), chips("ring", n)
    times = {e: mt.simulate(plan, machine=machine, engine=e).time_ps for e in ("plain", "compiled")}
    assert len(set(times.values())) == 1, times


def test_between_many_nodes_the_network_reduces():
    """Beyond 64 nodes messages would take long on the wire; the network does it if it can."""
    cluster = mt.machine("h100-cluster", nodes=65)
    plan = mt.collective("all_reduce", machine=cluster, algorithm="hierarchical", nbytes=1 << 12)
    assert len(plan.groups) == 1
    few = mt.machine("h100-cluster", nodes=64)
    assert not mt.collective("all_reduce", machine=few, algorithm="hierarchical", nbytes=1 << 12).groups
    product = mt.collective(
        "all_reduce", machine=cluster, algorithm="hierarchical", nbytes=1 << 12, reduction="prod"
    )
    assert not product.groups


def test_an_algorithm_and_protocol_asked_for_by_name_are_planned_without_simulation(monkeypatch):
    monkeypatch.setattr(ranking, "simulate", None)
    assert mt.collective("all_reduce", machine="dgx-h100", algorithm="ring", protocol="LL", nbytes=1 << 20)


@pytest.mark.parametrize("option", [{"inner": "rings"}, {"outer": "networks"}])
def test_unknown_ways_of_hierarchical_are_named(option):
    with pytest.raises(mt.MegatileError, match=r"hierarchical has no (inner|outer)"):
        mt.collective(
            "all_reduce", machine="h100-cluster", algorithm="hierarchical", nbytes=64, settings=option
        )
