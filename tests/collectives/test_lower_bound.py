"""The planner's prices: lower bounds, also where they are given up early."""

from __future__ import annotations

import pytest

import megatile as mt
from megatile.collectives import predict
from megatile.collectives.algorithms import algorithms
from megatile.collectives.requests import make_job
from megatile.cost.price import lower_bound, price


@pytest.mark.parametrize("name", ["ring", "direct", "hierarchical", "tree", "bruck", "halving_doubling"])
def test_the_longest_chain_is_a_lower_bound(name):
    cluster = mt.machine("h100-cluster", nodes=2)
    job, _ = make_job("all_reduce", machine=cluster, nbytes=4 * 9973)
    plan = algorithms()[name].plan(job)
    chain = lower_bound(plan, cluster)
    assert 0 < chain <= price(plan, cluster).lower_ps <= mt.simulate(plan, machine=cluster).time_ps


def test_a_table_remembers_choices_as_json():
    import json

    table = {}
    first = predict("all_reduce", machine="dgx-h100", nbytes=1 << 16, table=table)
    again = json.loads(json.dumps(table))
    second = predict("all_reduce", machine="dgx-h100", nbytes=1 << 16, table=again)
    assert (first.algorithm, first.time_ps) == (second.algorithm, second.time_ps)
    assert again == table
    assert len(table) == 1
    plan = mt.collective("all_reduce", machine="dgx-h100", nbytes=1 << 16, table=again)
    assert plan == first.plan


def test_explanation_says_why_not():
    _, why = mt.collective(
        "all_reduce", machine="h100-cluster", nbytes=1 << 20, algorithm="fastest", explain=True
    )
    text = str(why)
    assert "chosen" in text
    assert "the ranks are not on one network" in text
    assert "no faster even without contention" in text


@pytest.mark.parametrize("ranks", [3, 5, 8])
@pytest.mark.parametrize("engine", ["compiled"])
def test_messages_of_no_bytes_take_no_time_on_the_wire(ranks, engine):
    """Four bytes over several ranks: most messages are empty, and price and simulation say so alike."""
    mesh = mt.machine("mi300x-8")
    job, _ = make_job("all_gather", machine=mesh, nbytes=4, ranks=ranks)
    plan = algorithms()["hamilton"].plan(job)
    found = price(plan, mesh)
    assert (
        found.lower_ps <= mt.simulate(plan, machine=mesh, data=False, engine=engine).time_ps <= found.upper_ps
    )
