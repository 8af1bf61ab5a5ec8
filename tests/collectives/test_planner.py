from __future__ import annotations

import json

import pytest

import megatile as mt
from megatile.collectives import ranking
from megatile.collectives.job import CollectiveError, Job
from megatile.collectives.planner import bus_factor, collective, predict
from megatile.collectives.provenance import prove
from megatile.collectives.ranking import QUEUE, effort, rank
from megatile.collectives.sweeps import count_wrong, small_twin
from megatile.hda import machine
from megatile.plan.check import check
from megatile.plan.model import PlanError


def test_named_algorithm_gives_its_plan():
    plan = collective("all_reduce", machine="dgx-h100", nbytes=4096, algorithm="ring")
    assert plan.name.startswith("all_reduce ring n=8 count=1024")
    assert (plan.units, plan.scale) == (8, "device")


def test_choice_depends_on_size():
    small = predict("all_reduce", machine="mi300x-8", nbytes=256)
    large = predict("all_reduce", machine="mi300x-8", nbytes=1 << 28)
    assert small.candidate.protocol == "LL"
    assert large.candidate.protocol == "Simple"
    assert large.algbw > 100e9


def test_explanation_lists_candidates_prices_and_reasons():
    plan, why = collective(
        "all_reduce", machine="dgx-h100", nbytes=1 << 26, algorithm="fastest", explain=True
    )
    text = str(why)
    assert plan.name.split()[1] == why.chosen.algorithm
    assert "chosen" in text
    assert "the ranks are not nested in equal groups" in text
    assert why.chosen.time_ps == min(c.time_ps for c in why.candidates if c.time_ps is not None)


def test_prices_are_lower_bounds():
    hda = machine("mi300x-8")
    job = Job("all_reduce", 8, 1 << 16, scale="device", memory="hbm")
    for candidate in rank(hda, job):
        if candidate.time_ps is not None:
            assert candidate.price_ps <= candidate.time_ps


def test_choices_are_remembered_in_a_table_that_json_keeps():
    table: dict = {}
    first = predict("all_gather", machine="mi300x-8", nbytes=1 << 20, table=table)
    again = predict("all_gather", machine="mi300x-8", nbytes=1 << 20, table=json.loads(json.dumps(table)))
    assert again.plan == first.plan
    assert again.time_ps == first.time_ps
    assert len(table) == 1


@pytest.mark.parametrize(
    ("name", "scale", "ranks"),
    [
        ("dgx-h100", "warpgroup", 4),
        ("dgx-h100", "warp", 8),
        ("dgx-h100", "block", 6),
        ("h100-cluster", "node", None),
        ("h100-cluster", "device", [0, 1, 2, 8, 9, 10]),
        ("h100-cluster", "device", [3, 11, 19]),
        ("ahbm", "cube", 16),
        ("ahbm", "sip", None),
        ("cpu", "block", 2),
    ],
)
def test_any_scale_and_sub_groups(name, scale, ranks):
    hda = machine(name)
    found = predict("all_reduce", machine=hda, scale=scale, ranks=ranks, nbytes=52, in_place=True)
    assert found.time_ps > 0
    check(found.plan, hda)
    prove(found.plan, found.job)
    assert count_wrong(found) == 0


def test_sub_group_stands_where_it_was_asked_to():
    plan = collective("all_reduce", machine="h100-cluster", ranks=[3, 11, 19], nbytes=64, algorithm="ring")
    assert [plan.place.evaluate({"unit": u}) for u in range(3)] == [3, 11, 19]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"op": "all_redce"}, "did you mean 'all_reduce'"),
        ({"nbytes": 13}, "13 bytes are not a whole number of f32 .*12 or 16"),
        ({"ranks": 16}, "has 8 units of scale 'device'"),
        ({"ranks": [1, 1]}, "cannot be two ranks"),
        ({"reduction": "xor"}, "'xor' is not a reduction"),
        ({"root": 8, "op": "broadcast"}, "root 8 is not a rank"),
        ({"op": "barrier", "algorithm": "tree"}, "tree cannot do barrier"),
        ({"op": "all_to_all", "nbytes": 52, "in_place": True}, "needs equal blocks"),
        ({"algorithm": "ring", "settings": {"chunk": 2}}, "has no option 'chunk'.*'chunks'"),
    ],
)
def test_mistakes_are_explained(arguments, message):
    with pytest.raises(CollectiveError, match=message):
        collective(**{"op": "all_reduce", "machine": "dgx-h100", "nbytes": 64} | arguments)


def test_unknown_algorithm_lists_what_there_is():
    with pytest.raises(Exception, match="did you mean 'ring'"):
        collective("all_reduce", machine="dgx-h100", nbytes=64, algorithm="rign")


def test_algorithm_by_import_path():
    path = "megatile.collectives.algorithms.tree:tree"
    plan = collective("all_reduce", machine="dgx-h100", nbytes=64, algorithm=path)
    assert " tree " in plan.name


def test_bus_factors_are_those_of_nccl_tests():
    assert bus_factor("all_reduce", 8) == 1.75
    assert bus_factor("all_gather", 8) == 0.875
    assert bus_factor("broadcast", 8) == 1


def test_small_twin_is_cut_alike():
    job = Job("all_reduce", 8, (1 << 28) + 3)
    twin = small_twin(job)
    assert twin.count < job.count
    assert twin.count % (8 * 64) == job.count % (8 * 64)


@pytest.mark.parametrize("ranks", [3, 4, 5, 6, 7, 8])
def test_more_rings_than_there_are_is_as_many_as_there_are(ranks):
    plan = collective(
        "all_reduce",
        machine="mi300x-8",
        ranks=ranks,
        nbytes=64,
        algorithm="multi_ring",
        settings={"rings": 99},
    )
    assert plan.channels[0].members == (ranks - 2 if ranks in (4, 6) else ranks - 1)


def test_who_reduces_is_told():
    cluster = machine("h100-cluster", nodes=65)
    asked = {"machine": cluster, "nbytes": 1 << 12, "algorithm": "hierarchical", "explain": True}
    _, why = collective("all_reduce", **asked)
    assert "the network itself" in str(why)
    _, why = collective("all_reduce", **asked, settings={"outer": "messages"})
    assert "the network itself" not in str(why)


def test_auto_keeps_to_the_protocol_asked_for():
    for protocol in ("Simple", "LL", "NVLS"):
        found = predict("all_reduce", machine="dgx-h100", nbytes=1 << 12, protocol=protocol, ranks=4)
        assert found.candidate.protocol == protocol
        assert found.explanation is not None
        assert {c.protocol for c in found.explanation.candidates if c.why_not is None} == {protocol}


@pytest.mark.parametrize(("name", "protocol"), [("ring", "NVLS"), ("in_network", "LL"), ("tree", "LL128")])
def test_a_protocol_that_an_algorithm_has_not(name, protocol):
    with pytest.raises(CollectiveError, match=f"'{name}' has no protocol '{protocol}'"):
        predict("all_reduce", machine="h100-cluster", nbytes=64, algorithm=name, protocol=protocol)


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
