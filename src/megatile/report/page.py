"""One self-contained HTML page about a run: timeline, links, roofline, traffic, critical path, sliders.

The page is a template (``page.html``) and one JSON object; nothing is loaded from elsewhere. This module
makes the parts that follow from a Trace; what a simulation adds (links, roofline, re-timing) is passed in.
"""

from __future__ import annotations

import base64
import json
import math
import re
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from megatile.core.errors import MegatileError
from megatile.core.files import is_folder, is_inside, read_file, write_text
from megatile.core.frames import recorded_source
from megatile.core.operations import spoken_operation
from megatile.core.quantities import format_time
from megatile.hda import HDA
from megatile.report.palette import operation_colour
from megatile.trace import Trace, critical_groups
from megatile.trace.critical import critical_events
from megatile.trace.exposure import WAITING, engine_kind
from megatile.trace.lanes import rows_of

MAX_EVENTS = 1_000_000
"""Events in a report; whole rows are left out above it."""
MAX_LINKS = 1500
"""Links of a network that are drawn, the busiest ones."""
MAX_NETWORKS = 12
"""Networks that are drawn, the busiest ones."""
MAX_UNITS = 200
"""Up to so many instances have rows of their own; beyond, those of one hardware unit share its rows."""
MAX_ALIKE = 8
"""Of more units that do the same, the slowest one is shown for all."""
MAX_DRAWN = 256
"""Endpoints up to which the links that carried nothing are drawn too."""
_SOURCE_LIMIT = 1 << 20
"""Bytes of a source file that are read."""
_AROUND = 3
"""Lines of a source shown before and after one that the critical path goes through."""


@dataclass(frozen=True)
class LinkUse:
    """The use of one link: which network and its instance, the ends, and the share busy per span of time."""

    network: str
    owner: int
    link: int
    use: Sequence[float]


@dataclass(frozen=True)
class Roofline:
    """Peaks (operations/s), memories (bytes/s), and points: (operations per byte, operations/s)."""

    peaks: Mapping[str, float] = field(default_factory=dict)
    memories: Mapping[str, float] = field(default_factory=dict)
    points: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True)
class Retiming:
    """How long the same plan takes with one figure of the machine multiplied, by name."""

    factors: Sequence[float]
    times_ps: Mapping[str, Sequence[int]]
    values: Mapping[str, str]
    note: str = ""


NO_RETIMING = Retiming((), {}, {}, "Nothing was re-timed for this page.")


