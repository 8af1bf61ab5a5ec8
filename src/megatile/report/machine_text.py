"""A machine in words: rows for tables, a tree of levels, differences between two machines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from megatile.core.quantities import format_bytes, format_rate, format_time
from megatile.hda import HDA, Engine, Level, MemoryLayer, Network
from megatile.hda.model import TransportFigures
from megatile.hda.routing import Route
from megatile.report.machine_words import DTYPES, number, operations, peak


def _reached(efficiency: float) -> str:
    """Return what share of a rate is reached, where it is not all of it."""
    return f" × {efficiency:.1%}" if efficiency != 1 else ""


def describe_memory(memory: MemoryLayer) -> str:
    words = "cache" if memory.cache else ("shared" if memory.shared else "private to what is inside")
    names = f" = {', '.join(memory.aliases)}" if memory.aliases else ""
    return (
        f"{memory.name}{names}: {format_bytes(memory.size)}, {format_rate(memory.bandwidth)}"
        f"{_reached(memory.efficiency)}, "
        f"{format_time(memory.latency_ps)}, {words}"
    )


def shape(network: Network) -> str:
    """Return ``torus 4×4``, ``switch of 8``, ``rails 8 of 4``."""
    topology = network.topology
    if len(topology.dims) > 1:
        return f"{topology.kind} {'×'.join(map(str, topology.dims))}"
    rails = getattr(topology, "rails", 1)
    if rails > 1:
        return f"{rails} rails of {topology.size // rails}"
    return f"{topology.kind.replace('_', ' ')} of {number(topology.size)}"


def describe_network(network: Network) -> str:
    extra = [] if network.duplex else ["half duplex"]
    extra += [] if network.gateway is None else [f"gateway {network.connects} {network.gateway}"]
    extra += [f"{network.virtual_channels} virtual channels"] if network.virtual_channels > 1 else []
    extra += [f"reduces {'/'.join(network.in_network_reduction)}"] if network.in_network_reduction else []
    more = f", {', '.join(extra)}" if extra else ""
    rate, latency = format_rate(network.bandwidth), format_time(network.latency_ps)
    return (
        f"{network.name}: {shape(network)} {network.connects}s, {rate} per direction"
        f"{_reached(network.efficiency)}, {latency} per link, "
        f"bisection {format_rate(network.bisection())}{more}"
    )


def describe_engine(engine: Engine) -> str:
    rates = [
        f"{format_rate(rate, operations(engine, dtype))}{'' if dtype == 'any' else ' ' + dtype}"
        for dtype, rate in engine.throughput.items()
    ]
    if engine.bandwidth:
        rates.append(format_rate(engine.bandwidth))
    if rates:
        rates[-1] += _reached(engine.efficiency)
    count = f"{engine.count} × " if engine.count > 1 else ""
    start = f", start {format_time(engine.startup_ps)}" if engine.startup_ps else ""
    return f"{count}{engine.name} ({engine.kind}){': ' if rates else ''}{', '.join(rates)}{start}"


def estimate(spec: Any) -> str:
    """``, estimate: latency``: the figures of a part of a machine file that have no better source."""
    source = getattr(spec, "source", None) or {}
    said = source if isinstance(source, dict) else {"": source}
    names = [name for name, text in said.items() if "estimate" in str(text)]
    return f", estimate{': ' if any(names) else ''}{', '.join(names)}" if names else ""


def describe_transport(library: str, figures: TransportFigures, spec: Any = None) -> Iterator[str]:
    """Yield how a library's kernels move data: one line for the library, one for each protocol."""
    known = spec.protocols if spec is not None else {}
    channels = f"{figures.channels} channels" if figures.channels > 1 else "one channel"
    launch = f", launch {format_time(figures.launch_ps)}" if figures.launch_ps else ""
    yield f"{library}: {figures.generation}, {channels}{launch}{estimate(spec)}"
    for name, protocol in figures.protocols.items():
        words = [
            f"{key.removesuffix('_ps').replace('_', ' ')} {format_time(value)}"
            for key, value in vars(protocol).items()
            if key.endswith("_ps") and value
        ]
        words += [f"{100 * protocol.share:.3g} % of the links"] if protocol.share < 1 else []
        yield f"  {name}: {', '.join(words)}{estimate(known.get(name))}"


def describe_host(hda: HDA) -> Iterator[str]:
    """Parameters and the control path from the host."""
    if hda.parameters:
        yield "parameters: " + ", ".join(f"{name}={value}" for name, value in hda.parameters.items())
    if hda.control and hda.control.host_link:
        link = hda.control.host_link
        yield f"host link: {format_rate(link.bandwidth)}, {format_time(link.latency_ps)}"


def level_lines(hda: HDA, level: Level) -> Iterator[tuple[str, str]]:
    """Yield what one unit of a level has: (kind, description)."""
    spec = hda.spec
    kinds: tuple[tuple[str, Iterable[Any], Iterable[Any], Callable[[Any], str]], ...] = (
        ("memory", hda.memories, spec.memory, describe_memory),
        ("network", hda.networks, spec.networks, describe_network),
        ("engine", hda.engines, spec.engines, describe_engine),
        (
            "launch",
            hda.control.launch if hda.control else (),
            spec.control.launch if spec.control else (),
            lambda station: f"{station.name}: {format_time(station.overhead_ps)}",
        ),
        (
            "channel",
            hda.channels,
            spec.channels,
            lambda queue: f"{queue.name}: {queue.directions} directions, credit {format_bytes(queue.credit)}",
        ),
    )
    for kind, parts, specs, words in kinds:
        marks = {each.name: estimate(each) for each in specs}
        here = (part for part in parts if part.level == level.name)
        yield from ((kind, words(part) + marks.get(part.name, "")) for part in here)
    for scale, libraries in hda.transports.items():
        if hda.scale(scale).level == level.name:
            for library, figures in libraries.items():
                known = spec.transports.get(scale, {}).get(library)
                yield from (("transport", line) for line in describe_transport(library, figures, known))


