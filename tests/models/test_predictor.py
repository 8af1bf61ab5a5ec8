"""``models/predictor.py``: the door for SGLang's simulator."""

from __future__ import annotations

import json
import sys
from abc import ABC, abstractmethod
from types import ModuleType, SimpleNamespace

import pytest
from tests.models.shared import LLAMA

import megatile as mt
from megatile.models.predictor import read_batches
from megatile.models.schemes import ModelError


def batch(*pairs: tuple[int, int]) -> SimpleNamespace:
    """As SGLang's ``ScheduleBatch``."""
    return SimpleNamespace(reqs=[SimpleNamespace(extend_length=n, past_kv_length=c) for n, c in pairs])


def test_the_predictor_takes_the_time_of_a_step() -> None:
    model = mt.model("Llama-3.1-8B")
    predictor = model.predictor(**LLAMA)
    for pairs in ([(1, 100)] * 4, [(512, 0)], [(1, 10), (64, 128)]):
        wanted = model.step(pairs, library="sglang", **LLAMA).time_us / 1e6
        assert predictor.predict_infer_time(batch(*pairs)) == pytest.approx(wanted)
    assert predictor.get_metrics()["steps"] == 3
    predictor.reset_metrics()
    assert predictor.get_metrics() == {"steps": 0, "predicted_seconds": 0.0}
    assert predictor.predict_infer_time(batch()) == 0.0
    assert predictor.predict_infer_time(batch((0, 1))) == -1.0


def test_the_predictor_counts_as_one_of_sglang(monkeypatch) -> None:
    class Base(ABC):
        @abstractmethod
        def predict_infer_time(self, batch: object) -> float: ...

    names = ("sglang_simulator", "sglang_simulator.time_predictor", "sglang_simulator.time_predictor.base")
    for name in names:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules[names[-1]].InferTimePredictor = Base
    assert isinstance(mt.model("Llama-3.1-8B").predictor(**LLAMA), Base)


def test_replay_tables_and_recorded_steps(tmp_path) -> None:
    predictor = mt.model("Llama-3.1-8B").predictor(**LLAMA)
    one, two = predictor.seconds([(1, 9), (1, 5)]), predictor.seconds([(64, 0)])
    file = tmp_path / "schedule_batch.jsonl"
    infos = [{"extend_input_len": 1, "prefix_indices_len": n} for n in (9, 5)]
    file.write_text(json.dumps({"request_infos": infos, "iter_latency": 2 * one}) + "\n[[64, 0]]\n")
    steps = read_batches(file)
    table = json.loads(predictor.write_replay_table(tmp_path / "table.json", steps).read_text())
    assert table == {"[[1, 5], [1, 9]]": one, "[[64, 0]]": two}
    (row,) = predictor.compare(steps).rows()
    assert row["median_error"] == pytest.approx(0.5)
    timed = '{"request_infos": [], "iter_latency": -1}'
    for wrong in (
        "{}",
        "7",
        "[[1]]",
        '{"request_infos": [{}]}',
        "[[Infinity, 0]]",
        "[[1.5, 0]]",
        "[" * 9999,
        timed,
    ):
        file.write_text(wrong)
        with pytest.raises(ModelError, match="is not a batch"):
            read_batches(file)
