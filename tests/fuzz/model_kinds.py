"""Kinds of fuzzed input that describe models and their load: config.json, traces of requests, recorded steps."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

from tests.fuzz import mutate
from tests.fuzz.kinds import ROOT, folder, kind, known_machine

import megatile as mt
from megatile.models.predictor import read_batches

CONFIGS = ROOT / "src" / "megatile" / "models" / "configs"
REQUESTS = [
    '{"timestamp": 0.0, "prompt_len": 128, "output_len": 8}\n{"timestamp": 0.5, "prompt_len": 64, "output_len": 4}\n',
    '{"timestamp": 1, "prompt_len": 2048, "output_len": 2, "cached_len": 1024}\n',
]
BATCHES = [
    "[[128, 0], [1, 4096]]\n[[1, 17]]\n",
    '{"request_infos": [{"extend_input_len": 5, "prefix_indices_len": 3}], "iter_latency": 0.01}\n',
]


@cache
def config_texts() -> list[str]:
    return [path.read_text(encoding="utf-8") for path in sorted(CONFIGS.glob("*.json"))]


def _config(rng: random.Random, number: int) -> str:
    change = mutate.text if number % 3 == 0 else mutate.json_text
    return change(rng, rng.choice(config_texts()), config_texts())


@kind("model_config", _config)
def run_config(text: str) -> None:
    file = folder() / "config.json"
    file.write_text(text, encoding="utf-8", errors="surrogatepass")
    model = mt.model(str(file))
    hda = known_machine("dgx-h100")
    memory = model.memory(machine=hda, tp=8, requests=4, context=1024)
    assert memory.total > 0
    step = model.step([(1, 1024)] * 4, machine=hda, tp=8)
    assert step.time_us > 0
    assert step.rows()
    if len(text) % 4 == 0:  # laying out its table takes longer than all the rest
        assert str(step)


def _lines(seeds: list[str]) -> Any:
    def make(rng: random.Random, _: int) -> str:
        return mutate.text(rng, rng.choice(seeds), seeds)

    return make


@kind("requests", _lines(REQUESTS))
def run_requests(text: str) -> None:
    file = folder() / "requests.jsonl"
    file.write_text(text, encoding="utf-8", errors="surrogatepass")
    served = mt.model("Llama-3.2-1B").serve(machine=known_machine("dgx-h100"), requests=str(file))
    assert served.ttft["mean"] > 0
    assert str(served)


@kind("recorded_steps", _lines(BATCHES))
def run_batches(text: str) -> None:
    file = folder() / "steps.jsonl"
    file.write_text(text, encoding="utf-8", errors="surrogatepass")
    batches = read_batches(file)
    predictor = mt.model("Llama-3.2-1B").predictor(machine=known_machine("dgx-h100"))
    assert all(seconds > 0 for seconds in predictor.replay_table(batches).values())
