"""``models/scheduler.py``: continuous batching."""

from __future__ import annotations

from dataclasses import replace

import pytest

import megatile as mt
from megatile.models.engines import ENGINES
from megatile.models.scheduler import Request, Scheduler
from megatile.models.schemes import ModelError

PLAIN = replace(ENGINES["vllm"], block_tokens=1, token_budget=100)


def by_tokens(groups: tuple[tuple[int, int, int], ...]) -> float:
    """A step takes 10 µs and 1 µs for every new token."""
    return 10.0 + sum(requests * new for requests, new, _ in groups)


def run(engine, requests, cache=10**6, step_us=by_tokens) -> Scheduler:
    scheduler = Scheduler(engine, step_us, cache)
    for request in requests:
        scheduler.add(request)
    while scheduler.running or scheduler.waiting:
        scheduler.advance(float("inf"))
    return scheduler


def test_one_request_by_hand() -> None:
    request = Request(0.0, 50, 5)
    run(PLAIN, [request])
    assert request.first_us == 60  # one step of 50 tokens
    assert request.end_us == 60 + 4 * 11


def test_a_long_prompt_is_divided_by_the_budget() -> None:
    request = Request(0.0, 250, 1)
    scheduler = run(PLAIN, [request])
    assert scheduler.steps == 3
    assert request.first_us == request.end_us == 3 * 10 + 250


def test_a_prefill_shares_a_step_with_decoding_or_stops_it() -> None:
    """The second prompt does not fit the first step; the first request decodes beside it, or waits."""
    for mixed, end in ((True, 110 + 101 + 12), (False, 110 + 100 + 12 + 12)):
        first, second = Request(0.0, 100, 3), Request(0.0, 90, 3)
        scheduler = run(replace(PLAIN, mixed=mixed), [first, second])
        assert second.first_us == 110 + (101 if mixed else 100)
        assert first.end_us == end
        gaps = sum(s.steps * s.requests * (s.first_us + s.last_us) / 2 for s in scheduler.segments)
        assert gaps == pytest.approx(sum(r.end_us - r.first_us for r in (first, second)))


def test_steps_together_equal_steps_one_by_one() -> None:
    """Between events the time is affine in the context: the sum over steps equals the trapezoid."""

    def affine(groups: tuple[tuple[int, int, int], ...]) -> float:
        return 5.0 + sum(r * n + 0.01 * r * c for r, n, c in groups)

    request = Request(0.0, 10, 1001)
    run(PLAIN, [request], step_us=affine)
    by_hand = 15.0 + sum(affine(((1, 1, 11 + n),)) for n in range(1000))
    assert request.end_us == pytest.approx(by_hand)


def test_a_full_cache_preempts_the_latest_and_all_are_answered() -> None:
    requests = [Request(0.0, 20, 40) for _ in range(4)]
    scheduler = run(PLAIN, requests, cache=130)
    assert scheduler.preemptions > 0
    assert requests[0].preempted == 0
    assert len(scheduler.done) == 4
    assert all(r.generated == r.output for r in requests)
    with pytest.raises(ModelError, match="exceeds the KV cache"):
        run(PLAIN, [Request(0.0, 100, 31)], cache=130)


def test_no_more_requests_run_than_the_engine_allows() -> None:
    requests = [Request(0.0, 10, 10) for _ in range(5)]
    scheduler = run(replace(PLAIN, max_num_seqs=2), requests)
    assert max(s.requests for s in scheduler.segments) == 2


def test_a_rate_above_what_is_served_is_called_saturated() -> None:
    model = mt.model("Llama-3.1-8B")
    slow = model.serve(machine="dgx-h100", isl=128, osl=128, rate=1.0, count=20)
    assert slow.verdict == "keeps up"
    fast = model.serve(machine="dgx-h100", isl=4096, osl=128, rate=1000.0, count=600)
    assert fast.verdict.startswith("saturated")
