"""Several machines side by side: peak rates, memories, networks, scales, and ratios of these."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from megatile.core.quantities import format_bytes, format_rate, format_time
from megatile.hda import HDA, MemoryLayer, Network
from megatile.report.machine_words import number, wiring

TYPES = ("f64", "f32", "tf32", "bf16", "f16", "f8", "f4", "i8")
PLACES = ("inside a device", "between devices", "between nodes")
Value = Callable[[HDA], Any]


@dataclass(frozen=True)
class Figure:
    """One row: its section, name and unit, and the number (or words) of each machine; None: it has none."""

    section: str
    name: str
    unit: str
    values: tuple[Any, ...]

    def words(self) -> list[str]:
        return ["–" if value is None else _SHOWN[self.unit](value) for value in self.values]

    def json(self, names: Sequence[str]) -> dict[str, Any]:
        values = dict(zip(names, self.values, strict=True))
        return {"section": self.section, "name": self.name, "unit": self.unit, "values": values}


_SHOWN: dict[str, Callable[[Any], str]] = {
    "": str,
    "count": number,
    "bytes": format_bytes,
    "B/s": format_rate,
    "FLOP/s": lambda rate: format_rate(rate, "FLOP/s"),
    "OP/s": lambda rate: format_rate(rate, "OP/s"),
    "ps": format_time,
    "share": lambda share: f"{share:.1%}",
    "FLOP/B": lambda ratio: f"{ratio:.3g}" if ratio < 1000 else number(round(ratio)),
}


def compared(machines: Sequence[HDA]) -> list[Figure]:
    """Return the rows of the comparison; those that no machine has are left out."""
    found = []
    for section, name, unit, value in _figures():
        values = tuple(value(hda) or None for hda in machines)
        if any(one is not None for one in values):
            found.append(Figure(section, name, unit, values))
    return found


def _figures() -> list[tuple[str, str, str, Value]]:
    peak, ratios = "peak per device", "ratios, bf16 or f16"
    roles = (("registers", "l0"), ("scratchpad", "l1"), ("device memory", "l2"))
    of_memory = (("of each", "", "level"), ("size", "bytes", "size"), ("rate", "B/s", "bandwidth"),
                 ("latency", "ps", "latency_ps"))  # fmt: skip
    of_link = (("", "", ""), (", link", "B/s", "bandwidth"), (", reachable", "share", "efficiency"),
               (", latency", "ps", "latency_ps"))  # fmt: skip
    return [
        ("machine", "kind", "", lambda hda: hda.spec.kind),
        ("scales", "nodes", "count", lambda hda: hda.count("node")),
        ("scales", "devices", "count", lambda hda: hda.count("device")),
        ("scales", "devices per node", "count", lambda hda: hda.count("device", within="node")),
        ("scales", "blocks at a time per device", "count", lambda hda: hda.count("block", within="device")),
        *((peak, f"GEMM {dtype}", "OP/s" if dtype == "i8" else "FLOP/s", partial(_peak, "tensor", dtype))
          for dtype in TYPES),
        (peak, "elementwise f32", "FLOP/s", partial(_peak, "vector", "f32")),
        (peak, "special functions", "OP/s", partial(_peak, "scalar", "f32")),
        (peak, "sustained in GEMMs", "share", _sustained),
        *(("memory", f"{role}, {word}", unit, partial(_memory, alias, key))
          for role, alias in roles for word, unit, key in of_memory),
        ("memory", "device memory, reachable", "share", partial(_memory, "l2", "efficiency")),
        ("memory", "last cache, size", "bytes", lambda hda: _of(_cache(hda), "size")),
        ("memory", "last cache, rate", "B/s", lambda hda: _of(_cache(hda), "bandwidth")),
        *(("networks", f"{place}{word}", unit, partial(_wires, place, key))
          for place in PLACES for word, unit, key in of_link),
        ("networks", "bisection of devices", "B/s",
         lambda hda: hda.bisection("device") if _network(hda, "between devices") is not None else None),
        ("networks", "host link", "B/s", lambda hda: _of(_of(hda.control, "host_link"), "bandwidth")),
        (ratios, "FLOP/B of device memory", "FLOP/B", lambda hda: (_half(hda) or 0) / _device_rate(hda)),
        *((ratios, f"FLOP/B {place}", "FLOP/B", partial(_per_link, place)) for place in PLACES[1:]),
        (ratios, "time to read device memory once", "ps", _sweep),
    ]  # fmt: skip


def _peak(kind: str, dtype: str, hda: HDA) -> float | None:
    return hda.throughput("device", dtype, kind) if hda.engines else None


def _half(hda: HDA) -> float | None:
    """Return the peak of 16-bit matrix products, f16 or bf16."""
    return _peak("tensor", "bf16", hda) or _peak("tensor", "f16", hda)


def _sustained(hda: HDA) -> float | None:
    return next((e.sustained for e in hda.engines if e.kind == "tensor" and e.sustained < 1), None)


def _memory(alias: str, figure: str, hda: HDA) -> Any:
    return getattr(hda.memory(alias), figure)


def _device_rate(hda: HDA) -> float:
    """Return bytes per second of the device memory of one device, all its parts together."""
    memory = hda.memory("l2")
    return memory.bandwidth * max(1, hda.level(memory.level).total // hda.count("device"))


def _cache(hda: HDA) -> MemoryLayer | None:
    caches = [m for m in hda.memories if m.cache]
    return max(caches, key=lambda m: (hda.level(m.level).position, m.size), default=None)


def _network(hda: HDA, place: str) -> Network | None:
    """Return the outermost network inside a device, the innermost that joins devices, or one beyond that."""
    device = hda.level(hda.scale("device").level).position
    networks = sorted(
        (n for n in hda.networks if n.topology.size > 1), key=lambda n: hda.level(n.level).position
    )
    inner = [n for n in networks if hda.level(n.level).position <= device]
    outer = [n for n in networks if hda.level(n.level).position > device]
    found = {PLACES[0]: inner[-1:], PLACES[1]: outer[:1], PLACES[2]: outer[1:][-1:]}[place]
    return found[0] if found else None


def _wires(place: str, figure: str, hda: HDA) -> Any:
    """Return a figure of a network, or its name and topology."""
    network = _network(hda, place)
    if network is None:
        return None
    return getattr(network, figure) if figure else f"{network.name}, {wiring(network)}"


def _per_link(place: str, hda: HDA) -> float | None:
    """Of all links that a device has in a network."""
    network, peak = _network(hda, place), _half(hda)
    if network is None or peak is None:
        return None
    units = max(1, hda.count("device") // hda.level(network.connects).total)
    topology: Any = network.topology
    links = len(topology.neighbors(0)) if topology.kind in _DIRECT else 1
    if topology.kind == "edges":
        links = sum(cables for *ends, cables in topology.edges if 0 in ends)
    return peak * units / (network.bandwidth * links)


_DIRECT = ("full_mesh", "ring", "line", "mesh", "torus")
"""Topologies in which an endpoint has a link to each of its neighbours."""


def _sweep(hda: HDA) -> float:
    memory = hda.memory("l2")
    return memory.size / memory.bandwidth * 1e12


def _of(part: Any, name: str) -> Any:
    return None if part is None else getattr(part, name)
