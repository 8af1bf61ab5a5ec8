"""The machine as attention sees it.

Kernels reach a share of the peak (``kernels.yaml`` has the figures and where they come from), and less when
the last wave of their work-groups leaves compute units idle. Exchanges are kernels too, as those of
collectives: they feed all links at once, with the start-up and the loss of the ``protocol`` section.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from pathlib import Path
from typing import Any

from megatile.attention.plans import Problem
from megatile.collectives.protocol import CHANNELS, on_path
from megatile.core.dtypes import itemsize
from megatile.core.errors import MissingDescriptionError
from megatile.core.quantities import quantity
from megatile.hda import HDA
from megatile.hda.model import Engine


@dataclass(frozen=True)
class Kernels:
    """One entry of ``kernels.yaml``."""

    share: float
    rows: int
    source: dict[str, str]


@lru_cache(maxsize=1)
def _entries() -> dict[str, Any]:
    import yaml

    found: dict[str, Any] = yaml.safe_load(
        Path(__file__).with_name("kernels.yaml").read_text(encoding="utf-8")
    )
    return found


def kernels_of(hda: HDA) -> Kernels:
    """The figures for a machine, by its name."""
    document = _entries()
    entry = next((e for e in document["machines"] if hda.name in e["names"]), document["default"])
    return Kernels(entry["share"], entry["rows"], entry["source"])


def tensor_engine(hda: HDA, scale: str = "device") -> Engine:
    engines = [e for e in hda.engines if e.kind == "tensor"]
    if not engines:
        raise MissingDescriptionError(
            f"machine '{hda.name}' describes no tensor engine", advice="add one under 'engines'"
        )
    return engines[0]


def occupancy(work_groups: float, units: int) -> float:
    """The share of compute units that work while waves of work-groups pass over them."""
    return work_groups / (ceil(work_groups / units) * units) if work_groups else 1.0


def efficiency(hda: HDA, problem: Problem, ranks: int, scale: str = "device") -> float:
    """The share of the peak that the kernels of a problem reach on one of ``ranks`` devices."""
    kernels = kernels_of(hda)
    level = tensor_engine(hda, scale).level
    units = max(1, hda.level(level).total // hda.level(hda.scale(scale).level).total)
    rows = problem.length / ranks
    # In the zig-zag layout half of the causal kernels work on half of the rows.
    sizes = (rows, rows / 2) if problem.causal else (rows,)
    filled = [occupancy(ceil(r / kernels.rows) * problem.heads * problem.batch, units) for r in sizes]
    return kernels.share * sum(filled) / len(filled)


def view(hda: HDA, problem: Problem, ranks: int, scale: str = "device") -> HDA:
    """The machine with these effects applied."""
    share = round(efficiency(hda, problem, ranks, scale), 6)
    return _derived(hda, share, scale, _granule(problem, ranks))


def without_compute(hda: HDA, problem: Problem, ranks: int, scale: str = "device") -> HDA:
    """The same machine with kernels that take no time: what remains is communication."""
    return _derived(hda, None, scale, _granule(problem, ranks))


def _granule(problem: Problem, ranks: int) -> int:
    """Switches send packets of several messages in turn; an eighth of the smallest message is fine enough."""
    token = 2 * problem.groups * problem.dim * itemsize(problem.dtype) * problem.batch
    return max(4096, problem.keys * token // (8 * ranks * ranks))


@lru_cache(maxsize=64)
def _derived(hda: HDA, share: float | None, scale: str, granule: int) -> HDA:
    level = hda.level(hda.scale(scale).level).name
    data = on_path(hda, "bulk", scale).to_dict()
    if hda.protocol is not None:
        _starts_on_links(data, hda, level, hda.protocol.start_ps)
    else:
        engine = {"name": "communication_kernel", "kind": "dma", "level": level, "channels": CHANNELS}
        data["engines"] = [engine, *data.get("engines", ())]
        data.pop("control", None)
    for spec in data["engines"]:
        if spec["kind"] == "tensor":
            spec["efficiency"] = share if share is not None else 1.0
            if share is None:
                spec["throughput"] = dict.fromkeys(spec["throughput"], "1e30 FLOP/s")
                spec["startup"] = "0 ps"
    for spec in data["networks"]:
        spec["granule"] = f"{granule} B"
    return HDA.from_dict(data)


def _starts_on_links(data: dict[str, Any], hda: HDA, level: str, start_ps: int) -> None:
    """Every exchange is a kernel of its own, so its messages pay the start that collectives pay once.

    All messages of an exchange start together: on a port that several of them share, the starts must not
    follow one another, so they are latency of the links.
    """
    position = hda.level(level).position
    for spec, network in zip(data["networks"], hda.networks, strict=True):
        if hda.level(network.level).position > position:
            links = 1 if network.topology.kind == "full_mesh" else 2
            latency = quantity(spec["latency"], "time").value + start_ps // links
            spec["latency"] = f"{latency:.0f} ps"
