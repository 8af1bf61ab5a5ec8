"""``models/workers.py``: engines that serve a load together."""

from __future__ import annotations

import pytest

import megatile as mt
from megatile.models.schemes import ModelError


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
