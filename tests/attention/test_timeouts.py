"""Ranks that are lost in all ways: the others name them, within the timeout."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is not installed: the attention functions cannot run")

from tests.attention import attention_faults as faults
from tests.attention.attention_processes import run_all, run_ranks
from tests.patience import patience, slowness

TIMEOUT = 6.0  # on an idle computer; a third of it is grace, and processes of several cases run at once
LATE = "did not arrive in time ({:g} s, "
GONE = "ended or lost its connection"
STORE = "it ke"  # rank 0 keeps the store


CASES = [
    (3, 1, "sleeps", "hamilton", False, LATE + "the group's timeout)"),
    (4, 2, "sleeps", "ring", True, LATE + "MEGATILE_ATTENTION_TIMEOUT)"),
    (3, 0, "sleeps, in the middle", "ring", False, LATE),
    (4, 3, "sleeps, in the middle", "ring", False, LATE),
    (3, 2, "stops", "ring", False, LATE),
    (4, 1, "stops, in the middle", "ring", False, LATE),
    (4, 3, "stops, in the middle", "hamilton", True, LATE),
    (3, 0, "stops, in the middle", "ring", False, STORE),
    (4, 0, "stops", "hamilton", False, STORE),
    (3, 1, "exits", "ring", False, GONE),
    (4, 0, "exits", "hamilton", False, STORE),
    (4, 2, "is killed, in the middle", "direct", False, GONE),
    (3, 2, "is killed, in the middle", "ulysses", False, GONE),
]


def test_lost_ranks_are_named_within_the_timeout():
    failures = run_all(CASES, is_named)
    assert not failures, "\n".join(failures)


def is_named(ranks, victim, how, schedule, own, told):
    timeout = float(round(min(patience(TIMEOUT), 20.0)))  # the time of grace does not grow any more then
    group, own_timeout = (10 * timeout, str(timeout)) if own else (timeout, "")
    results = run_ranks(
        faults.goes_missing, ranks, victim, how, schedule, own_timeout,
        group_timeout=group, finishes=[r for r in range(ranks) if r != victim],
    )  # fmt: skip
    for rank, (answer, error) in enumerate(results):
        if rank != victim:
            assert error is None, error
            seconds, text, named = answer
            assert named == (victim,), text
            assert f"failed: rank {victim} " in text
            assert told.format(timeout) in text
            assert seconds < timeout + slowness() - 1  # within it, but for what a busy computer adds


def test_a_slow_rank_is_not_an_error_if_it_comes_in_time():
    """Even when the roll was called already."""
    results = run_ranks(faults.is_slow, 3, 1, patience(2.0), group_timeout=patience(2.6))
    assert results == [("done", None)] * 3
