from __future__ import annotations

from dataclasses import replace

import pytest

from megatile.collectives.algorithms import algorithms
from megatile.collectives.job import CollectiveError, Job
from megatile.collectives.planner import predict
from megatile.collectives.provenance import prove
from megatile.plan.model import Compute, Loop, Plan, Stream


def broken(plan, change):
    """The plan with every reduction inside loops changed."""

    def body(statements):
        for s in statements:
            if isinstance(s, Loop):
                yield replace(s, body=tuple(body(s.body)))
            elif isinstance(s, Compute) and s.operation == "add":
                yield change(s)
            else:
                yield s

    (stream,) = plan.streams
    return replace(plan, streams=(Stream(stream.units, tuple(body(stream.body))),))


def test_counts_what_was_proved():
    job = Job("all_reduce", 8, 37, "bf16", "avg")
    proof = prove(algorithms()["ring"].plan(job), job)
    assert (proof.elements, proof.contributions) == (8 * 37, 8 * 8 * 37)


def test_a_contribution_used_twice_is_named():
    job = Job("all_reduce", 4, 16)
    twice = broken(algorithms()["ring"].plan(job), lambda s: replace(s, reads=(s.reads[1], s.reads[1])))
    with pytest.raises(CollectiveError, match="rank 0 0 times, rank 1 8 times"):
        prove(twice, job)


def test_data_of_another_place_is_found():
    job = Job("all_gather", 4, 16, in_place=True)
    plan = algorithms()["direct"].plan(job)
    assert prove(plan, job).elements == 64
    swapped = Job("all_gather", 4, 16, in_place=True, root=1)
    text = str(plan).replace("(unit + (-1) - step_1) % 4", "(unit + 1 + step_1) % 4")
    wrong = type(plan).from_text(text) if text != str(plan) else None
    if wrong is not None:
        with pytest.raises(CollectiveError, match="does not come from where it should"):
            prove(wrong, swapped)


def test_a_plan_without_its_result_is_named():
    found = predict("all_reduce", machine="dgx-h100", nbytes=64, algorithm="ring")
    text = str(found.plan).replace('role="output"', 'role="local"')
    with pytest.raises(CollectiveError, match="no result 'y'"):
        prove(Plan.from_text(text), found.job)
