"""The Plan of a step gives the closed sum's time, and what-if answers that obey physics."""

from __future__ import annotations

import pytest

import megatile as mt
from megatile.models.step import launch_us

CASES = [
    ("Llama-3.1-8B", "dgx-h100", {"tp": 2}),
    ("gpt-oss-20b", "dgx-h100", {"dtype": "fp4"}),
    ("DeepSeek-V2-Lite", "h200-8", {"tp": 2, "attention_dp": 2, "ep": 4}),
    ("Llama-3.1-8B", "mi300x-8", {"tp": 4}),
    ("Llama-3.1-8B", "h100-cluster", {"tp": 4, "pp": 8}),
    ("Llama-3.1-8B", "dgx-h100", {"pp": 2, "library": "torch", "graph": True}),
    ("DeepSeek-V2-Lite", "b200-8", {"tp": 2, "pp": 3, "library": "sglang"}),
]


@pytest.mark.parametrize(("name", "machine", "division"), CASES)
@pytest.mark.parametrize(
    "batch", [[(1, 1000)] * 16, [(512, 0), (100, 400), (1, 30)]], ids=["decode", "mixed"]
)
def test_the_plan_takes_the_time_of_the_closed_sum(name, machine, division, batch) -> None:
    step = mt.model(name).step(batch, machine=machine, **division)
    result = mt.simulate(step.plan, machine=machine)
    assert abs(result.time_ps - step.time_ps) <= 2
    assert mt.simulate(mt.Plan.from_text(str(step.plan)), machine=machine).time_ps == result.time_ps
    assert {e.operation for e in result.trace} >= {"input norm", "host"}


def test_a_message_longer_than_its_kernel_is_bounded() -> None:
    """The least message of a library without host time: the Plan may take the install of a queue longer."""
    step = mt.model("Llama-3.1-8B").step([(1, 9)], machine="dgx-h100", pp=4, library="torch", graph=True)
    taken = mt.simulate(step.plan, machine="dgx-h100").time_us
    assert step.time_us <= taken < step.time_us + launch_us(mt.machine("dgx-h100"))


def test_faster_links_help_and_never_by_more_than_communication_takes() -> None:
    batch, asked = [(4096, 0)], {"tp": 8}
    slow, fast = (
        mt.model("Llama-3.1-70B").step(batch, machine=mt.machine("dgx-h100", **changes), **asked)
        for changes in ({}, {"networks.nvlink.bandwidth": "900 GB/s"})
    )
    assert slow.time_us - slow.parts()["communication"] < fast.time_us < slow.time_us
    plan = mt.simulate(fast.plan, machine=fast.deployment.hda)
    assert abs(plan.time_ps - fast.time_ps) <= 2


def test_the_critical_path_is_the_whole_step() -> None:
    step = mt.model("Llama-3.1-8B").step([(1, 1000)] * 16, machine="dgx-h100", tp=2)
    result = mt.simulate(step.plan, machine="dgx-h100")
    assert result.origins["qkv projection"] == step.origins["qkv projection"]
    assert "down projection" in result.summary()
