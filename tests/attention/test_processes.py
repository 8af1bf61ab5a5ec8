"""Attention over real processes (gloo): exactness of every schedule, wrong use, ranks that die."""

from __future__ import annotations

import time
from itertools import product

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: the attention functions cannot run")

from tests.attention import (  # noqa: E402
    attention_adopted as adopted,
    attention_cases as cases,
    attention_extras as extras,
    attention_faults as faults,
    attention_matrix as matrix,
    attention_names as names,
    attention_use as use,
)
from tests.attention.attention_processes import run_all, run_jobs, run_ranks  # noqa: E402
from tests.patience import patience  # noqa: E402


def wanted_cases(ranks):
    auto = [matrix.Case("auto", "auto", ranks, c, x) for c, x in product(matrix.MASKS, matrix.LENGTHS)]
    return [*matrix.cases(ranks), *(auto if ranks < 4 else [])]


def low_precision(ranks):
    """All work in f32 on CPUs, so that some numbers of ranks stand for all."""
    return {3: [torch.bfloat16, torch.float16], 1: [torch.bfloat16], 4: [torch.bfloat16]}.get(ranks, [])


def jobs_of(ranks):
    """What one spawn of so many processes does, one after the other."""
    jobs = [(cases.check_schedules, (wanted_cases(ranks), low_precision(ranks)))]
    nodes = [(1, 1), (3, 1), (2, 2), (2, 3), (3, 2), (4, 2)]
    jobs += [(names.check_forwards, (m, u)) for m, u in nodes if m * u == ranks]
    if ranks in (1, 2, 3, 4, 5):
        jobs.append((names.check_any_length, ()))
    if ranks <= 2:
        jobs.append((cases.check_low_precision, ()))
    if ranks <= 3:
        jobs.append((cases.check_masks, ()))
    if ranks in (2, 4):
        jobs.append((names.check_names, ()))
    if ranks == 4:
        jobs.append((adopted.check_adopted, ()))
    if ranks in (2, 3):
        jobs.append((extras.check_extras, ()))
    if ranks in (3, 4):
        jobs.append((use.check_use, ()))
    if ranks in (2, 3):
        jobs.append((faults.check_errors, ()))
    if ranks == 3:
        jobs += [(faults.check_communication_classes, ()), (faults.check_overlap, ())]
    return jobs


@pytest.mark.parametrize("ranks", matrix.PROCESS_RANKS)
def test_attention_of_real_processes_equals_one_device_and_refuses_wrong_use(ranks):
    f32, narrow = str(torch.float32), [str(dtype) for dtype in low_precision(ranks)]
    wanted = {(case, x) for case in wanted_cases(ranks) for x in [f32, *narrow]}
    wanted -= {(case, x) for case, x in wanted if case.lengths == "equal" and x != f32}
    for rank, (answers, error) in enumerate(run_ranks(run_jobs, ranks, jobs_of(ranks), timeout=400.0)):
        assert error is None, f"rank {rank}:\n{error}"
        for name, (failures, count, _, *done) in answers:
            assert not failures, f"{name}, rank {rank}: " + "\n".join(failures)
            assert count > 0, name
            if name == "check_schedules":
                assert set(done[0]) == wanted, f"rank {rank} left cases out"


DEATHS = [
    ("hamilton", 2, True, False), ("ring", 1, False, False), ("direct", 3, False, False),
    ("ring", 0, True, False), ("hamilton", 1, True, True), ("direct", 0, True, True),
    ("ulysses", 2, False, False), ("ulysses:2+hamilton", 3, True, True),
]  # fmt: skip


def test_a_rank_that_dies_is_named_by_all_others():
    failures = run_all(DEATHS, dead_rank_is_named)
    assert not failures, "\n".join(failures)


def dead_rank_is_named(schedule, victim, causal, backward):
    start, limit = time.monotonic(), patience(40.0)
    results = run_ranks(faults.dies_in_the_middle, 4, schedule, victim, causal, backward, group_timeout=limit)
    assert time.monotonic() - start < limit
    for rank, (_, error) in enumerate(results):
        if rank == victim:
            assert error == "ended"
        else:
            assert "PeerError" in error, error
            assert f"failed: rank {victim} " in error, error


def test_a_rank_that_does_not_take_part_is_named():
    short, long = patience(2.0), patience(30.0)
    failures = run_all([(short, ""), (long, str(short)), (2 * short, None)], missing_rank_is_named)
    assert not failures, "\n".join(failures)


def missing_rank_is_named(group_timeout, own_timeout):
    """It never calls; or (no timeout of our own) calls with another group."""
    if own_timeout is None:
        results = run_ranks(use.calls_with_another_group, 3, 2, group_timeout=group_timeout)
        assert results[2] == ("done", None)
        assert all("failed: rank 2 " in results[rank][0] for rank in (0, 1)), results
        return
    results = run_ranks(faults.never_calls, 3, 1, own_timeout, group_timeout=group_timeout, finishes=[0, 2])
    for rank in (0, 2):
        assert "failed: rank 1 did not arrive in time" in results[rank][1], results[rank][1]
