"""The tables of docs/reference/kernbench-figures.md: KernBench's published PE-DMA times beside ours."""

from __future__ import annotations

from collections.abc import Mapping

import megatile as mt
from megatile.runtime.benches.probe import LARGE, SMALL, cases, transfer_ns

PUBLISHED = {
    "own memory": 77.0,
    "worst remote cube": 573.0,
    "remote SIP": 409.0,
    "hot target, issuers: 1": 82.0,
    "hot target, issuers: 2": 158.0,
    "hot target, issuers: 3": 230.0,
    "8 PEs over one link": 963.0,
    "8 PEs on PE 0's memory": 558.0,
    "128 PEs, each its own memory": 128 * LARGE / 27200,
    "128 PEs on PE 0's memory": 128 * LARGE / 134,
}
"""Nanoseconds; the last two are published as 27.2 TB/s and 134 GB/s of transfers of 16 KiB."""
STATED = {
    "cube.hbm.bandwidth": "2.048 TB/s",
    "cube.hbm.latency": "8 ns",
    "sip.cube_mesh.link.latency": "16 ns",
}
"""What KernBench says of its machine: 8 PEs × 8 channels × 32 GB/s, 8 ns in each port of a UCIe link; and the
latency that is left of 77 ns after 16 KiB at a PE's 256 GB/s and 5 ns of set-up."""
NEAR = 0.15
"""A ratio is called reproduced if it differs by at most this share."""


def measured(nbytes: int, settings: Mapping[str, str]) -> dict[str, float]:
    """Return the time of every case in nanoseconds, for loads of so many bytes on a variant of ``ahbm``."""
    with mt.host(mt.machine("ahbm", **settings)) as torch:
        return {name: transfer_ns(torch, loads, nbytes) for name, loads in cases(torch) if name in PUBLISHED}


def table(columns: Mapping[str, Mapping[str, float]], judged: str) -> str:
    """Return a table of times, each with its ratio to that of the own memory, and of one column a verdict."""
    heads = ["case", *columns, "ratio"]
    lines = [f"| {' | '.join(heads)} |", "|---|" + "---:|" * len(columns) + "---|"]
    first = "own memory"
    wanted = columns["KernBench"]
    for name in wanted:
        cells = [f"{each[name]:.0f} ns ({each[name] / each[first]:.2f})" for each in columns.values()]
        ratio = columns[judged][name] / columns[judged][first] / (wanted[name] / wanted[first])
        verdict = "reproduced" if abs(ratio - 1) <= NEAR else f"{ratio:.2f} × KernBench's"
        lines.append(f"| {name} | {' | '.join(cells)} | {verdict} |")
    return "\n".join(lines) + "\n"


def as_they_come() -> str:
    own = {f"`ahbm`, {size}": measured(size_bytes, {}) for size, size_bytes in SIZES.items()}
    return table({"KernBench": PUBLISHED, **own}, "`ahbm`, 16 KiB")


def with_stated_figures() -> str:
    columns = {"KernBench": PUBLISHED, "`ahbm` with its figures, 16 KiB": measured(LARGE, STATED)}
    return table(columns, "`ahbm` with its figures, 16 KiB")


SIZES = {"256 B": SMALL, "16 KiB": LARGE}
