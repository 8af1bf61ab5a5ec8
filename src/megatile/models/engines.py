"""Inference engines by name: the settings that decide how they schedule, with each engine's defaults.

Defaults (``hda/libraries``) are those of the engines' own sources for devices with 70 GB or more; host times
are fitted to open serving rows (``benchmarks/fidelity_models.py``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any

from megatile.core.errors import did_you_mean
from megatile.hda.catalog import library
from megatile.models.schemes import ModelError


@dataclass(frozen=True)
class ServingEngine:
    """How an inference engine schedules, and what its host adds to a step."""

    name: str
    max_num_seqs: int
    """Requests that run at a time, at most."""
    token_budget: int
    """New tokens of one step, at most."""
    memory_share: float
    """The share of the device's memory that weights, cache and activations may take."""
    block_tokens: int
    """Tokens in a block of the KV cache."""
    chunked: bool
    """Whether a prompt may be divided over steps."""
    mixed: bool
    """Whether prompts and decoding requests share a step; otherwise prompts go first, alone."""
    graph_batch: int
    """The largest decode batch that a captured graph serves; 0: graphs are off unless asked for."""
    host_us: float
    """Host time of a step that the device waits for: scheduling, input preparation, sampled tokens."""
    host_request_us: float
    """The same for each request of the step."""
    launch_us: float
    """Host time to launch one kernel of a step that no graph serves; 0: a graph serves all steps."""
    eager_us: float
    """The same without compilation and graphs: operators of torch one by one."""
    workspace_gb: float
    """Memory beside weights, cache and activations: driver context, communication buffers, graphs."""
    static_scales: bool = False
    """Whether fp8 checkpoints have static scales (ModelOpt): activations are quantised by the kernel before a
    product. Beside 8-bit weights, whatever their scales, the KV cache is then fp8 by default."""
    frontend_ms: float = 0.0
    """Time to the first token beside steps: the server's receipt, tokenising, the queue, the first answer."""

    def words(self) -> str:
        """Return the settings that decide, as a line of output."""
        chunked = "on" if self.chunked else "off"
        return (
            f"engine {self.name}: max_num_seqs {self.max_num_seqs}, token_budget {self.token_budget}, "
            f"memory_share {self.memory_share}, block_tokens {self.block_tokens}, chunked prefill {chunked}, "
            "no speculative decoding"
        )

    def with_settings(self, **settings: Any) -> ServingEngine:
        """Return the engine with other settings; an unknown one is an error."""
        own = {f.name: f.type for f in fields(self)}
        given = {name: value for name, value in settings.items() if value is not None}
        for name, value in given.items():
            if name not in own or name == "name":
                advice = did_you_mean(name, own, what="settings")
                raise ModelError(f"engine '{self.name}' has no setting '{name}'", advice=advice)
            if (
                isinstance(value, bool) != (own[name] == "bool")
                or not isinstance(value, (int, float))
                or not 0 <= value < math.inf
            ):
                raise ModelError(f"{name} must be a non-negative number, got {value!r}")
        made = replace(self, **given)
        if not 0 < made.memory_share <= 1:
            raise ModelError(f"memory_share must be in (0, 1], got {made.memory_share}")
        if made.max_num_seqs < 1 or made.token_budget < 1 or made.block_tokens < 1:
            raise ModelError("max_num_seqs, token_budget and block_tokens must be at least 1")
        return made


ENGINES = {
    name: ServingEngine(name, **library(name)["serving"]) for name in ("vllm", "trtllm", "sglang", "torch")
}
"""By name; their settings and where they come from: ``hda/libraries``."""


def engine(name: str | ServingEngine, **settings: Any) -> ServingEngine:
    """Return the engine of a name, with settings in place of its defaults."""
    if isinstance(name, ServingEngine):
        return name.with_settings(**settings)
    if not isinstance(name, str) or name not in ENGINES:
        raise ModelError(
            f"library '{name}' is unknown", advice=did_you_mean(str(name), ENGINES, what="libraries")
        )
    return ENGINES[name].with_settings(**settings)
