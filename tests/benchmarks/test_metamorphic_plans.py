"""Relations that simulated collectives keep: a sample (``benchmarks/metamorphic_plans.py`` tries 500)."""

import metamorphic_plans


def test_no_relation_is_broken_by_simulated_plans():
    assert metamorphic_plans.report(40, seed=1) == []


def test_a_slower_machine_is_found():
    case = next(metamorphic_plans.cases(1))
    assert any("bandwidth" in text for text in metamorphic_plans.violations(Slower(**vars(case))))


class Slower(metamorphic_plans.Case):
    """Faster links as if they were slower."""

    def ps(self, **changes):
        if "gigabytes" in changes:
            changes["gigabytes"] = self.gigabytes / 4
        return super().ps(**changes)
