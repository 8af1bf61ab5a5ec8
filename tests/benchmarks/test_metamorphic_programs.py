"""Relations that times of programs keep: a sample (``benchmarks/metamorphic_programs.py`` tries more)."""

import random

import metamorphic_programs
from random_machines import random_machine


def test_times_of_programs_keep_the_relations():
    assert [line for line in metamorphic_programs.report(6, seed=1) if ": anomaly: " not in line] == []


def test_a_broken_relation_is_found():
    case = metamorphic_programs.Case("dgx-h100", (), "copy", (2, 1, 1))
    assert list(metamorphic_programs.violations(case, random.Random(0))) == []
    found = list(metamorphic_programs.violations(Beyond(**vars(case)), random.Random(0)))
    assert "is not between" in found[0]


class Beyond(metamorphic_programs.Case):
    """A time above its bound."""

    def times(self, hda, more=1, ranks=0):
        lower, _, upper = super().times(hda, more, ranks)
        return metamorphic_programs.Times(lower, upper + 1, upper)


def test_random_machines_have_other_names_where_asked():
    named, plain = (random_machine(3, prefix).to_dict() for prefix in ("b_", ""))
    assert [m["name"] for m in named["memory"]] == [f"b_{m['name']}" for m in plain["memory"]]
    assert len({str(random_machine(seed).to_dict()) for seed in range(10)}) == 10
