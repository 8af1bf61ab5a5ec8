"""The scheduler loop: by hand on an engine whose steps take simple times, and laws of queues."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

import megatile as mt
from megatile.models.engines import ENGINES
from megatile.models.requests import make_requests, read_requests
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


@pytest.mark.parametrize("library", ["vllm", "trtllm", "sglang"])
def test_laws_of_a_closed_loop(library: str) -> None:
    asked = {"machine": "dgx-h100", "isl": 256, "osl": 64, "library": library}
    model = mt.model("Llama-3.1-8B")
    found = [model.serve(**asked, concurrency=users, spread=0.2) for users in (1, 8, 64)]
    for few, many in pairwise(found):
        assert many.tpot_ms > few.tpot_ms
        assert many.tokens_per_s > few.tokens_per_s
    for serving, users in zip(found, (1, 8, 64), strict=True):
        mean = sum(r.end_us - r.arrival_us for r in serving.requests) / len(serving.requests) / 1e6
        in_flight = len(serving.requests) / serving.duration_s * mean  # Little's law
        assert 0.7 * users < in_flight <= users * 1.0001
        assert min(r.first_us - r.arrival_us for r in serving.requests) > 1e3 * ENGINES[library].frontend_ms
        assert serving.itl["mean"] == pytest.approx(serving.tpot_ms, rel=0.05)
        assert serving.ttft["p50"] <= serving.ttft["p90"] <= serving.ttft["p99"]
    assert "chunked prefill" in str(found[0])


def test_a_rate_above_what_is_served_is_called_saturated() -> None:
    model = mt.model("Llama-3.1-8B")
    slow = model.serve(machine="dgx-h100", isl=128, osl=128, rate=1.0, count=20)
    assert slow.verdict == "keeps up"
    fast = model.serve(machine="dgx-h100", isl=4096, osl=128, rate=1000.0, count=600)
    assert fast.verdict.startswith("saturated")


def test_traces(tmp_path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text(
        '{"timestamp": 1.0, "prompt_len": 10, "output_len": 2}\n\n'
        '{"timestamp": 0, "prompt_len": 5, "output_len": 3}\n'
    )
    assert [(r.arrival_us, r.prompt, r.output) for r in read_requests(file)] == [(0.0, 5, 3), (1e6, 10, 2)]
    found = mt.model("Llama-3.1-8B").serve(machine="dgx-h100", requests=file)
    assert len(found.requests) == 2
    assert found.requests[1].first_us > 1e6
    for line in (
        "{}",
        "7",
        '{"timestamp": "now", "prompt_len": 1, "output_len": 1}',
        '{"timestamp": 0, "prompt_len": 0, "output_len": 1}',
    ):
        file.write_text(line)
        with pytest.raises(ModelError):
            read_requests(file)
    file.write_text("")
    with pytest.raises(ModelError, match="holds no requests"):
        read_requests(file)


@pytest.mark.parametrize(
    "wrong",
    [{"isl": 0}, {"osl": -1}, {"concurrency": 0}, {"rate": -1.0}, {"rate": 1.0, "concurrency": 2}, 
     {"count": 0}, {"spread": 1.0}, {"requests": [(1, 2)]}, {"requests": []}, {"concurrency": True}],
)  # fmt: skip
def test_bad_loads_are_one_sentence(wrong: dict[str, object]) -> None:
    with pytest.raises(ModelError) as caught:
        mt.model("Llama-3.1-8B").serve(machine="dgx-h100", **wrong)
    assert "\n" not in str(caught.value)


def test_lengths_are_spread_and_repeatable() -> None:
    one, two = (make_requests(1000, 100, 50, spread=0.2, seed=3) for _ in range(2))
    assert [r.prompt for r in one] == [r.prompt for r in two]
    assert all(800 <= r.prompt <= 1000 and 80 <= r.output <= 100 for r in one)


def test_users_wait_for_the_front_end_between_requests() -> None:
    """One user's tokens per second are those of its latency, front end included."""
    found = mt.model("Llama-3.1-8B").serve(machine="dgx-h100", isl=64, osl=2, count=5)
    assert found.latency["mean"] > 25.0
    assert found.tokens_per_s == pytest.approx(2e3 / found.latency["mean"])


def test_gaps_grow_within_a_run() -> None:
    found = mt.model("Llama-3.1-8B").serve(machine="dgx-h100", isl=64, osl=4096, concurrency=64, count=64)
    assert found.itl["p50"] < found.itl["p90"] < found.itl["p99"]
    assert found.itl["mean"] == pytest.approx(found.tpot_ms, rel=1e-3)


def test_prefix_hits_are_not_computed_again() -> None:
    asked = {"machine": "dgx-h100", "isl": 8192, "osl": 8, "count": 4}
    none, half = (mt.model("Llama-3.1-8B").serve(**asked, prefix=share) for share in (0.0, 0.5))
    assert half.ttft_ms < none.ttft_ms
    assert half.tpot_ms == pytest.approx(none.tpot_ms)


def test_prefill_on_engines_of_its_own() -> None:
    model = mt.model("Llama-3.1-8B")
    asked = {"machine": "dgx-h100", "isl": 2048, "osl": 64, "concurrency": 32, "count": 96, "spread": 0.2}
    together, apart = model.serve(**asked, dp=4), model.serve(**asked, dp=2, prefill={"dp": 2})
    assert together.devices == apart.devices == 4
    assert len(apart.requests) == 96
    for r in apart.requests:
        assert r.arrival_us + 25e3 < r.first_us < r.end_us
    mean = sum(r.end_us - r.arrival_us for r in apart.requests) / 96 / 1e6
    assert 0.7 * 32 < 96 / apart.duration_s * mean <= 32 * 1.0001  # Little's law
    assert apart.tpot["p99"] < together.tpot["p99"]  # no prompt stops those who decode
    tokens = sum(s.steps * s.requests for s in apart.segments)
    assert tokens == sum(r.output - 1 for r in apart.requests)
    gaps = sum(s.steps * s.requests * (s.first_us + s.last_us) / 2 for s in apart.segments)
    assert gaps == pytest.approx(sum(r.end_us - r.first_us for r in apart.requests), rel=1e-6)
    with pytest.raises(ModelError, match="need 9 devices"):
        model.serve(**asked, dp=4, prefill={"dp": 5})


def test_one_request_apart_is_prefill_transfer_and_steps() -> None:
    from megatile.models.workers import transfer_us

    model = mt.model("Llama-3.1-8B")
    d = model.deployment("dgx-h100")
    found = model.serve(machine="dgx-h100", isl=1000, osl=3, count=1, prefill={"dp": 1})
    prefill = model.step([(1000, 0)], machine="dgx-h100").time_us
    steps = [model.step([(1, n)], machine="dgx-h100").time_us for n in (1000, 1001)]
    assert found.requests[0].first_us == pytest.approx(25e3 + prefill)
    assert found.requests[0].end_us == pytest.approx(
        25e3 + prefill + transfer_us(d, 1000, 1) + sum(steps), rel=1e-3
    )
    far = model.deployment("h100-cluster")
    assert transfer_us(far, 1000, 8) > 2 * transfer_us(far, 1000, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": "x"}, "seed must be an integer of at least 0, got 'x'"),
        ({"prefill": 2}, "prefill must name degrees, got 2"),
        ({"token_budget": float("inf")}, "token_budget must be a non-negative number"),
    ],
)
def test_options_of_wrong_types_are_one_sentence(options: dict, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        mt.model("Llama-3.1-8B").serve(machine="dgx-h100", isl=16, osl=4, **options)
