"""How the parts of a machine are written in pictures: counts, sizes, rates, names of networks."""

from __future__ import annotations

from megatile.core.quantities import format_bytes, format_rate, format_time
from megatile.hda import HDA, Engine, Level, MemoryLayer, Network
from megatile.hda.direct import Tree
from megatile.hda.switched import Switched
from megatile.report.sketch_switches import switch_counts

# The dtype that an engine is known by: 16 bits where there are, and "any" stands for them.
DTYPES = (
    "f16",
    "bf16",
    "f8",
    "f8e4m3",
    "f8e5m2",
    "any",
    "tf32",
    "f32",
    "f64",
    "f4",
    "i8",
    "u8",
    "i32",
    "i64",
)


def number(count: int) -> str:
    """Return ``850 000``; four digits stay together: ``1056``."""
    return f"{count:,}".replace(",", " ") if count > 9999 else str(count)


def several(count: int, name: str) -> str:
    """Return ``8 gpus``; names that do not take an s stay as they are: ``8 × arch_level_2``."""
    if count > 1 and plural(name) == name:
        return f"{number(count)} × {name}"
    return f"{number(count)} {plural(name) if count > 1 else name}"


def plural(name: str) -> str:
    return f"{name}s" if name[-1].isalpha() and name[-1] not in "sS" else name


def memory_figures(memory: MemoryLayer) -> list[str]:
    figures = [format_bytes(memory.size), format_rate(memory.bandwidth), format_time(memory.latency_ps)]
    if memory.slices > 1:
        figures[0] += f" in {memory.slices} slices"
    return figures if memory.shared else [*figures, "private"]


def operations(engine: Engine, dtype: str) -> str:
    """Return ``OP/s`` of scalar engines and whole numbers, ``FLOP/s`` of the rest."""
    return "OP/s" if engine.kind == "scalar" or dtype[0] in "iu" else "FLOP/s"


def engine_figure(engine: Engine) -> str:
    """Return the peak of one engine in its leading dtype, with the number of engines in front."""
    times = f"{engine.count} × " if engine.count > 1 else ""
    for dtype in DTYPES:
        rate = engine.throughput.get(dtype)
        if rate is not None:
            suffix = "" if dtype == "any" else f" {dtype}"
            return f"{times}{format_rate(rate, operations(engine, dtype))}{suffix}"
    if engine.bandwidth:
        return times + format_rate(engine.bandwidth)
    return f"{engine.count} × {engine.kind}" if engine.count > 1 else engine.kind


def wiring(network: Network) -> str:
    """Return the topology in a few words: ``torus 4 × 4 × 4``, ``8 rails``, ``switch``."""
    topology = network.topology
    kind = topology.kind.replace("_", " ")
    if isinstance(topology, Tree):
        return f"{kind} of arity {topology.arity}"
    if isinstance(topology, Switched):
        if topology.rails == 1:
            return kind
        each = switch_counts(topology)[0] // topology.rails
        return f"{topology.rails} {kind}" + (f" of {number(each)} switches" if each > 1 else "")
    return f"{kind} {dims(network)}" if len(topology.dims) > 1 else kind


def dims(network: Network) -> str:
    return " × ".join(number(extent) for extent in network.topology.dims)


def network_figures(network: Network) -> str:
    words = [format_rate(network.bandwidth), format_time(network.latency_ps)]
    if network.in_network_reduction:
        words.append("reduces in network")
    return " · ".join(words)


def peak(hda: HDA, level: str) -> str | None:
    """Return the peak of one unit of a level in the first dtype that anything inside it has."""
    for dtype in ("f16", "f32", "f64", "i8") if hda.engines else ():
        rate = hda.throughput(level, dtype)
        if rate:
            return f"{format_rate(rate, 'OP/s' if dtype == 'i8' else 'FLOP/s')} {dtype}"
    return None


def scales_of(hda: HDA, level: str) -> str:
    """Return the scales that a program names to mean this level."""
    return ", ".join(scale.name for scale in hda.scales if scale.level == level)


def totals(hda: HDA, levels: list[Level]) -> list[str]:
    """Return the whole machine in a few figures; ``levels`` are those worth counting, largest first."""
    words = [several(level.total, level.name) for level in levels if level.total > 1]
    if fastest := peak(hda, hda.levels[-1].name):
        words.append(f"peak {fastest}")
    addressable = [m for m in hda.memories if not m.cache]
    if addressable:
        largest = max(addressable, key=lambda m: m.size * hda.level(m.level).total)
        units = hda.level(largest.level).total
        words.append(
            f"{largest.name} {format_bytes(largest.size * units)} at {format_rate(largest.bandwidth * units)}"
        )
    joining = [n for n in hda.networks if n.topology.size > 1]
    if joining:
        outer = max(hda.level(n.level).position for n in joining)
        best = max(n.bisection() for n in joining if hda.level(n.level).position == outer)
        words += [f"bisection {format_rate(best)}"] if best else []
    if hda.control and (link := hda.control.host_link):
        words.append(f"host link {format_rate(link.bandwidth)}, {format_time(link.latency_ps)}")
    return words
