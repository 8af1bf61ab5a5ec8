"""Relations that times of programs keep: a sample (``benchmarks/metamorphic_programs.py`` tries more)."""

import random

import metamorphic_programs


def test_times_of_programs_keep_the_relations():
    assert [line for line in metamorphic_programs.report(6, seed=1) if ": anomaly: " not in line] == []


def test_a_broken_relation_is_found():
    case = metamorphic_programs.Case("dgx-h100", (), "copy", (2, 1, 1))
    assert list(metamorphic_programs.violations(case, random.Random(0))) == []
    found = list(metamorphic_programs.violations(Beyond(**vars(case)), random.Random(0)))
    assert "is not between" in found[0]


class Beyond(metamorphic_programs.Case):
    """A time above its bound."""

    def time(self, hda, more=1):
        low, _, high = super().time(hda, more)
        return low, high + 1, high
