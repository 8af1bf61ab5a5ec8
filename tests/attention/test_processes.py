"""Attention over real processes (gloo): exactness of every schedule, wrong use, ranks that die."""

from __future__ import annotations

import time

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: the attention functions cannot run")

import attention_cases as cases  # noqa: E402
import attention_faults as faults  # noqa: E402
import attention_names as names  # noqa: E402
from attention_processes import run_ranks  # noqa: E402


def assert_all_well(results):
    for rank, (answer, error) in enumerate(results):
        assert error is None, f"rank {rank}:\n{error}"
        failures, count, _ = answer
        assert not failures, f"rank {rank}: " + "\n".join(failures)
        assert count > 0


@pytest.mark.parametrize("ranks", range(1, 10))
def test_every_schedule_equals_one_device(ranks):
    low_precision = [torch.bfloat16, torch.float16] if ranks == 3 else [torch.bfloat16]
    assert_all_well(run_ranks(cases.check_schedules, ranks, cases.schedules_of(ranks), low_precision))


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_masks_lengths_and_transports(ranks):
    assert_all_well(run_ranks(cases.check_masks, ranks))


@pytest.mark.parametrize(("m", "u"), [(1, 1), (3, 1), (2, 2), (2, 3), (3, 2), (4, 2)])
def test_functions_with_chunks_and_mappings(m, u):
    assert_all_well(run_ranks(names.check_forwards, m * u, m, u))


@pytest.mark.parametrize("ranks", [2, 4])
def test_other_names_context_and_sub_groups(ranks):
    assert_all_well(run_ranks(names.check_names, ranks))


def test_communication_classes():
    assert_all_well(run_ranks(faults.check_communication_classes, 3))


@pytest.mark.parametrize("ranks", [2, 3])
def test_wrong_use_is_one_clear_error_everywhere(ranks):
    assert_all_well(run_ranks(faults.check_errors, ranks))


@pytest.mark.parametrize(
    ("schedule", "victim", "causal"),
    [("hamilton", 2, True), ("ring", 1, False), ("direct", 3, False), ("ring", 0, True)],
)
def test_a_rank_that_dies_is_named_by_all_others(schedule, victim, causal):
    start = time.monotonic()
    results = run_ranks(faults.dies_in_the_middle, 4, schedule, victim, causal, group_timeout=40.0)
    assert time.monotonic() - start < 40
    for rank, (_, error) in enumerate(results):
        if rank == victim:
            assert error == "ended"
        else:
            assert "PeerError" in error, error
            assert f"failed: rank {victim} " in error, error


@pytest.mark.parametrize(("group_timeout", "own_timeout"), [(2.0, ""), (30.0, "2")])
def test_a_rank_that_never_calls_is_named(group_timeout, own_timeout):
    results = run_ranks(faults.never_calls, 3, 1, own_timeout, group_timeout=group_timeout)
    for rank in (0, 2):
        assert "failed: rank 1 did not arrive in time" in results[rank][1], results[rank][1]
