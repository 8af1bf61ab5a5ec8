"""What a Result puts on its page: `Result.report`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from megatile.core.quantities import format_bytes, format_rate, format_time
from megatile.hda.routing import Link
from megatile.report.page import LinkUse, Retiming, Roofline, page
from megatile.sim import sensitivity, state as st
from megatile.sim.repeat import recorded
from megatile.sim.state import Recorded

if TYPE_CHECKING:
    from megatile.sim.result import Result

LINK_USE_BINS = 48
"""Intervals of time for which the use of a link is drawn."""
FACTORS = (0.5, 0.7, 1.0, 1.4, 2.0)
MAX_SLIDERS = 10
"""Figures of the machine with a slider, the most effective ones."""
SECONDS = 20.0
"""How long the runs for the sliders may take together."""
_MAX_PLAN_TEXT_CHARS = 200_000
"""Characters of the Plan in a report."""


def result_page(
    result: Result,
    *,
    texts: Sequence[tuple[str, str]] = (),
    retime: bool = True,
    sources: str | Path | None = None,
) -> str:
    """Return the page as text: see `Result.report`."""
    plan = str(result.plan)
    shown = (
        plan if len(plan) <= _MAX_PLAN_TEXT_CHARS else plan[:_MAX_PLAN_TEXT_CHARS] + "\n… the text goes on"
    )
    return page(
        result.trace,
        title=f"{result.plan.name} on {result.machine.name}",
        hda=result.machine,
        cards=_cards(result),
        verdict=str(result.verdict()) if retime else "",
        links=link_use(result),
        roofline=_roofline(result),
        traffic=_traffic(result),
        retiming=_retiming(result) if retime else Retiming((), {}, {}, "Nothing was re-timed for this page."),
        texts=[*texts, ("Plan", shown), ("Machine", result.machine.to_yaml())],
        sources=sources,
    )


def _cards(result: Result) -> list[tuple[str, str]]:
    whole = max(1, result.time_ps)
    cards = [
        ("predicted time", format_time(result.time_ps)),
        (f"{result.plan.scale}s", str(result.plan.units)),
    ]
    cards += [(f"{x.name}s", str(result.plan.instances(x.name))) for x in result.plan.levels]
    flops = result.flops
    if flops:
        cards.append(("rate", format_rate(flops / (whole * 1e-12), "FLOP/s")))
    cards += [(f"{name} busy", f"{result.use(name):.1%}") for name in result.busy]
    cards.append((result.exposed_name, format_time(round(result.exposed_ns * 1000))))
    cards.append(("events", f"{len(result.trace)}"))
    return cards


def _traffic(result: Result) -> list[tuple[str, str, str, str]]:
    """Every memory layer with its bytes, the busiest of its memories and its hits; then the busiest links."""
    layers = recorded(result.launch, operands=True).memory_bytes()
    moved = result.usage.bytes_on
    shares: dict[str, float] = {}
    served: dict[str, int] = {}
    for name, share in result.memories.items():
        layer = name.removeprefix("memory ").partition("[")[0]
        shares[layer] = max(shares.get(layer, 0.0), share)
        served[layer] = served.get(layer, 0) + moved[name]
    rows = []
    for layer in (*layers, *(name for name in result.traffic if name not in layers)):
        traffic = result.traffic.get(layer)
        hits = traffic.hit_text.removesuffix(" hits") if traffic is not None else ""
        through = traffic.read_bytes + traffic.written_bytes if traffic is not None and hits else 0
        nbytes = through or served.get(layer) or layers.get(layer, 0)
        busy = f"{shares[layer]:.1%}" if layer in shares else ""
        rows.append((f"{'cache' if hits else 'memory'} {layer}", format_bytes(nbytes), busy, hits))
    ranked = sorted(result.links.items(), key=lambda item: (-item[1], item[0]))
    rows += [(n.removeprefix("link "), format_bytes(moved[n]), f"{use:.1%}", "") for n, use in ranked[:8]]
    if len(ranked) > 8:
        rest = sum(moved[n] for n, _ in ranked[8:])
        rows.append((f"… {len(ranked) - 8} more links", format_bytes(rest), "", ""))
    return rows


def link_use(result: Result, bins: int = LINK_USE_BINS) -> list[LinkUse]:
    """Return the share of every span of time in which each link is busy; a transfer counts evenly over its
    time."""
    record = result.record
    rows = record.rows[record.rows[:, Recorded.path] != st.NONE]
    if not len(rows) or not result.time_ps:
        return []
    edges = np.linspace(0, result.time_ps, bins + 1)
    span = result.time_ps / bins
    busy: dict[Any, np.ndarray] = {}
    keys, inverse = np.unique(rows[:, [Recorded.path, Recorded.nbytes]], axis=0, return_inverse=True)
    inverse = inverse.ravel()
    order = np.argsort(inverse, kind="stable")
    cuts = np.searchsorted(inverse[order], np.arange(len(keys) + 1))
    for number, (path, nbytes) in enumerate(keys.tolist()):
        described = record.path(path)
        stages = [
            (stage.resource, ps)
            for stage, ps in zip(described.stages, described.stage_ps(nbytes)[1], strict=True)
            if isinstance(stage.resource, Link)
        ]
        if not stages:
            continue
        chosen = rows[order[cuts[number] : cuts[number + 1]]]
        start = chosen[:, Recorded.start, None] + result.begin_ps
        end = np.maximum(chosen[:, Recorded.end], chosen[:, Recorded.arrived])[:, None] + result.begin_ps
        done = np.clip((edges[None, :] - start) / np.maximum(1, end - start), 0, 1).sum(axis=0)
        share = np.diff(done) / span
        for key, ps in stages:
            busy[key] = busy.get(key, 0) + share * ps
    widths = record.launched.resources.fabric.widths
    return [
        LinkUse(key.network, key.owner or 0, key.number, np.minimum(1, use / widths[key]).tolist())
        for key, use in busy.items()
    ]


def _roofline(result: Result) -> Roofline:
    """Peaks of the engines and bandwidths of the memories that the plan's units have together."""
    flops, hda = result.flops, result.machine
    if not flops:
        return Roofline(note="Nothing was computed.")
    seconds = max(1, result.time_ps) * 1e-12
    used = {name for name, _ in result.flops_by.items()}
    dtypes = sorted({dtype for _, dtype in used})
    machine = hda.levels[-1].name
    peaks = {
        f"{kind} {dtype}": hda.throughput(machine, dtype, kind) * result.share_of_machine
        for kind, dtype in sorted(used)
    }
    memories, points = {}, {}
    for name, nbytes in recorded(result.launch, operands=True).memory_bytes().items():
        layer = hda.memory(name)
        count = hda.level(layer.level).total * result.share_of_machine
        memories[name] = layer.effective_bandwidth * max(1.0, count)
        behind = result.traffic.get(name)  # what caches before it left to it
        nbytes = behind.read_bytes + behind.written_bytes if behind is not None else nbytes
        if nbytes:
            points[f"{format_rate(flops / seconds, 'FLOP/s')} at {flops / nbytes:.3g} per byte of {name}"] = (
                flops / nbytes,
                flops / seconds,
            )
    done = format_rate(flops, "FLOP")
    note = f"{done} ({', '.join(dtypes)}); peaks and bandwidths are those of the units in use."
    if not points:
        note = f"{done}, but no memory traffic, so there is no intensity to plot."
    return Roofline(peaks, memories, points, note)


def _retiming(result: Result) -> Retiming:
    """Return the plan timed with every important figure at half to double."""
    ranked = [
        s.figure for s in sensitivity.sensitivities(result, seconds=SECONDS / 2) if s.time_ps != s.base_ps
    ]
    chosen = ranked[:MAX_SLIDERS]
    found: dict[str, list[int | None]] = {name: [] for name in chosen}
    values: dict[str, str] = {}
    for name, value, _, took in sensitivity.retimed(result, chosen, FACTORS, SECONDS / 2):
        values[name] = value
        found[name].append(took)
    times = {name: [t for t in each if t is not None] for name, each in found.items() if None not in each}
    lacking = found.keys() - times
    note = (
        "Each slider goes through simulated points (half, 0.7, 1.4 and double of one figure), between them "
        "on a logarithmic line; several sliders together multiply their effects, which is an estimate."
    )
    if lacking:
        note += f" No slider, as the plan does not fit there or time was short: {', '.join(sorted(lacking))}."
    if not times:
        note = "No figure of the machine changes this time by itself." + (note if lacking else "")
    return Retiming(FACTORS, times, values, note)
