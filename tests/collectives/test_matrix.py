"""A sample of the matrix (``matrix.py``) that leaves no algorithm, operation, network and setting out."""

from __future__ import annotations

import pytest
from tests.collectives.matrix import (
    RANKS,
    SETTINGS,
    Case,
    alone,
    main,
    nesting,
    on_networks,
    reason_against,
    verify,
)
from tests.collectives.networks import NETWORKS

from megatile.collectives.algorithms import algorithms
from megatile.collectives.job import OPERATIONS, Job


def sampled() -> list[Case]:
    """For every algorithm, operation and number of ranks one case, fewer above 8 ranks and few above 17;
    and one for every algorithm on every network. Checksums pick the same cases everywhere.
    """
    strata: dict[tuple[object, ...], list[Case]] = {}
    for case in alone():
        strata.setdefault((case.algorithm, case.operation, case.ranks), []).append(case)
    for case in on_networks():
        strata.setdefault((case.algorithm, case.network), []).append(case)
    return [one for stratum, among in strata.items() for one in _chosen(stratum, among)]


def _chosen(stratum: tuple[object, ...], among: list[Case]) -> list[Case]:
    pick, few = Case(*map(str, stratum[:2]), 0, 0).pick + 7 * among[0].ranks, among[0].ranks <= 8
    if len(stratum) == 2:
        among = [case for case in among if 2 <= case.ranks <= 8] or among
    elif not few and pick % (3 if among[0].ranks <= 17 else 16):
        return []
    order = among[pick // 16 % len(among) :] + among[: pick // 16 % len(among)]
    return next(([case] for case in order if reason_against(case) is None), [])


SAMPLE = sampled()


@pytest.mark.parametrize("case", SAMPLE, ids=str)
def test_numpy_provenance_check(case):
    verify(case)


def test_nothing_is_left_out():
    assert {(c.algorithm, c.operation) for c in SAMPLE} == {
        (name, operation) for name, known in algorithms().items() for operation in known.operations
    }
    assert {c.operation for c in SAMPLE} == set(OPERATIONS)
    assert {c.network for c in SAMPLE} == {"", *NETWORKS}
    assert {c.ranks for c in SAMPLE} == set(RANKS)
    said = {(name, value) for name, values in SETTINGS.items() for value in values}
    assert {setting for c in SAMPLE for setting in c.settings} == said | {("chunks", 3)}


def test_the_whole_says_what_it_did(capsys):
    assert main(["dissemination", "-k", "n=3-"]) == 0
    assert "dissemination" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["rng"])
    assert "there is no algorithm 'rng'" in capsys.readouterr().err


@pytest.mark.parametrize("name", sorted(algorithms()))
def test_streams_do_not_grow_with_ranks(name):
    """One stream whatever n, and as many statements for 64 ranks as for 16."""
    known = algorithms()[name]

    def size(n):
        job = Job(known.operations[0], n, 64 * n, levels=nesting(name, n), reduces=(("sum",),))
        plan = known.plan(job)
        assert len(plan.streams) == 1
        return str(plan.streams).count("place=") or len(str(plan).splitlines())

    assert size(64) <= size(16) + 8
