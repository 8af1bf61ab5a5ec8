"""The scheduler loop: by hand on an engine whose steps take simple times, and laws of queues."""

from __future__ import annotations

from itertools import pairwise

import pytest

import megatile as mt
from megatile.models.engines import ENGINES


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