def level_title(hda: HDA, level: Level) -> str:
    """Return ``8 × gpu  (8 in all)  device  989.4 TFLOP/s f16``."""
    above = hda.levels[level.position + 1] if level.position + 1 < len(hda.levels) else None
    count = f"{number(above.num_units)} × " if above else ""
    scales = [s.name for s in hda.scales if s.level == level.name]
    names = f"  scale {', '.join(scales)}" if scales else ""
    total = f"  ({number(level.total)} in all)" if level.total > 1 else ""
    clock = f"  {level.clock_hz / 1e9:.4g} GHz" if level.clock_hz else ""
    best = peak(hda, level.name)
    return f"{count}{level.name}{total}{names}{clock}{'  peak ' + best if best else ''}"


def summary_row(hda: HDA) -> dict[str, Any]:
    """Return one machine in one line."""
    device = hda.scale("device")
    biggest = max((m for m in hda.memories if not m.cache), key=lambda m: m.size, default=None)
    outer = max(hda.networks, key=lambda n: hda.level(n.level).position, default=None)
    return {
        "name": hda.name,
        "kind": hda.spec.kind or "other",
        "description": hda.spec.description or "",
        "devices": hda.count("device"),
        "blocks per device": hda.count("block", within="device"),
        "peak per device": peak(hda, device.level) or "",
        "memory": f"{format_bytes(biggest.size)} {biggest.name} per {biggest.level}" if biggest else "",
        "network": f"{outer.name}: {shape(outer)}, {format_rate(outer.bandwidth)}" if outer else "",
        "parameters": dict(hda.parameters),
    }


def peaks(hda: HDA, level: Level) -> dict[str, float]:
    """Return operations per second of one unit of a level, per dtype that anything inside it has."""
    dtypes = DTYPES if hda.engines else ()
    return {dtype: rate for dtype in dtypes if (rate := hda.throughput(level.name, dtype))}


def machine_json(hda: HDA) -> dict[str, Any]:
    """Return everything about a machine with resolved numbers, for scripts."""
    return {
        "name": hda.name,
        "description": hda.spec.description,
        "parameters": dict(hda.parameters),
        "fingerprint": hda.fingerprint(),
        "levels": [
            {
                "name": level.name,
                "num_units": level.num_units,
                "total": level.total,
                "clock_hz": level.clock_hz,
                "peak_flops": peaks(hda, level),
            }
            for level in hda.levels
        ],
        "scales": [
            {"name": s.name, "level": s.level, "aliases": list(s.aliases), "units": hda.count(s.name)}
            for s in hda.scales
        ],
        "memories": [vars(m) for m in hda.memories],
        "networks": [
            {
                **{k: v for k, v in vars(n).items() if k != "topology"},
                "topology": n.topology.kind,
                "dims": list(n.topology.dims),
                "size": n.topology.size,
                "bisection": n.bisection(),
            }
            for n in hda.networks
        ],
        "engines": [vars(e) for e in hda.engines],
        "control": {
            "host_link": vars(hda.control.host_link) if hda.control and hda.control.host_link else None,
            "launch": [vars(s) for s in hda.control.launch] if hda.control else [],
        },
        "channels": [vars(c) for c in hda.channels],
        "transports": {
            scale: {
                name: {**vars(t), "protocols": {key: vars(p) for key, p in t.protocols.items()}}
                for name, t in libraries.items()
            }
            for scale, libraries in hda.transports.items()
        },
    }


def differences(a: HDA, b: HDA, sources: bool = False) -> list[tuple[str, Any, Any]]:
    """(path, value in a, value in b) for each value that differs; members of lists are matched by name."""
    found = _differ(_keyed(a.to_dict()), _keyed(b.to_dict()), "")
    return [row for row in found if sources or "source" not in row[0].split(".")]


def _keyed(value: Any) -> Any:
    if isinstance(value, list) and value and all(isinstance(v, dict) and "name" in v for v in value):
        return {v["name"]: _keyed({k: x for k, x in v.items() if k != "name"}) for v in value}
    return {k: _keyed(v) for k, v in value.items()} if isinstance(value, dict) else value


def _differ(a: Any, b: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(a or b, dict) and isinstance(a or {}, dict) and isinstance(b or {}, dict):
        a, b = a or {}, b or {}
        for key in [*a, *(k for k in b if k not in a)]:
            yield from _differ(a.get(key), b.get(key), f"{path}.{key}" if path else key)
    elif a != b:
        yield path, a, b


def route_rows(route: Route) -> list[dict[str, Any]]:
    """Return a route leg by leg: the network, inside which unit, the steps along its axes, links and their
    cost."""
    rows = []
    for leg in route.legs:
        hops = sum(run.hops for run in leg.runs)
        rows.append(
            {
                "network": leg.network.name,
                "inside": f"{leg.network.level}:{leg.owner}",
                "steps": ", ".join(f"{run.hops} along {run.axis}" for run in leg.runs),
                "hops": hops,
                "latency_ps": hops * leg.network.latency_ps + max(0, hops - 1) * leg.network.hop_overhead_ps,
                "bandwidth_bytes_per_s": leg.network.effective_bandwidth,
            }
        )
    return rows
