from __future__ import annotations

import json

import pytest

from megatile.collectives.job import CollectiveError
from megatile.collectives.planner import bus_factor, collective, predict
from megatile.collectives.provenance import prove
from megatile.collectives.sweeps import count_wrong
from megatile.hda import machine
from megatile.plan.check import check


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


def test_sub_group_is_where_it_was_asked_to_be():
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


def test_unknown_algorithm_lists_the_known_ones():
    with pytest.raises(Exception, match="did you mean 'ring'"):
        collective("all_reduce", machine="dgx-h100", nbytes=64, algorithm="rign")


def test_bus_factors_are_those_of_nccl_tests():
    assert bus_factor("all_reduce", 8) == 1.75
    assert bus_factor("all_gather", 8) == 0.875
    assert bus_factor("broadcast", 8) == 1


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


@pytest.mark.parametrize(("name", "protocol"), [("ring", "NVLS"), ("in_network", "LL"), ("tree", "LL128")])
def test_a_protocol_that_an_algorithm_has_not(name, protocol):
    with pytest.raises(CollectiveError, match=f"'{name}' has no protocol '{protocol}'"):
        predict("all_reduce", machine="h100-cluster", nbytes=64, algorithm=name, protocol=protocol)
