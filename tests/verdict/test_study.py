"""What a verdict may spend."""

from dataclasses import replace

import pytest
from tests.verdict import flawed

import megatile as mt
from megatile.verdict.judgement import verdict as judge
from megatile.verdict.model import Kind
from megatile.verdict.study import OutOfBudget, Rule, Study


def test_a_search_leaves_time_for_the_next(monkeypatch):
    result, left = mt.simulate(flawed.transpose(n=512), machine="dgx-h100"), list[int]()

    def greedy(study):
        left.append(study.left)
        study.left = 0
        raise OutOfBudget
        yield

    def second(study):
        yield from greedy(study)

    rules = [Rule("one", greedy, Kind.SEARCH, True), Rule("two", second, Kind.SEARCH, True)]
    monkeypatch.setattr("megatile.verdict.judgement.RULES", rules)
    assert judge(result).untried == ("one", "two")
    assert left == [left[0], left[0] // 2]


def test_errors_of_remedies_are_raised_on_demand_alone(monkeypatch):
    study = Study(mt.simulate(flawed.transpose(n=512), machine="dgx-h100"))
    broken = replace(study.lowered.source, body=(None,))
    with pytest.raises(TypeError):
        study.lower(broken)
    monkeypatch.setattr("megatile.verdict.study.raise_errors", False)
    assert study.lower(broken) is None
