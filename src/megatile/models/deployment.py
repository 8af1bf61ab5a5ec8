"""A deployment: a model divided over the devices of a machine, served by one library."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from megatile.hda import HDA, machine as find_machine
from megatile.models.config import ModelConfig
from megatile.models.engines import ENGINES, ServingEngine, engine
from megatile.models.schemes import KV_BYTES, SCHEMES, ModelError, kv_dtype_name, require_flags, scheme_name

MAX_DEGREE = 1 << 20
"""Largest tp, pp, dp or ep."""
GIB = 1 << 30
"""Bytes of a GiB."""


@dataclass(frozen=True)
class Deployment:
    """How a model is divided: tensor (``tp``), pipeline (``pp``), expert (``ep``), context (``cp``) and data
    parallel; with ``attention_dp`` groups of ``tp`` devices hold different requests and share the experts."""

    config: ModelConfig
    hda: HDA
    tp: int = 1
    pp: int = 1
    ep: int = 1
    attention_dp: int = 1
    cp: int = 1
    dp: int = 1
    dtype: str = "bf16"
    kv_dtype: str = "bf16"
    engine: ServingEngine = ENGINES["vllm"]
    graph: bool = True

    @property
    def group(self) -> int:
        """Devices that hold one pipeline stage of one replica."""
        return self.tp * self.attention_dp * self.cp

    @property
    def devices(self) -> int:
        return self.group * self.pp * self.dp

    @cached_property
    def node_devices(self) -> int:
        """Devices of one node; all of them where the machine has none."""
        nodes = self.hda.count("node") if any(s.name == "node" for s in self.hda.scales) else 1
        return max(1, self.hda.count("device") // nodes)

    def peers(self, stage: int) -> int:
        """Return ranks of a ring that is as slow as the way from a pipeline stage to the next: two of one
        node, or one more than a node has."""
        here, there = (n * self.group // self.node_devices for n in (stage, stage + 1))
        return 2 if here == there else self.node_devices + 1

    @property
    def expert_tp(self) -> int:
        """Devices that divide each expert."""
        return self.tp * self.attention_dp // self.ep

    @property
    def library(self) -> str:
        return self.engine.name

    @cached_property
    def attention_dtype(self) -> str:
        """The scheme of the projections of attention."""
        own = self.dtype == self.config.scheme and not self.config.quantised_attention
        return "bf16" if own else self.dtype

    @property
    def kv_heads(self) -> int:
        """KV heads on one device; those that are fewer than devices are replicated."""
        return max(1, self.config.kv_heads // self.tp)

    @property
    def kv_bytes(self) -> float:
        return KV_BYTES[self.kv_dtype]

    @property
    def stage_layers(self) -> int:
        """Layers of the largest pipeline stage."""
        return -(-self.config.layers // self.pp)

    @cached_property
    def memory_bytes(self) -> int:
        """Memory of one device."""
        level = self.hda.level(self.hda.scale("device").level)
        memories = [m for m in self.hda.memories if m.level == level.name and not m.cache]
        sizes = [m.size for m in memories if m.size]
        if not sizes:
            raise ModelError(
                f"machine '{self.hda.name}' describes no device memory",
                advice="a machine with device memory",
            )
        size = int(max(sizes))
        # The GB of data sheets are GiB where memory is made of stacks: an H100 of 80 GB has 80 GiB.
        return size // 10**9 * GIB if size % 10**9 == 0 else size

    def weight_bytes(self, parameters: float, scheme: str) -> float:
        return parameters * SCHEMES[scheme].bits / 8

    def words(self) -> str:
        """Return the division in a few words: ``tp 8, ep 2, fp8``."""
        degrees = {n: getattr(self, n) for n in ("tp", "pp", "ep", "attention_dp", "cp", "dp")}
        said = [f"{name} {value}" for name, value in degrees.items() if value > 1 or name == "tp"]
        kv = f", {self.kv_dtype} cache" if self.kv_dtype != "bf16" else ""
        return f"{', '.join(said)}, {self.dtype}{kv}, {self.library}"


def deployment(
    config: ModelConfig,
    machine: str | HDA,
    *,
    tp: int = 1,
    pp: int = 1,
    ep: int = 1,
    attention_dp: int = 1,
    cp: int = 1,
    dp: int = 1,
    dtype: str | None = None,
    kv_dtype: str | None = None,
    library: str | ServingEngine = "vllm",
    graph: bool | None = None,
    **settings: Any,
) -> Deployment:
    """Return a checked deployment; without ``dtype`` and ``kv_dtype`` those of the config hold."""
    hda = machine if isinstance(machine, HDA) else find_machine(machine)
    degrees = {"tp": tp, "pp": pp, "ep": ep, "attention_dp": attention_dp, "cp": cp, "dp": dp}
    for name, value in degrees.items():
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_DEGREE:
            raise ModelError(
                f"{name} must be a positive integer, got {value!r}", advice=f"{name} 1 divides nothing"
            )
    kind = config.scheme if dtype is None else scheme_name(dtype, config.scheme, config.fp8_scheme)
    server = engine(library, **settings)
    default = "fp8" if server.static_scales and SCHEMES[kind].family == "fp8" else config.kv_scheme
    kv = default if kv_dtype is None else kv_dtype_name(kv_dtype)
    captured = server.graph_batch > 0 if graph is None else graph
    require_flags(graph=captured)
    made = Deployment(config, hda, **degrees, dtype=kind, kv_dtype=kv, engine=server, graph=captured)
    check_division(made)
    return made


def check_division(d: Deployment) -> None:
    """Refuse degrees that do not divide the model, and more devices than the machine has."""
    c, most, world = d.config, d.hda.count("device"), d.tp * d.attention_dp

    def divides(tp: int) -> bool:
        return c.heads % tp == 0 and (c.latent or c.kv_heads % tp == 0 or tp % c.kv_heads == 0)

    if not divides(d.tp):
        what = f"does not divide {c.heads} heads"
        if c.heads % d.tp == 0:
            what = f"neither divides nor is a multiple of {c.kv_heads} KV heads"
        raise ModelError(f"tp {d.tp} {what}", advice=f"tp {_near(min(d.tp, most), divides)}")
    if d.ep > 1 and not c.experts:
        raise ModelError(f"ep {d.ep}, but {c.name} has no experts", advice="leave ep out")
    if world % d.ep or (c.experts and c.experts % d.ep):
        what = f"{c.experts} experts" if world % d.ep == 0 else f"tp × attention_dp = {world}"
        near = _near(d.ep, lambda ep: world % ep == 0 and c.experts % ep == 0)
        raise ModelError(f"ep {d.ep} does not divide {what}", advice=f"ep {near}")
    if d.pp > c.layers:
        advice = f"pp {min(c.layers, max(1, most // d.group))} or less"
        raise ModelError(f"pp {d.pp} is more than {c.layers} layers", advice=advice)
    if d.devices > most:
        raise ModelError(
            f"{d.words()} needs {d.devices} devices, '{d.hda.name}' has {most}",
            advice=f"degrees whose product is at most {most}, or a machine with more nodes",
        )


def _near(most: int, fits: Callable[[int], bool]) -> int:
    """Return the largest degree up to ``most`` that fits; 1 always does."""
    return next(n for n in range(most, 0, -1) if n == 1 or fits(n))


def stage_range(d: Deployment, stage: int) -> range:
    """Return the layers of a pipeline stage; earlier stages take what does not divide evenly."""
    size, more = divmod(d.config.layers, d.pp)
    first = stage * size + min(stage, more)
    return range(first, first + size + (stage < more))
