"""Doors to other tools: SGLang's simulator, aiconfigurator's columns, measured Kineto traces."""

from __future__ import annotations

import csv
import gzip
import json
import sys
from abc import ABC, abstractmethod
from types import ModuleType, SimpleNamespace

import pytest

import megatile as mt
from megatile.models.aiconfigurator import COLUMNS
from megatile.models.measured_trace import kind_of
from megatile.models.predictor import read_batches
from megatile.models.schemes import ModelError

LLAMA = {"machine": "dgx-h100", "tp": 2}


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


def test_columns_of_aiconfigurator(tmp_path) -> None:
    model = mt.model("Llama-3.1-8B")
    row = model.serve(isl=256, osl=32, concurrency=4, **LLAMA).aiconfigurator_row()
    assert tuple(row) == COLUMNS
    assert (row["isl"], row["osl"], row["concurrency"], row["num_total_gpus"]) == (256, 32, 4, 2)
    assert row["tokens/s/gpu"] == pytest.approx(row["tokens/s"] / 2)
    found = model.search(machine="dgx-h100", isl=256, osl=32, concurrencies=(4,))
    rows = list(csv.DictReader(found.to_aiconfigurator(tmp_path / "rows.csv").read_text().splitlines()))
    assert [float(r["tpot"]) for r in rows] == pytest.approx([r["tpot_ms"] for r in found.rows()])


def test_a_measured_trace_beside_the_predicted_step(tmp_path) -> None:
    step = mt.model("Llama-3.1-8B").step([(1, 512)] * 8, **LLAMA)
    names = {
        "gemm": "nvjet_tst_64x8", "attention": "flash::FlashAttnFwdSm90", "elementwise": "rms_norm_kernel",
        "all_reduce": "void vllm::cross_device_reduce_1stage", "all_gather": "ncclDevKernel_AllGather_RING",
    }  # fmt: skip
    now, events = 5.0, [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 0, "dur": 9}]
    for _ in range(2):
        for o, time in step.timed:
            events.append({"ph": "X", "cat": "kernel", "name": names[o.kernel], "ts": now, "dur": 2 * time})
            now += 2 * time
    file = tmp_path / "kineto.json.gz"
    file.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
    both = step.beside(file, steps=2)
    for row in both.rows()[:-1]:
        assert row["measured_us"] == pytest.approx(2 * row["predicted_us"])
    assert "0.50" in str(both)
    events = json.loads(both.write(tmp_path / "both.json").read_text())["traceEvents"]
    predicted = [e for e in events if e["ph"] == "X" and e["pid"] == 1]
    assert predicted[-1]["ts"] + predicted[-1]["dur"] == pytest.approx(step.time_us)
    file.write_bytes(gzip.compress(b'{"traceEvents": [{"ph": "X"}, 7]}'))
    with pytest.raises(ModelError, match="holds no kernels of a device"):
        step.beside(file)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("sm90_xmma_gemm_bf16bf16", "gemm"), ("fused_moe_kernel", "moe"), ("fmhaSm90", "attention"),
        ("ncclDevKernel_ReduceScatter", "reduce_scatter"), ("vectorized_elementwise_kernel", "elementwise"),
    ],
)  # fmt: skip
def test_kernels_are_known_by_their_names(name: str, kind: str) -> None:
    assert kind_of(name) == kind
