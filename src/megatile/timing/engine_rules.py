"""How long kernels of inference engines and of DeepEP take: rules beside that of NCCL and RCCL.

Engines reduce few bytes by kernels of their own that read the other devices' buffers: at once (``one_shot``),
each its part first (``two_shot``), or the switch sums. With t = step + (n - 1) peer among n ranks,

    one shot      t + (n - 1) S/link
    two shots     2 t + 2 (n - 1) S/(n link)
    in network    2 t + (n + 1) S/(n link)

and S/copy before, into a buffer that others can read, unless it is registered (captured graphs). DeepEP sends
tokens of b bytes among experts by ``channels`` compute units, each one at a time, or in low-latency mode by
all of them:

    dispatch      start + S/min(channels · b/(step + b/link), wires)
    low latency   start + experts · peer + max((n - 1) S/(n link), S/b · n/experts · step)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from megatile.core.cached import cached_in_owner
from megatile.hda import HDA
from megatile.hda.model import ProtocolFigures
from megatile.timing.collective_rule import Rule, Way, fabric
from megatile.timing.machine_timing import TimingError

LOW_LATENCY = "_low_latency"
KIB, MIB = 1 << 10, 1 << 20
EVERY = 1 << 62


class Reach(NamedTuple):
    """Up to how many bytes an engine's all-reduce takes one shot, two shots, and the switch's reduction."""

    one_shot: int
    two_shot: int
    in_network: int = 0


_VLLM = {2: EVERY, 4: 512 * KIB, 6: 256 * KIB, 8: 256 * KIB}
"""vLLM, custom_all_reduce.cuh: one stage below so many bytes where every pair of devices has a link."""
ENGINE_REACH: dict[tuple[str, str], dict[int, Reach]] = {
    ("vllm", "hopper"): {
        2: Reach(EVERY, 64 * MIB), 4: Reach(_VLLM[4], 32 * MIB),
        6: Reach(_VLLM[6], 512 * KIB, 64 * MIB), 8: Reach(_VLLM[8], 256 * KIB, 64 * MIB),
    },
    ("vllm", "blackwell"): {
        2: Reach(EVERY, 2 * MIB, 8 * MIB), 4: Reach(_VLLM[4], 2 * MIB, 32 * MIB),
        6: Reach(_VLLM[6], 1 * MIB, 128 * MIB), 8: Reach(_VLLM[8], 1 * MIB, 128 * MIB),
    },
    ("vllm", ""): {n: Reach(one, 8 * MIB) for n, one in _VLLM.items()},
    ("sglang", ""): {n: Reach(one, 8 * MIB) for n, one in _VLLM.items()},
    ("trtllm", ""): {2: Reach(16 * MIB, 16 * MIB), 4: Reach(MIB, MIB), 8: Reach(512 * KIB, 512 * KIB)},
}  # fmt: skip
"""By engine and generation, ranks → sizes. vLLM: all_reduce_utils.py, CUSTOM_ALL_REDUCE_MAX_SIZES and
SYMM_MEM_ALL_REDUCE_MAX_SIZES, 8 MiB elsewhere; SGLang: custom_all_reduce.py, 8 MiB; TensorRT-LLM:
customAllReduceKernels, one shot below these sizes, NCCL above."""
ENGINE_SECTIONS = {"vllm": "custom", "sglang": "custom", "trtllm": "trtllm"}
"""The transports of machine files that engines reduce by; SGLang's kernels count as vLLM's."""
OFFERED = {
    "custom": ("one_shot", "two_shot", "in_network"),
    "trtllm": ("one_shot", "two_shot"),
    "deepep": ("dispatch", "combine", "dispatch_low_latency", "combine_low_latency"),
}
"""Algorithms of engines' all-reduces, and of DeepEP's all-to-alls."""


@cached_in_owner
def engine_way(hda: HDA, engine: str, ranks: int, nbytes: float) -> Way | None:
    """Return what an engine's own all-reduce takes for a size; None where the engine calls NCCL."""
    around = fabric(hda, "device")
    if ranks > around.inside:
        return None
    figures = hda.transports.get(hda.scale("device").name, {}).get("nccl")
    generation = str(figures.generation) if figures is not None else ""
    tables = (ENGINE_REACH.get((engine, g), {}) for g in (generation, ""))
    reach = next((table for table in tables if table), {}).get(ranks)
    if reach is None or nbytes > max(reach.two_shot, reach.in_network if around.switched else 0):
        return None
    if nbytes > reach.two_shot:
        return Way("in_network", "")
    return Way("one_shot" if nbytes < reach.one_shot else "two_shot", "")


