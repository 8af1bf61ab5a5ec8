"""Training steps: schedules by hand, the Plan beside the closed form, published steps."""

from __future__ import annotations

import pytest

import megatile as mt
from megatile.models.config import read_config


@pytest.mark.parametrize(("schedule", "interleave"), [("1f1b", 1), ("interleaved", 2), ("zero_bubble", 1)])
def test_the_plan_of_a_pipeline_takes_the_same_time(schedule: str, interleave: int) -> None:
    step = mt.model("Llama-3.1-8B").train(
        machine="h100-cluster", tp=8, pp=4, seq=4096, global_batch=8, schedule=schedule,
        interleave=interleave, dtype="bf16",
    )  # fmt: skip
    taken = mt.simulate(step.plan, machine="h100-cluster").time_us
    assert taken == pytest.approx(step.pipeline_us, rel=0.03)
    assert sum(row["time_us"] for row in step.rows()) == pytest.approx(step.time_us)
    assert "MFU" in repr(step)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"interleave": "2"}, "interleave must be an integer of at least 1, got '2'"),
        ({"micro_batch": None}, "micro_batch must be an integer"),
        ({"fsdp": "no"}, "fsdp must be True or False, got 'no'"),
    ],
)
def test_options_of_wrong_types_are_one_sentence(options: dict, message: str) -> None:
    with pytest.raises(mt.MegatileError, match=message):
        mt.model("Llama-3.1-8B").train(machine="dgx-h100", seq=128, **options)


def gpt(hidden: int, layers: int, heads: int) -> dict[str, object]:
    return {"architectures": ["GPT2LMHeadModel"], "n_embd": hidden, "n_layer": layers, "n_head": heads,
            "vocab_size": 51200, "tie_word_embeddings": True}  # fmt: skip


@pytest.mark.parametrize(
    ("nodes", "shape", "asked", "seconds"),
    [
        (1, (6144, 48, 64), {"tp": 8, "micro_batch": 4, "global_batch": 4, "recompute": "full"}, 1.42),
        (1, (6144, 48, 64), {"tp": 8, "micro_batch": 4, "global_batch": 4}, 1.1),
        (8, (12288, 96, 96), {"tp": 8, "pp": 8, "global_batch": 64, "interleave": 3}, 13.75),
        (64, (25600, 128, 160), {"tp": 8, "pp": 64, "global_batch": 512}, 71.49),
    ],
)
def test_megatron_steps_as_published(nodes: int, shape, asked, seconds: float) -> None:
    """arXiv:2205.05198, Table 5: A100, sequence parallelism, attention that is not one kernel."""
    model = mt.model(gpt(*shape))
    found = model.train(
        machine=mt.machine("a100-cluster", nodes=nodes), seq=2048, attention="unfused", **asked
    )
    assert found.time_s == pytest.approx(seconds, rel=0.12)


def test_recompute_costs_time_and_saves_memory() -> None:
    steps = [
        mt.model("Llama-3.1-8B").train(machine="dgx-h100", dp=8, fsdp=True, recompute=kind)
        for kind in ("none", "alternate", "full")
    ]
    assert steps[0].time_us < steps[1].time_us < steps[2].time_us
    assert steps[0].memory_bytes > steps[1].memory_bytes > steps[2].memory_bytes
    assert 0.2 < steps[2].mfu < steps[0].mfu < 0.9


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"seq": 0}, "seq must be an integer of at least 1"),
        ({"recompute": "some"}, "recompute 'some' is unknown"),
        ({"attention": "slow"}, "attention 'slow' is unknown"),
        ({"schedule": "gpipe"}, "'gpipe' is not among the pipeline schedules"),
        ({"dp": 2, "global_batch": 3}, "does not divide global_batch 3"),
        ({"pp": 4, "interleave": 2, "global_batch": 6}, "multiples of 4 stages"),
        ({"pp": 2, "interleave": 20}, "are fewer than pp 2 × interleave 20"),
        ({"interleave": 2, "schedule": "1f1b"}, "1f1b has one chunk"),
    ],
)
def test_bad_recipes_are_one_sentence(wrong, said) -> None:
    with pytest.raises(mt.MegatileError) as caught:
        mt.model("Llama-3.1-8B").train(machine="dgx-h100", **wrong)
    assert said in str(caught.value)


def test_configs_without_a_gate_have_two_matrices() -> None:
    assert read_config(gpt(6144, 48, 64)).parameters() == pytest.approx(22e9, rel=0.02)


def test_memory_that_may_not_fit_is_reported() -> None:
    step = mt.model("Llama-3.1-405B").train(machine="dgx-h100", tp=1)
    assert not step.fits
    assert "may not fit (try: more tp or pp" in str(step)
    assert mt.model("Llama-3.2-1B").train(machine="dgx-h100").fits


@pytest.mark.parametrize("machine", ["cerebras-wse2", "ahbm"])
def test_a_machine_without_device_memory_is_refused(machine: str) -> None:
    with pytest.raises(mt.MegatileError, match="describes no device memory"):
        mt.model("Llama-3.2-1B").train(machine=machine)