def page(
    trace: Trace,
    *,
    title: str,
    hda: HDA | None = None,
    cards: Sequence[tuple[str, str]] = (),
    verdict: str = "",
    links: Sequence[LinkUse] = (),
    roofline: Roofline | None = None,
    traffic: Sequence[Sequence[str]] = (),
    retiming: Retiming = NO_RETIMING,
    texts: Sequence[tuple[str, str]] = (),
    sources: str | Path | None = None,
) -> str:
    """Return the page as text; ``traffic`` has rows (what, bytes, busy, hits), ``texts`` pairs (title, text).

    Lines of a file are shown if this process read the program from it, or if it lies in folder ``sources``.
    """
    roof = roofline or Roofline()
    data = {
        "title": title,
        "time_ps": trace.end_ps,
        "cards": [list(map(str, card)) for card in cards],
        "verdict": verdict,
        "timeline": _timeline(trace),
        "networks": _networks(hda, links) if hda is not None else [],
        "roofline": {
            "peaks": [{"name": n, "rate": r} for n, r in roof.peaks.items() if r > 0],
            "memories": [{"name": n, "rate": r} for n, r in roof.memories.items() if r > 0],
            "points": [
                {"name": n, "intensity": i, "rate": r} for n, (i, r) in roof.points.items() if i > 0 and r > 0
            ],
            "note": roof.note,
        },
        "traffic": [list(map(str, row)) for row in traffic],
        "critical": [
            [
                spoken_operation(operation),
                engine,
                str(steps),
                format_time(spent),
                f"{share:.1%}",
                Path(source).name,
            ]
            for operation, engine, source, steps, spent, share in critical_groups(trace)[:40]
        ],
        "sources": _sources(trace, sources),
        "sensitivity": {
            "factors": list(retiming.factors),
            "parameters": [
                {"name": n, "value": retiming.values.get(n, ""), "times": list(map(int, times))}
                for n, times in retiming.times_ps.items()
            ],
            "note": retiming.note,
        },
        "texts": [list(pair) for pair in texts],
    }
    # "</script>" or "<!--" in a name or source line must not end the block that holds the data.
    packed = json.dumps(data, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
    template = files("megatile.report").joinpath("page.html").read_text(encoding="utf-8")
    return template.replace("/*DATA*/", packed)


def check_page(path: str | Path, sources: str | Path | None = None) -> None:
    """Refuse a name that is not a page's, or sources that are no folder, before a long run is made for it."""
    if Path(path).suffix.lower() not in (".html", ".htm"):
        raise MegatileError(
            f"a report is a page: '{path}' does not end in .html", advice="report('out.html')"
        )
    if sources is not None and not is_folder(sources):
        raise MegatileError(f"there is no folder '{sources}'", advice="name the folder of the sources")


def write_page(path: str | Path, text: str) -> Path:
    """Write the page, whole or not at all."""
    check_page(path)
    write_text(path, text, MegatileError)
    return Path(path)


# the timeline


def _together(trace: Trace) -> Trace:
    """Return a trace whose many instances (``gpu0/sm3/block1700``) stand in the rows of their hardware
    unit."""
    if len(trace.units) <= MAX_UNITS:
        return trace
    names = [name.rpartition("/")[0] or name for name in trace.units]
    units = dict.fromkeys(names)
    if len(units) == len(names):
        return trace
    number = {name: i for i, name in enumerate(sorted(units, key=_natural))}
    places = np.array([number[name] for name in names], dtype=np.int64)
    columns = {**trace.columns, "unit": places[trace.columns["unit"]]}
    return replace(trace, units=tuple(number), columns=columns)


def _without_repeated_waits(trace: Trace) -> np.ndarray:
    """Return the events, of those that wait for the same thing at the same time on one unit only the
    first."""
    waits = np.array([engine_kind(name) in WAITING for name in trace.engines], dtype=bool)
    waiting = waits[trace.columns["engine"]]
    at = np.flatnonzero(waiting)
    same = [trace.columns[name][at] for name in ("unit", "engine", "operation", "start_ps", "end_ps")]
    _, first = np.unique(np.stack(same), axis=1, return_index=True)
    return np.sort(np.concatenate([np.flatnonzero(~waiting), at[first]]))


def _part(trace: Trace, kept: np.ndarray) -> Trace:
    """Return some events of a trace, without what leads from one to another."""
    if len(kept) == len(trace):
        return trace
    columns = {name: column[kept] for name, column in trace.columns.items()}
    columns["cause"] = np.full(len(kept), -1, dtype=np.int64)
    return replace(trace, columns=columns, flows=np.zeros((0, 2), dtype=np.int64), counters=())


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a sort key that puts ``sm2`` before ``sm10``."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def _timeline(alone: Trace) -> dict[str, Any]:
    trace = _together(alone)
    kept = np.arange(len(trace)) if trace is alone else _without_repeated_waits(trace)
    row = np.full(len(trace), -1, dtype=np.int64)
    every, row[kept] = rows_of(_part(trace, kept))
    critical = np.zeros(len(trace), dtype=np.uint8)
    critical[critical_events(trace)] = 1
    order = kept[np.lexsort((trace.columns["start_ps"][kept], row[kept]))]
    left_out = ""
    if len(order) > MAX_EVENTS:
        cut = int(row[order[MAX_EVENTS]])
        order = order[row[order] < cut]
        left_out = (
            f"{len(order)} of {len(trace)} events are here, those of {cut} of {len(every)} rows; "
            "write_trace keeps all of them."
        )
    waiting = np.array([r.waiting for r in every], dtype=bool)
    place = np.full(len(trace) + 1, -1, dtype=np.int64)
    place[order] = np.arange(len(order))
    columns = {name: trace.columns[name][order] for name in trace.columns}
    packed = {
        "start": columns["start_ps"].astype(np.float64),
        "length": (columns["end_ps"] - columns["start_ps"]).astype(np.float64),
        "bytes": columns["bytes"].astype(np.float64),
        "cause": place[columns["cause"]].astype(np.int32),
        "row": row[order].astype(np.int32),
        "critical": critical[order],
        "instance": alone.columns["unit"][order].astype(np.int32),
        **{name: columns[name].astype(np.int32) for name in ("operation", "source", "operand")},
    }
    return {
        "units": list(trace.units),
        "shown": _shown_for(trace, kept, critical),
        "colours": [operation_colour(name) for name in trace.operations],
        "instances": list(alone.units),
        "operations": [spoken_operation(name) for name in trace.operations],
        "sources": list(trace.sources),
        "operands": list(trace.operands),
        "rows": [{"unit": r.unit, "kind": r.kind, "name": r.name, "waiting": r.waiting} for r in every],
        "columns": {name: _packed(values) for name, values in packed.items()},
        "left_out": left_out,
        "working": np.unique(columns["operation"][~waiting[row[order]]]).tolist() if len(order) else [],
    }


def _shown_for(trace: Trace, kept: np.ndarray, critical: np.ndarray) -> list[list[int]]:
    """For each unit which one is shown for it, and for how many that one is shown.

    Units are alike if their engines run the same operations of the same lines in the same order. The one on
    the critical path is shown for them, else the one that ends last.
    """
    unit, engine, start, end = (
        trace.columns[name][kept] for name in ("unit", "engine", "start_ps", "end_ps")
    )
    order = np.lexsort((start, engine, unit))
    does = np.stack([engine, trace.columns["operation"][kept], trace.columns["source"][kept]], axis=1)[order]
    cuts = np.searchsorted(unit[order], np.arange(len(trace.units) + 1))
    last, leads = np.zeros(len(trace.units), np.int64), np.zeros(len(trace.units), np.int64)
    np.maximum.at(last, unit, end)
    np.maximum.at(leads, unit, critical[kept])
    alike: dict[bytes, list[int]] = {}
    for number in range(len(trace.units)):
        alike.setdefault(does[cuts[number] : cuts[number + 1]].tobytes(), []).append(number)
    shown = [[number, 1] for number in range(len(trace.units))]
    for same in alike.values():
        if len(same) > MAX_ALIKE:
            first = max(same, key=lambda number: (leads[number], last[number]))
            for number in same:
                shown[number] = [first, len(same)]
    return shown


def _packed(values: np.ndarray) -> str:
    little = values.astype(values.dtype.newbyteorder("<"), copy=False)
    return base64.b64encode(zlib.compress(little.tobytes(), 6)).decode("ascii")


# source lines


def _sources(trace: Trace, folder: str | Path | None) -> list[dict[str, Any]]:
    """Return the files that the critical path goes through, with the share of every line."""
    shares: dict[str, dict[int, float]] = {}
    for *_, source, _, _, share in critical_groups(trace):
        file, _, line = source.rpartition(":")
        if file and line.isdecimal() and len(line) < 10:
            lines = shares.setdefault(file, {})
            lines[int(line)] = lines.get(int(line), 0.0) + share
    found = []
    for file, lines in sorted(shares.items(), key=lambda item: -sum(item[1].values()))[:4]:
        text = _lines(file, folder)
        shown = sorted(
            {n for line in lines for n in range(line - _AROUND, line + _AROUND + 1) if 1 <= n <= len(text)}
            | set(lines)
        )
        found.append(
            {
                "name": Path(file).name,
                "lines": [[n, text[n - 1] if 1 <= n <= len(text) else "", lines.get(n, 0)] for n in shown],
            }
        )
    return found


def _lines(file: str, folder: str | Path | None) -> list[str]:
    """Return the lines of a source that may be shown, else none: a plan or trace can name any file."""
    known = recorded_source(file)
    if known is not None:
        return [line.rstrip("\n") for line in known]
    if folder is None:
        return []
    for path in (Path(folder, file), Path(file)):  # a relative name is meant from the folder, or from here
        if is_inside(path, folder):
            with suppress(MegatileError):  # there is none, or it is too large
                return read_file(path, _SOURCE_LIMIT).decode("utf-8", "replace").splitlines()
    return []


# networks


def _networks(hda: HDA, links: Sequence[LinkUse]) -> list[dict[str, Any]]:
    """Return every network instance that carried something, the busiest first."""
    groups: dict[tuple[str, int], list[LinkUse]] = {}
    for use in links:
        groups.setdefault((use.network, use.owner), []).append(use)
    ranked = sorted(groups.items(), key=lambda item: -sum(float(np.mean(u.use)) for u in item[1]))
    found = []
    for (name, owner), uses in ranked[:MAX_NETWORKS]:
        network = hda.network(name)
        drawn, nodes = _nodes(network.topology, uses)
        several = hda.level(network.level).total > 1
        note = f"{len(uses)} links of {name} carried data"
        if len(drawn) < len(uses):
            note += f"; the {len(drawn)} busiest are drawn"
        if len(ranked) > MAX_NETWORKS:
            note += f"; {len(ranked) - MAX_NETWORKS} more networks are not shown"
        found.append(
            {
                "name": f"{name} in {network.level} {owner}" if several else name,
                "bins": len(uses[0].use),
                "nodes": nodes,
                "links": drawn,
                "note": note + ".",
            }
        )
    return found


def _nodes(topology: Any, uses: list[LinkUse]) -> tuple[list[Any], list[Any]]:
    """Return links as [from, to, name, mean, use] and nodes as [x, y, name], in a field of 400 by 300."""
    busiest = sorted(uses, key=lambda u: -float(np.mean(u.use)))[:MAX_LINKS]
    names: dict[str, int] = {}
    links = []
    used = {u.link for u in busiest}
    idle = dict.fromkeys(
        link
        for a in range(topology.size if topology.size <= MAX_DRAWN else 0)
        for b in list(topology.neighbors(a)[:8])
        for link in topology.hops(a, b)
    )
    blank = [0.0] * len(uses[0].use)
    for link, use in [(u.link, list(u.use)) for u in busiest] + [(n, blank) for n in idle if n not in used]:
        a, b = topology.ends(link)
        ends = [names.setdefault(str(end), len(names)) for end in (a, b)]
        links.append([*ends, f"{a} → {b}", round(float(np.mean(use)), 4), [round(float(u), 3) for u in use]])
    return links, [[*_position(topology, name, list(names)), name] for name in names]


def _position(topology: Any, name: str, names: list[str]) -> tuple[float, float]:
    digits = "".join(c for c in name if c.isdecimal())
    endpoint = name.isdecimal() and int(name) < topology.size
    if len(topology.dims) >= 2 and endpoint:
        coords = topology.coords(int(name))
        width, height = topology.dims[0], math.prod(topology.dims[1:])
        y = coords[1] + sum(c * math.prod(topology.dims[1 : i + 2]) for i, c in enumerate(coords[2:]))
        return 400 * (coords[0] + 0.5) / width, 300 * (y + 0.5) / height
    if endpoint:
        angle = 2 * math.pi * int(name) / topology.size - math.pi / 2
        return 200 + 185 * math.cos(angle), 150 + 138 * math.sin(angle)
    inner = [n for n in names if not (n.isdecimal() and int(n) < topology.size)]
    if len(inner) == 1:
        return 200.0, 150.0
    angle = 2 * math.pi * (inner.index(name) / len(inner)) + 0.1 * len(digits)
    return 200 + 70 * math.cos(angle), 150 + 52 * math.sin(angle)
