"""Memory of a device, computed by hand, and what is said when a model does not fit."""

from __future__ import annotations

from typing import Any

import pytest

import megatile as mt
from megatile.models.memory import memory, smallest_change
from megatile.models.schemes import ModelError


def test_llama_8b_on_one_device_by_hand() -> None:
    found = mt.model("Llama-3.1-8B").memory(machine="dgx-h100", requests=10, context=1000)
    assert found.weights == pytest.approx(8.03e9 * 2, rel=0.001)
    assert found.cache == 10 * 1000 * 32 * 2 * 8 * 128 * 2
    assert found.limit == int(0.9 * 80 * 2**30)
    assert found.total == found.weights + found.cache + found.activations + found.workspace
    assert found.fits


def test_tensor_parallel_replicates_kv_heads() -> None:
    llama = mt.model("Llama-3.1-70B")
    caches = [llama.memory(machine="h100-cluster", tp=tp, requests=1, context=100).cache for tp in (4, 8, 16)]
    assert caches[0] == 2 * caches[1] == 2 * caches[2]


def test_latent_attention_caches_one_vector() -> None:
    found = mt.model("DeepSeek-V3").memory(machine="h200-8", tp=8, requests=1, context=1000)
    assert found.cache == 1000 * 61 * 576 * 2


def test_windows_bound_the_cache() -> None:
    short, long = (
        mt.model("gpt-oss-120b").memory(machine="dgx-h100", requests=1, context=n).cache for n in (128, 1128)
    )
    assert long - short == 1000 * 18 * 2 * 8 * 64 * 2


def test_parts_do_not_grow_with_devices() -> None:
    llama = mt.model("Llama-3.1-70B")
    weights = [llama.memory(machine="dgx-h100", tp=tp).weights for tp in (1, 2, 4, 8)]
    assert weights == sorted(weights, reverse=True)
    assert llama.memory(machine="dgx-h100", tp=4, pp=2).weights < weights[2]


def test_what_does_not_fit_says_the_smallest_change() -> None:
    llama = mt.model("Llama-3.1-70B")
    with pytest.raises(ModelError) as caught:
        llama.step([(1, 1000)], machine="dgx-h100", tp=1)
    assert "weights 131.4 GiB" in str(caught.value)
    assert "(try: tp 2)" in str(caught.value)
    llama.step([(1, 1000)], machine="dgx-h100", tp=2)
    with pytest.raises(ModelError, match=r"at most \d+ requests") as caught:
        llama.step([(1, 100_000)] * 64, machine="dgx-h100", tp=8)
    few = int(str(caught.value).partition("at most ")[2].split()[0])
    llama.step([(1, 100_000)] * few, machine="dgx-h100", tp=8)
    with pytest.raises(ModelError):
        llama.step([(1, 100_000)] * (few + 1), machine="dgx-h100", tp=8)


def test_tensorrt_llm_caches_in_8_bits_beside_8_bit_weights() -> None:
    caches = [
        mt.model("Qwen3-32B").memory(machine="dgx-h100", library=name, dtype=kind, context=1000).cache
        for name, kind in (("vllm", "fp8"), ("trtllm", "fp8"), ("trtllm", "bf16"))
    ]
    assert caches[0] == 2 * caches[1] == caches[2]


@pytest.mark.parametrize(
    ("name", "division", "requests", "context"),
    [
        ("Llama-3.1-70B", {}, 1, 4096), ("Llama-3.1-70B", {"tp": 2}, 64, 32000),
        ("Llama-3.1-70B", {"tp": 2}, 640, 32000), ("Llama-3.1-405B", {"tp": 4}, 1, 1024),
        ("DeepSeek-R1", {"tp": 8}, 1, 1024), ("Llama-3.1-8B", {}, 4000, 8000),
    ],
)  # fmt: skip
def test_the_advice_fits_when_it_is_taken(
    name: str, division: dict[str, int], requests: int, context: int
) -> None:
    model = mt.model(name)
    d = model.deployment("dgx-h100", **division)
    assert not memory(d, requests=requests, context=context).fits
    for way in smallest_change(d, requests, context).split(", or "):
        changes, users = dict[str, Any](division), requests
        for words in way.split(" and "):
            if words.startswith("at most"):
                users = int(words.split()[2])
            else:
                key, value = words.split()
                changes[key.replace("-", "_")] = int(value) if value.isdigit() else value
        assert memory(model.deployment("dgx-h100", **changes), requests=users, context=context).fits


def test_a_prompt_beyond_the_token_budget_runs_in_parts_and_fits() -> None:
    """48 prompts of 8192 tokens at once need 48 GiB of activations in torch; vLLM divides them."""
    model = mt.model("Llama-3.1-8B")
    step = model.step([(8192, 0)] * 48, machine="dgx-h100")
    assert step.memory.fits
    with pytest.raises(ModelError):
        model.step([(8192, 0)] * 48, machine="dgx-h100", library="torch")
