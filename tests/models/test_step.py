"""The closed sum of a step: rows add up, physics holds, bad batches are one sentence."""

from __future__ import annotations

import pytest

import megatile as mt
from megatile.models.step import step_us

LLAMA = {"machine": "dgx-h100", "tp": 8, "dtype": "fp8"}


def test_rows_add_up() -> None:
    step = mt.model("Llama-3.1-70B").step([(1, 4096)] * 64, **LLAMA)
    assert sum(row["time_us"] for row in step.rows()) == pytest.approx(step.time_us, rel=1e-9)
    assert sum(step.parts().values()) == pytest.approx(step.time_us, rel=1e-9)
    assert step_us(step.deployment, step.batch) == pytest.approx(step.time_us, rel=1e-6)
    assert set(step.origins) == {row["operator"] for row in step.rows()}
    assert "StepTime(Llama-3.1-70B on dgx-h100" in repr(step)
    assert "<table>" in step._repr_html_()


def test_flops_of_a_prefill_are_those_of_the_parameters() -> None:
    """Products of a long prefill do 2 × parameters × tokens operations, logits of the last token apart."""
    model = mt.model("Llama-3.1-8B")
    step = model.step([(4096, 0)], machine="dgx-h100")
    done = 0
    for operator, _ in step.timed:
        if operator.kernel == "gemm" and operator.name != "logits":
            extents = dict(operator.extents)
            done += operator.repeat * 2 * extents["m"] * extents["n"] * extents["k"]
    blocks = model.config.parameters() - 2 * model.config.vocab * model.config.hidden
    assert done == pytest.approx(2 * 4096 * blocks, rel=0.001)


def test_a_mixed_step_holds_both_kinds_of_attention() -> None:
    step = mt.model("Llama-3.1-8B").step([(1, 1000)] * 8 + [(512, 0), (256, 256)], machine="dgx-h100")
    names = [row["operator"] for row in step.rows()]
    assert names.count("decode attention") == 1
    assert names.count("prefill attention") == 2


def test_eager_waits_for_launches() -> None:
    model = mt.model("Llama-3.1-8B")
    graph, eager = (model.step([(1, 100)], machine="dgx-h100", tp=8, graph=g).time_us for g in (True, False))
    assert eager > graph


def test_error_bars_widen_where_nothing_was_measured() -> None:
    model, batch = mt.model("Llama-3.1-8B"), [(1, 1000)] * 8
    errors = [model.step(batch, machine=name, tp=2).error for name in ("dgx-h100", "b200-8", "mi300x-8")]
    assert 0.03 < errors[0] < errors[1] < errors[2] < 0.5


@pytest.mark.parametrize(
    ("machine", "asked", "batch", "said"),
    [
        ("hgx-a100", {"dtype": "fp8"}, [(1, 9)], ["'hgx-a100' multiplies no f8e4m3"]),
        ("dgx-h100", {}, [(9000, 0)], ["9000 new tokens in one step; token_budget 8192 makes 2"]),
        ("dgx-h100", {"dtype": "fp8"}, [(1, 9)], []),
    ],
)
def test_notes_say_what_an_engine_or_machine_does_not(machine, asked, batch, said) -> None:
    notes = mt.model("Llama-3.1-8B").step(batch, machine=machine, **asked).notes
    assert len(notes) == len(said)
    assert all(note.startswith(start) for note, start in zip(notes, said, strict=True))


def test_host_time_is_assumed_where_no_kernel_was_measured() -> None:
    kinds = [
        mt.model("Llama-3.1-8B").step([(1, 9)], machine=name).origins["host"].kind
        for name in ("dgx-h100", "mi300x-8")
    ]
    assert kinds == ["measured", "assumed"]


RATES = ("memory.hbm.bandwidth", "networks.nvlink.bandwidth", "engines.tensor_core.throughput")


@pytest.mark.parametrize("requests", [[(1, 4096)] * 64, [(2048, 0)], [(1, 4096)] * 32 + [(1024, 0)]])
@pytest.mark.parametrize("library", ["vllm", "trtllm"])
def test_what_if_obeys_physics(requests: list[tuple[int, int]], library: str) -> None:
    """Twice a rate saves at most half; twice all rates saves more than any of them; half a rate costs."""

    def time_us(**factors: str) -> float:
        machine = mt.machine("dgx-h100", **factors)
        return mt.model("Llama-3.1-8B").step(requests, machine=machine, tp=8, library=library).time_us

    base, one_by_one = time_us(), [time_us(**{rate: "2x"}) for rate in RATES]
    assert all(base / 2 <= time <= base for time in one_by_one)
    assert min(one_by_one) < base
    assert base / 2 <= time_us(**dict.fromkeys(RATES, "2x")) <= min(one_by_one)
    assert all(base <= time_us(**{rate: "0.5x"}) <= 2 * base for rate in RATES)
    assert time_us(**{RATES[0]: "1x"}) == base


def test_stages_on_other_nodes_pay_their_network() -> None:
    """Two stages of 8 devices are two nodes; of 4 devices they share one."""
    model, asked = mt.model("Llama-3.1-8B"), {"machine": "h100-cluster", "pp": 2}
    near, far = (model.step([(8192, 0)], **asked, tp=tp) for tp in (4, 8))
    sends = [next(t for t in step.timed if t.operator.part == "pipeline") for step in (near, far)]
    assert [t.operator.name for t in sends] == ["send to the next stage", "send to the next node"]
    assert sends[1].time_us > 3 * sends[0].time_us
    four = model.step([(8192, 0)], machine="h100-cluster", pp=4, tp=4)
    counts = {t.operator.name: t.operator.repeat for t in four.timed if t.operator.part == "pipeline"}
    assert counts == {"send to the next stage": 2, "send to the next node": 1}
