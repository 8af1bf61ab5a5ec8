"""Why attention takes as long as predicted: bytes and times of one step, other assumptions, and a picture."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from megatile.attention import kernel_times
from megatile.attention.plans import Divided, Problem
from megatile.attention.predict import Prediction, predict, predict_one
from megatile.attention.schedules import make_schedule
from megatile.attention.schedules.division import KernelCall
from megatile.hda import HDA, machine
from megatile.timing import attention_kernels
from megatile.timing.attention_kernels import MERGES, KernelTimes

TOKEN = 2 * 32 * 128 * 2
"""Bytes of K and V of one token: 32 heads of 128, bf16."""
NIC = 48.5e9
"""Bytes per second of one NIC (links.csv: 46-49 GB/s)."""
PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "fidelity_attention.png"


# -- one step on 8 x MI300X ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """Microseconds of one exchange and of the kernels that run beside it, for the rank with most to do."""

    link_bytes: int
    exchange: float
    groups: list[int]
    attention: float
    merge: float
    total: float

    @classmethod
    def of(cls, hda: HDA, problem: Problem, name: str) -> Step:
        found: Prediction = predict_one(hda, problem, name, 8)
        division = Divided(make_schedule(name, 8), problem).division
        times = KernelTimes.of(hda, problem.dtype)
        width = problem.heads * problem.batch
        most = (0.0, 0.0, [0])
        for rank in range(8):
            calls = [call for step in range(1, 8) for call in division.calls(step, rank)]
            attention = sum(times.attention(c.rows, _columns(times, c), width, 128) for c in calls)
            merge = sum(times.merge(c.rows, width, 128, 2) for c in calls)
            groups = [-(-c.rows // times.kernels.rows) * width for c in division.calls(1, rank)]
            most = max(most, (attention + merge, merge, groups))
        busy, merge, groups = most
        tokens = max(division.link_tokens(0).values())
        exchange = found.communication_ps / 7e6
        each = (busy - merge) / 7 * 1e6, merge / 7 * 1e6
        return cls(tokens * TOKEN, exchange, groups, *each, found.time_ps / 1e6)


def _columns(times: KernelTimes, call: KernelCall) -> float:
    return times.columns(call.rows, call.columns, call.pairs)


def steps_table(length: int) -> str:
    hda = machine("mi300x-8")
    cases = [(False, "ring"), (False, "hamilton"), (True, "zigzag"), (True, "hamilton")]
    found = [Step.of(hda, Problem(length, causal=causal), name) for causal, name in cases]
    rate = hda.network("xgmi").effective_bandwidth
    rows: list[tuple[str, Callable[[Step], str]]] = [
        ("bytes per link and exchange", lambda s: f"{s.link_bytes / 1e6:.2f} MB"),
        (f"on the wire at {rate / 1e9:.1f} GB/s", lambda s: f"{s.link_bytes / rate * 1e6:.0f} us"),
        ("an exchange, with its start", lambda s: f"{s.exchange:.0f} us"),
        ("work-groups of a step's kernels (304 units)", lambda s: " + ".join(map(str, s.groups))),
        ("attention of a step", lambda s: f"{s.attention:.0f} us"),
        ("merges of a step", lambda s: f"{s.merge:.0f} us"),
        ("the longer of exchange and kernels", lambda s: f"{max(s.exchange, s.attention + s.merge):.0f} us"),
        ("whole, predicted (7 exchanges, 8 steps)", lambda s: f"{s.total:.0f} us"),
    ]
    names = [f"{name}, {'causal' if causal else 'full'}" for causal, name in cases]
    lines = [f"| {length} tokens | " + " | ".join(names) + " |", "|---|" + "---:|" * len(names)]
    return "\n".join([*lines, *(f"| {name} | {' | '.join(map(show, found))} |" for name, show in rows)])


# -- several nodes --------------------------------------------------------------------------------------


def nic_table(length: int) -> str:
    """Bytes that the busiest NIC sends in an exchange, its time, and that of the kernels of a step."""
    lines = [
        f"| {length} tokens, full | through the busiest NIC | its time | kernels of a step |",
        "|---|---:|---:|---:|",
    ]
    problem = Problem(length)
    for nodes in (2, 4):
        ranks = 8 * nodes
        times = KernelTimes.of(machine("h100-cluster", nodes=nodes), "bf16")
        for name in ("ring", "hamilton", f"hamilton:8x{nodes}"):
            division = Divided(make_schedule(name, ranks), problem).division
            sent = [0] * ranks
            for (a, b), tokens in division.link_tokens(0).items():
                sent[a] += tokens if a // 8 != b // 8 else 0
            call = division.calls(1, 0)[0]
            kernels = times.attention(call.rows, _columns(times, call), 32, 128)
            kernels += times.merge(call.rows, 32, 128, 2)
            share = max(sent) * TOKEN
            lines.append(
                f"| {ranks} x H100, {name} | {share / 1e6:.1f} MB | {share / NIC * 1e6:.0f} us "
                f"| {kernels * 1e6:.0f} us |"
            )
    return "\n".join(lines)


# -- other assumptions ----------------------------------------------------------------------------------


@contextmanager
def assumed(
    kernels: dict[str, Any] | None = None, groups: Any = None, held: int | None = None
) -> Iterator[None]:
    """Other figures of the machine's ``kernels``, another time of attention kernels, or another number of
    units that messages hold, for a while."""
    figures = attention_kernels.kernels_of
    with ExitStack() as stack:
        stack.enter_context(
            patch.object(
                attention_kernels, "kernels_of", lambda hda: replace(figures(hda), **(kernels or {}))
            )
        )
        if groups is not None:
            stack.enter_context(patch.object(KernelTimes, "groups", groups))
        if held is not None:
            stack.enter_context(patch.object(kernel_times, "_units_held", lambda *_: held))
        yield


def even(
    self: KernelTimes, rows: int, columns: float, heads: int, dim: int, taken: int = 0, *_: Any
) -> float:
    """Attention that keeps all units busy to the end."""
    groups = rows / self.kernels.rows * heads / max(1, self.units - taken)
    flops = 4 * (dim + self.kernels.softmax) * self.kernels.rows * columns
    return groups * flops * self.units / (self.peak * self.kernels.share)


TORCH, RING_FLASH = MERGES["torch"], MERGES["ring-flash-attention"]
ASSUMPTIONS: tuple[tuple[str, dict[str, Any], int], ...] = (
    ("as predicted", {}, 1),
    ("no waves: work-groups divide evenly", {"groups": even}, 1),
    (f"merges by torch's {TORCH.kernels} kernels ({TORCH.traffic(2)} B)", {"kernels": {"merge": "torch"}}, 1),
    (
        f"merges as in ring-flash-attention ({RING_FLASH.kernels} kernels, {RING_FLASH.traffic(2)} B)",
        {"kernels": {"merge": "ring-flash-attention"}},
        1,
    ),
    ("5.5 us between kernels (the launch in the machine file)", {"kernels": {"interval_ps": 5_500_000}}, 1),
    ("messages hold no units", {"held": 0}, 1),
    ("the kernels of AITER (share 0.567, ramp 540)", {"kernels": {"share": 0.567, "ramp": 540}}, 1),
    ("batch 4", {}, 4),
    ("batch 16", {}, 16),
)


def assumptions_table(lengths: Sequence[int], around: Sequence[int]) -> str:
    """Speed-ups under one other assumption each: over some lengths, and the maximum around the peak."""
    lines = [
        "| assumption | full: maximum | average | any length | causal: maximum | average | any length |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, change, batch in ASSUMPTIONS:
        cells = []
        with assumed(**change):
            for causal, base in ((False, "ring"), (True, "zigzag")):
                found, near = (
                    [_speedup(base, Problem(n, causal=causal, batch=batch)) for n in several]
                    for several in (lengths, around)
                )
                values = max(found), sum(found) / len(found), max(*found, *near)
                cells += [f"{value:.2f}" for value in values]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _speedup(base: str, problem: Problem) -> float:
    found = predict("mi300x-8", problem, schedules=[base, "hamilton"])
    return found.speedup(found.predictions[1])


# -- the picture ----------------------------------------------------------------------------------------


def draw(curves: dict[str, list[tuple[int, float]]], published: dict[str, tuple[float, float]]) -> Path:
    """Speed-up over length for each mask, with the published average and maximum as lines."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 3.6))
    axes = figure.add_subplot()
    for number, (mask, points) in enumerate(curves.items()):
        colour = f"C{number}"
        axes.plot(*zip(*points, strict=True), ".-", color=colour, label=f"{mask}, predicted")
        average, maximum = published[mask]
        axes.axhline(average, color=colour, linestyle=":", label=f"{mask}, published average {average}")
        axes.axhline(maximum, color=colour, linestyle=(number * 5, (5, 5)), linewidth=1)
        axes.text(100_000, maximum + 0.06, f"published maximum {maximum}", fontsize=8)
    axes.set(xscale="log", xlabel="tokens", ylabel="Hamilton over ring", ylim=(0, 4))
    axes.set_title("8 x MI300X, 32 heads of 128, bf16, forward", fontsize=10)
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(PICTURE, dpi=110)
    return PICTURE
