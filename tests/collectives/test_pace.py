"""``collectives/pace.py``: Plans take the time of their library's rule."""

from __future__ import annotations

from dataclasses import replace

import pytest

from megatile.collectives.pace import MAX_RANKS, paced, rule_ps
from megatile.collectives.planner import predict
from megatile.hda import machine
from megatile.sim import simulate
from megatile.timing.transports import rule_for, way_of


@pytest.mark.parametrize("nbytes", [1 << 12, 1 << 22])
def test_a_tree_between_nodes_takes_the_time_of_the_rule(nbytes: int) -> None:
    hda = machine("h100-cluster")
    found = predict("all_reduce", machine=hda, nbytes=nbytes, ranks=16, algorithm="node_tree")
    plan, job = found.plan, found.job
    transport = plan.transport(plan.kernel)
    rule = rule_for(hda, transport, "device").time_ps(way_of(transport), "all_reduce", 16, nbytes)
    assert rule_ps(plan, job, hda) == pytest.approx(rule)
    assert simulate(plan, machine=hda, launch=False).time_ps == pytest.approx(rule, rel=1e-5)
    twice = replace(plan, transports=(replace(transport, pace=2 * transport.pace),))
    again = paced(twice, job, hda)
    assert simulate(again, machine=hda, launch=False).time_ps == pytest.approx(rule, rel=1e-5)


def test_plans_without_a_rule_keep_their_pace() -> None:
    hda = machine("h100-cluster")
    found = predict("all_reduce", machine=hda, nbytes=1 << 20, ranks=16)
    inside = predict("all_reduce", machine=hda, nbytes=1 << 20, ranks=8, algorithm="ring")
    assert rule_ps(replace(found.plan, kernel=None), found.job, hda) is None
    assert rule_ps(found.plan, replace(found.job, count=MAX_RANKS + 1, ranks=MAX_RANKS + 1), hda) is None
    assert rule_ps(inside.plan, inside.job, hda) is None
    assert paced(inside.plan, inside.job, hda) is inside.plan
