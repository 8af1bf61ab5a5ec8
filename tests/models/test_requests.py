"""``models/requests.py``: requests of a load."""

from __future__ import annotations

import pytest

import megatile as mt
from megatile.models.requests import make_requests, read_requests
from megatile.models.schemes import ModelError


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
