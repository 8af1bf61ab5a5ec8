"""``collectives/ranking.py``: how an algorithm is chosen."""

from __future__ import annotations

from dataclasses import replace

import pytest

import megatile as mt
from megatile.collectives import ranking
from megatile.collectives.algorithms import find_algorithm
from megatile.collectives.job import CollectiveError, Job
from megatile.collectives.planner import collective, predict
from megatile.collectives.ranking import QUEUE, effort, rank, variants
from megatile.collectives.requests import make_job
from megatile.hda import machine
from megatile.plan.model import PlanError


def test_prices_are_lower_bounds():
    hda = machine("mi300x-8")
    job = Job("all_reduce", 8, 1 << 16, scale="device", memory="hbm")
    for candidate in rank(hda, job):
        if candidate.time_ps is not None:
            assert candidate.price_ps <= candidate.time_ps


def test_auto_keeps_to_the_protocol_asked_for():
    for protocol in ("Simple", "LL", "NVLS"):
        found = predict("all_reduce", machine="dgx-h100", nbytes=1 << 12, protocol=protocol, ranks=4)
        assert found.candidate.protocol == protocol
        assert found.explanation is not None
        assert {c.protocol for c in found.explanation.candidates if c.why_not is None} == {protocol}


def test_nothing_allowed_does_it():
    with pytest.raises(CollectiveError, match="none that was allowed does it"):
        predict("all_reduce", machine="dgx-h100", nbytes=64, among=["dissemination"])


@pytest.mark.parametrize("algorithm", ["ring", "direct", "hierarchical", "halving_doubling", "rail_rings"])
def test_the_effort_of_a_plan_is_known_before_it_is_run(algorithm):
    plan = collective("all_reduce", machine="h100-cluster", ranks=16, nbytes=1 << 16, algorithm=algorithm)
    queues = sum(plan.units * channel.members for channel in plan.channels)
    issued = len(mt.simulate(plan, machine="h100-cluster").trace)
    assert 0.5 * issued < effort(plan) - QUEUE * queues < 2 * issued


def test_with_many_ranks_the_cheapest_to_simulate_are_tried(monkeypatch):
    monkeypatch.setattr(ranking, "MAX_COMMANDS_OF_ALL_TRIALS", 60_000)
    cluster = mt.machine("h100-cluster", nodes=9)
    with pytest.warns(
        UserWarning, match="not all variants of .*ring.* were tried, .* name one to wait for it"
    ):
        plan, why = collective("all_reduce", machine=cluster, nbytes=1024, algorithm="fastest", explain=True)
    assert plan.units == 72
    notes = {c.algorithm: c.why_not for c in why.candidates}
    assert "too large: about" in str(notes["direct"])
    assert why.chosen.why_not is None


def test_what_does_not_fit_the_memory_is_left_out():
    small = machine("dgx-h100", **{"memory.hbm.size": "3 GB"})
    found = predict("all_reduce", machine=small, nbytes=1 << 30, among=["direct", "ring"])
    notes = {c.label: c.why_not for c in found.explanation.candidates}
    assert found.algorithm == "ring"
    assert "memory 'hbm' of machine 'dgx-h100' has" in str(notes["direct"])
    asked = {"machine": small, "nbytes": 1 << 30}
    with pytest.raises(CollectiveError, match="direct: memory 'hbm' of machine 'dgx-h100' has"):
        predict("all_reduce", **asked, among=["direct"])
    with pytest.raises(PlanError, match="memory 'hbm' of machine 'dgx-h100' has"):
        predict("all_reduce", **asked, algorithm="direct")


@pytest.mark.parametrize("nbytes", [8, 1 << 16, 1 << 24])
@pytest.mark.parametrize("machine", ["dgx-h100", "h100-cluster"])
def test_nothing_that_was_simulated_beats_the_choice(machine, nbytes):
    hda = mt.machine(machine)
    job, _ = make_job("all_reduce", machine=hda, nbytes=nbytes)
    ranking = rank(hda, job)
    times = [c.time_ps for c in ranking if c.time_ps is not None]
    assert times == sorted(times)
    assert all(c.price_ps <= c.time_ps for c in ranking if c.time_ps is not None and c.price_ps is not None)


def test_both_ways_is_tried_where_something_closes_to_a_ring():
    known = find_algorithm("by_dimension")
    job = Job("all_reduce", 16, 1 << 16, scale="device", memory="hbm", wrap=(True, False))
    assert "both_ways" in known.options
    assert {"both_ways": True} in list(variants(known, job))
    assert {"both_ways": True} not in list(variants(known, replace(job, wrap=(False, False))))
    assert {"both_ways": True} not in list(variants(find_algorithm("direct"), job))