def token_rate(figures: ProtocolFigures, wire: float, token: Any, units: Any) -> Any:
    """Return the bytes per second of ``units`` that send tokens, one at a time each."""
    return units * token / (figures.step_ps / 1e12 + token / (wire * figures.share))


def figures_of(rule: Rule, protocol: str) -> ProtocolFigures:
    """Return the figures of a protocol that the machine file must have."""
    found = rule.figures.protocols.get(protocol)
    if found is None:
        raise TimingError(f"transport '{rule.library}' of the machine file has no protocol '{protocol}'")
    return found


@dataclass(frozen=True)
class EngineRule(Rule):
    """An engine's own all-reduce, on one node."""

    def protocol(self, way: Way, operation: str = "") -> ProtocolFigures:
        return figures_of(self, "NVLS" if way.algorithm == "in_network" else way.algorithm)

    def link(self, way: Way, ranks: int, operation: str = "") -> float:
        rate = self.fabric.wire * self.protocol(way).share
        return rate * ranks / (ranks + 1) if way.algorithm == "in_network" else rate

    def head_ps(self, way: Way, operation: str, ranks: int, nbytes: Any) -> Any:
        return self.copy_ps(self.protocol(way), nbytes) if ranks > 1 else 0 * np.asarray(nbytes, float)

    def message_ps(
        self, way: Way, ranks: int, nbytes: Any, near: bool, operation: str = ""
    ) -> tuple[Any, int]:
        figures = self.protocol(way)
        wire = np.asarray(nbytes, float) / self.link(way, ranks) * 1e12
        return wire, figures.step_ps + (ranks - 1) * figures.peer_ps

    def time_ps(self, way: Way, operation: str, ranks: int, nbytes: Any) -> Any:
        if ranks < 2:
            return 0 * np.asarray(nbytes, float)
        sent = {"one_shot": ranks - 1, "two_shot": 2 * (ranks - 1) / ranks, "in_network": 1.0}
        busy, latency = self.message_ps(way, ranks, nbytes, True)
        times = 1 if way.algorithm == "one_shot" else 2
        return self.head_ps(way, operation, ranks, nbytes) + times * latency + sent[way.algorithm] * busy


@dataclass(frozen=True)
class TokenRule(Rule):
    """DeepEP's exchange of tokens with their experts, on one node; ``nbytes`` is what a rank sends."""

    token: int = 0
    experts: int = 0

    def protocol(self, way: Way, operation: str = "") -> ProtocolFigures:
        if self.token < 1 or (way.algorithm.endswith(LOW_LATENCY) and self.experts < 1):
            raise TimingError("a transport of DeepEP says the bytes of a token, and experts if low-latency")
        return figures_of(self, way.algorithm)

    def link(self, way: Way, ranks: int, operation: str = "") -> float:
        figures, wire = self.protocol(way), self.fabric.wire
        if way.algorithm.endswith(LOW_LATENCY):
            return wire * figures.share
        units = self.most_channels(way)
        return float(min(token_rate(figures, wire, self.token, units), self.fabric.near * self._links()))

    def _links(self) -> int:
        return self.fabric.inside - 1 if self.fabric.mesh else 1

    def head_ps(self, way: Way, operation: str, ranks: int, nbytes: Any) -> Any:
        figures, size = self.protocol(way), np.asarray(nbytes, float)
        block = size / ranks / self.link(way, ranks) * 1e12
        if not way.algorithm.endswith(LOW_LATENCY):
            return figures.start_ps + block  # its own tokens
        by_expert = size / self.token * ranks / self.experts * figures.step_ps
        waited = np.maximum(0, by_expert - (ranks - 1) * block)
        return figures.start_ps + self.experts * figures.peer_ps + waited

    def message_ps(
        self, way: Way, ranks: int, nbytes: Any, near: bool, operation: str = ""
    ) -> tuple[Any, int]:
        return np.asarray(nbytes, float) / self.link(way, ranks) * 1e12, 0

    def time_ps(self, way: Way, operation: str, ranks: int, nbytes: Any) -> Any:
        size = np.asarray(nbytes, float)
        if ranks < 2:
            return 0 * size
        head = self.head_ps(way, operation, ranks, size)
        return head + (ranks - 1) * self.message_ps(way, ranks, size / ranks, True)[0]


RULES: dict[str, type[Rule]] = {"custom": EngineRule, "trtllm": EngineRule, "deepep": TokenRule}
"""The rules of libraries other than NCCL and RCCL."""
