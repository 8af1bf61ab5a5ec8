"""The search finds what simulating every candidate finds, and goes on where it was stopped."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import pytest

import megatile as mt
from megatile.models import search as module
from megatile.models.schemes import ModelError

ASKED = {"machine": "dgx-h100", "isl": 256, "osl": 32, "concurrencies": (1, 4, 16), "tpot_ms": 12.0}


def test_the_front_is_that_of_all_candidates(monkeypatch) -> None:
    found = mt.model("Llama-3.1-8B").search(**ASKED)
    monkeypatch.setattr(module, "_bound", lambda job, limits: _unbounded(job))
    everything = mt.model("Llama-3.1-8B").search(**ASKED)
    assert len(everything.rows()) >= len(found.rows()) > 3
    assert found.pareto() == everything.pareto()
    assert found.best == found.pareto()[0]
    speeds = [row["tokens_per_s_user"] for row in found.pareto()]
    assert speeds == sorted(speeds)
    assert all(row["tpot_ms"] <= 12.0 for row in found.rows())
    assert "Pareto front" in str(found)


def _unbounded(job: module._Job) -> tuple[float, float] | str:
    try:
        d = job.deployment()
    except ModelError:
        return "not possible"
    return (0.0, float("inf")) if job.candidate.concurrency >= d.pp else "fewer users"


def test_a_row_is_what_serve_says() -> None:
    asked = {"isl": 128, "osl": 32, "spread": 0.2}
    found = mt.model("Llama-3.1-8B").search(machine="dgx-h100", concurrencies=(8,), **asked)
    best = found.best
    division = {name: best[name] for name in module.DEGREES}
    served = mt.model("Llama-3.1-8B").serve(machine="dgx-h100", concurrency=8, **asked, **division)
    assert best["ttft_ms"] == served.ttft["p50"]
    assert best["tpot_ms"] == served.tpot_ms
    assert best["tokens_per_s_device"] == served.tokens_per_s_device


def test_what_was_left_out_is_counted() -> None:
    found = mt.model("Llama-3.1-8B").search(**{**ASKED, "tpot_ms": None, "concurrencies": (1, 2, 4, 8)})
    beaten = sum(row["verdict"] == module.BEATEN for row in found.found)
    assert beaten > 0
    assert f"; {beaten} left out" in repr(found)


def test_bounds_hold() -> None:
    found = mt.model("gpt-oss-20b").search(machine="dgx-h100", isl=64, osl=16, concurrencies=(8,))
    for row in found.rows():
        one = module.Candidate(*(row[name] for name in module.Candidate._fields))
        job = module._Job(mt.model("gpt-oss-20b").config, mt.machine("dgx-h100"), 64, 16, one, ())
        tpot, rate = module._bound(job, module._Limits(float("inf"), float("inf")))
        assert tpot <= row["tpot_ms"] * 1.0001
        assert rate >= row["tokens_per_s_device"] * 0.9999


def test_executors_and_stores(tmp_path, monkeypatch) -> None:
    store = tmp_path / "found.jsonl"
    plain = mt.model("Llama-3.1-8B").search(**ASKED)
    with ThreadPoolExecutor(2) as executor:
        assert mt.model("Llama-3.1-8B").search(**ASKED, executor=executor, store=store).found == plain.found
    store.write_text(store.read_text() + '["cut of')
    monkeypatch.setattr(module, "_simulate", lambda job: pytest.fail("simulated again"))
    assert mt.model("Llama-3.1-8B").search(**ASKED, store=store).found == plain.found
    assert plain.to_csv(tmp_path / "rows.csv").read_text().count("\n") == len(plain.found) + 1


def test_processes() -> None:
    small = {**ASKED, "concurrencies": (1,)}
    with ProcessPoolExecutor(1) as executor:
        found = mt.model("Llama-3.1-8B").search(**small, executor=executor)
    assert found.found == mt.model("Llama-3.1-8B").search(**small).found


def test_limits_that_nothing_keeps() -> None:
    found = mt.model("Llama-3.1-70B").search(machine="dgx-h100", tpot_ms=0.1, concurrencies=(1,))
    assert found.best is None
    assert "no division meets the limits: " in str(found)
    assert "TPOT above the limit (bound)" in str(found)
    assert "(try: larger limits" in str(found)
    with pytest.raises(ModelError, match="ttft_ms must be positive"):
        mt.model("Llama-3.1-70B").search(machine="dgx-h100", ttft_ms=-1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ttft": "500ms"}, "no argument 'ttft'.*did you mean ttft_ms=500"),
        ({"ttft_ms": "500ms"}, "got '500ms'.*milliseconds as a number: ttft_ms=500"),
        ({"tp": 2}, "no argument 'tp'.*tries its degrees"),
        ({"max_seqs": 2}, "has no setting 'max_seqs'"),
        ({"library": "vlm"}, "'vlm'"),
        ({"library": ["vllm"]}, "library .*vllm.* is unknown"),
        ({"concurrencies": "8,16"}, "concurrencies must be a list, got '8,16'"),
        ({"concurrencies": (1, 0)}, "concurrency must be an integer of at least 1, got 0"),
        ({"isl": "1K"}, "isl must be an integer of at least 1, got '1K'"),
        ({"spread": "x"}, "spread must be in"),
        ({"executor": 4}, "4 is no executor"),
        ({"store": 4}, "store must be a file"),
        ({"graph": "no"}, "graph must be True or False, got 'no'"),
    ],
)
def test_options_that_are_wrong_for_all_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        mt.model("Llama-3.1-8B").search(machine="dgx-h100", **{"concurrencies": (1,), **options})


def test_a_plot_of_the_front(tmp_path) -> None:
    found = mt.model("Llama-3.1-8B").search(machine="dgx-h100", isl=256, osl=64, concurrencies=(4,))
    text = found.plot(tmp_path / "front.svg").read_text(encoding="utf-8")
    assert "<svg" in text
    none = mt.model("Llama-3.1-8B").search(machine="dgx-h100", tpot_ms=1e-6, concurrencies=(4,))
    with pytest.raises(ModelError, match="nothing to draw"):
        none.plot(tmp_path / "none.svg")


def test_machines_of_one_name_do_not_share_a_store(tmp_path) -> None:
    store = tmp_path / "store.jsonl"
    asked = {"isl": 256, "osl": 64, "concurrencies": (4,), "store": store}
    slow = mt.model("Llama-3.1-8B").search(machine="dgx-h100", **asked)
    changed = mt.machine("dgx-h100", **{"memory.hbm.bandwidth": "2x"})
    assert mt.model("Llama-3.1-8B").search(machine=changed, **asked).best != slow.best
