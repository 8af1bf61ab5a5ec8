"""Relations that times of collectives keep: a sample (``benchmarks/metamorphic.py`` tries more)."""

import metamorphic


def test_no_relation_is_broken_on_random_machines():
    assert metamorphic.report(60, seed=1) == []


def test_a_broken_rule_is_found():
    case = next(metamorphic.cases(1))
    time = case.us()
    assert any("below" in text for text in metamorphic.violations(Broken(*case))), time


class Broken(metamorphic.Case):
    """Times as if there were no bytes."""

    def us(self, **changes):
        return 1e-9
