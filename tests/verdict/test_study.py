"""What a verdict may spend."""

from tests.verdict import flawed

import megatile as mt
from megatile.verdict.judgement import verdict as judge
from megatile.verdict.model import Kind
from megatile.verdict.study import OutOfBudget, Rule


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
