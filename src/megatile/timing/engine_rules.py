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

from megatile.core.cached import cached, cached_in_owner
from megatile.core.quantities import size
from megatile.hda import HDA
from megatile.hda.catalog import library
from megatile.hda.model import ProtocolFigures
from megatile.timing.collective_rule import Rule, Way, fabric
from megatile.timing.machine_timing import TimingError

LOW_LATENCY = "_low_latency"


class Reach(NamedTuple):
    """Up to how many bytes an engine's all-reduce takes one shot, two shots, and the switch's reduction."""

    two_shot: int
    one_shot: int = 1 << 62
    in_network: int = 0


ENGINE_SECTIONS = {"vllm": "custom", "sglang": "custom", "trtllm": "trtllm"}
"""The transports of machine files that engines reduce by; SGLang's kernels count as vLLM's."""
OFFERED = {
    "custom": ("one_shot", "two_shot", "in_network"),
    "trtllm": ("one_shot", "two_shot"),
    "deepep": ("dispatch", "combine", "dispatch_low_latency", "combine_low_latency"),
}
"""Algorithms of engines' all-reduces, and of DeepEP's all-to-alls."""


@cached()
def _reaches(engine: str, generation: str) -> dict[int, Reach]:
    """By ranks, what an engine's tables say (``hda/libraries``); nothing for engines without kernels."""
    tables = library(engine)["all_reduce"] if engine in ENGINE_SECTIONS else {}
    rows = tables.get(generation, tables.get("any", ()))
    return {row["ranks"]: Reach(**{k: size(v) for k, v in row.items() if k != "ranks"}) for row in rows}


@cached_in_owner
def engine_way(hda: HDA, engine: str, ranks: int, nbytes: float) -> Way | None:
    """Return what an engine's own all-reduce takes for a size; None where the engine calls NCCL."""
    around = fabric(hda, "device")
    if ranks > around.inside:
        return None
    figures = hda.transports.get(hda.scale("device").name, {}).get("nccl")
    generation = str(figures.generation) if figures is not None else ""
    reach = _reaches(engine, generation).get(ranks)
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
        return self.shifted(figures_of(self, "NVLS" if way.algorithm == "in_network" else way.algorithm), 0)

    def link(self, way: Way, ranks: int, operation: str = "", nbytes: Any = None) -> float:
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
        return self.shifted(figures_of(self, way.algorithm), 1)

    def link(self, way: Way, ranks: int, operation: str = "", nbytes: Any = None) -> float:
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
