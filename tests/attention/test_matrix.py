"""Nothing is left out of the matrix of cases that real processes and the executor run."""

from __future__ import annotations

from itertools import product

import pytest
from tests.attention import attention_matrix as matrix


def missing(found, ranks, families):
    """Combinations of kind of schedule, mask and length that no case stands for."""
    there = {(case.family, case.causal, case.lengths) for case in found if case.ranks == ranks}
    return sorted(set(product(families, (False, True), ("equal", "uneven"))) - there)


@pytest.mark.parametrize("ranks", range(1, 10))
def test_real_processes_run_every_kind_of_schedule(ranks):
    assert ranks in matrix.PROCESS_RANKS
    assert missing(matrix.cases(ranks), ranks, matrix.FAMILIES) == []
    assert {x for x in matrix.FAMILIES if not x.startswith("ulysses x")} >= {
        "ring", "zigzag", "striped", "direct", "hamilton", "ulysses",
    }  # fmt: skip
    for m, u in matrix.NODES:
        if m * u == ranks:
            name = f"hamilton:{m}x{u}"
            there = {(c.causal, c.lengths) for c in matrix.cases(ranks) if c.schedule == name}
            assert there == set(product((False, True), ("equal", "uneven"))), name


def test_the_nodes_that_real_processes_must_show():
    assert set(matrix.NODES) >= {(2, 2), (2, 3), (3, 2), (4, 2)}
    assert all(m * u in matrix.PROCESS_RANKS for m, u in matrix.NODES)


@pytest.mark.parametrize("ranks", [16, 24, 32, 64])
def test_the_executor_runs_every_kind_of_schedule(ranks):
    whole, daily = matrix.executor_cases(whole=True), matrix.executor_cases(whole=False)
    assert missing(whole, ranks, (*matrix.FAMILIES, "nodes")) == []
    left = missing(daily, ranks, (*matrix.FAMILIES, "nodes"))
    families = {case.family for case in daily if case.ranks == ranks}
    everybody = {"direct", "hamilton", "ulysses"} if ranks == 64 else set()
    assert {*matrix.FAMILIES, "nodes"} - families == everybody
    assert (left == []) == (ranks == 16)


def test_a_combination_that_is_missing_is_found():
    cases = [case for case in matrix.cases(4) if not (case.schedule == "ring" and case.causal)]
    assert missing(cases, 4, matrix.FAMILIES) == [("ring", True, "equal"), ("ring", True, "uneven")]
