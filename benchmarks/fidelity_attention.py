"""Predicted attention beside published measurements: the section of docs/fidelity.md.

Published speed-ups (TASP, arXiv 2509.26541) are averages and maxima; the lengths, heads and batches behind
them are not part of the figures used here. Ours are the maximum at any length, and figures over the lengths
of the command line's example and over a sweep, the same for both masks; how they depend on its ends is
printed too. Times that others measured of ring attention (zhuzilin/ring-flash-attention) test the model
without knowing those speed-ups.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import fidelity_attention_parts as parts
from harness import publish, sized
from megatile.attention.plans import Problem
from megatile.attention.predict import predict
from megatile.hda import machine

ALLOWED = 0.15
PER_DECADE = sized(24, 1)
ANY = (1_000, 1_000_000)
"""Gains fall towards both ends: starts of messages below, compute above."""
SWEEP = (8_000, 1_000_000)
ENDS = (
    ANY, (5_000, 500_000), (5_000, 1_000_000), (8_000, 500_000), SWEEP, (10_000, 500_000), (10_000, 1_000_000)
)  # fmt: skip
LENGTHS = sized((10_000, 20_000, 50_000, 100_000), (10_000, 20_000))
PAGE = Path(__file__).parents[1] / "docs" / "fidelity.md"
BEGIN, END = "<!-- attention: begin -->", "<!-- attention: end -->"
MI300X = {False: (1.57, 3.58), True: (1.68, 3.58)}
"""Published average and maximum on 8 x MI300X, by causal."""


@dataclass(frozen=True)
class Published:
    """Speed-up over the ring (full) or the zig-zag ring (causal) on machines that are only printed."""

    machine: str
    nodes: int
    schedule: str
    causal: bool
    average: float
    maximum: float | None = None

    @property
    def name(self) -> str:
        return f"{8 * self.nodes} x H100, {self.schedule}, {mask(self.causal)}"


H800 = {"networks.nvlink.bandwidth": "200 GB/s", "networks.nvlink.efficiency": "80 %"}
"""What differs from H100: ports of 160 GB/s (deepseek-ai/DeepSeek-V3 issue 28)."""
RING_FLASH = (
    ("8 x A100", "hgx-a100", {}, {"ring": 24.0, "zigzag": 38.2, "striped": 32.5}),
    ("8 x H800", "dgx-h100", H800, {"ring": 38.5, "zigzag": 63.0, "striped": 55.0}),
)
"""Forward passes per second: 65536 tokens, causal, 32 heads of 128, 8 for KV."""
PRINTED = (
    Published("dgx-h100", 1, "hamilton", False, 1.05, 2.31),
    Published("dgx-h100", 1, "hamilton", True, 1.08, 2.25),
    Published("h100-cluster", 2, "hamilton", False, 1.43),
    Published("h100-cluster", 2, "hamilton:8x2", False, 1.20),
    Published("h100-cluster", 4, "hamilton", False, 1.27),
    Published("h100-cluster", 4, "hamilton:8x4", False, 1.20),
)


@dataclass(frozen=True)
class Compared:
    """One figure of ours beside a published one."""

    name: str
    ours: float
    published: float
    unit: str = "x"
    scored: bool = False

    @property
    def error(self) -> float:
        return self.ours / self.published - 1


def mask(causal: bool) -> str:
    return "causal" if causal else "full"


@lru_cache(maxsize=512)
def gain(name: str, nodes: int, schedule: str, causal: bool, length: int) -> float:
    """The predicted speed-up at a length: 32 heads of 128, bf16, forward, batch 1."""
    hda = machine(name, nodes=nodes) if nodes > 1 else machine(name)
    base = "zigzag" if causal else "ring"
    found = predict(hda, Problem(length, causal=causal), schedules=[base, schedule], ranks=8 * nodes)
    return found.speedup(found.predictions[1])


def sweep(first: int, last: int) -> list[int]:
    """Lengths in equal steps of their logarithm, on a grid that does not depend on the ends."""
    grid = [round(5_000 * 10 ** (i / PER_DECADE)) for i in range(-PER_DECADE, 3 * PER_DECADE)]
    return [length for length in grid if 0.98 * first <= length <= 1.02 * last]


def gains(causal: bool, lengths: Sequence[int]) -> list[float]:
    return [gain("mi300x-8", 1, "hamilton", causal, length) for length in lengths]


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def rates(where: str, merge: str) -> dict[str, float]:
    """Passes per second of the schedules that ring-flash-attention measured, with merges of one kind."""
    name, changes, published = next(row[1:] for row in RING_FLASH if row[0] == where)
    problem = Problem(65_536, 32, 128, 8, causal=True)
    with parts.assumed(kernels={"merge": merge}):
        found = predict(machine(name, **changes), problem, schedules=list(published))
    return {p.schedule: 1e12 / p.time_ps for p in found.predictions}


def compare() -> Iterator[Compared]:
    for causal, (average, maximum) in MI300X.items():
        best, length = max(zip(gains(causal, sweep(*ANY)), sweep(*ANY), strict=True))
        name = f"8 x MI300X, {mask(causal)}, any length ({_short(length)}), maximum"
        yield Compared(name, best, maximum, scored=True)
        for lengths, what in ((LENGTHS, "10K to 100K"), (sweep(*SWEEP), "8K to 1M")):
            found = gains(causal, lengths)
            name = f"8 x MI300X, {mask(causal)}, {what}"
            yield Compared(f"{name}, maximum", max(found), maximum, scored=True)
            yield Compared(f"{name}, average", mean(found), average, scored=True)
    for where, _, _, published in RING_FLASH:
        for schedule, rate in rates(where, "ring-flash-attention").items():
            yield Compared(f"{where}, {schedule}, 65536 tokens", rate, published[schedule], "/s", True)
    for case in PRINTED:
        found = [gain(case.machine, case.nodes, case.schedule, case.causal, n) for n in LENGTHS]
        yield Compared(f"{case.name}, average", mean(found), case.average)
        if case.maximum is not None:
            yield Compared(f"{case.name}, maximum", max(found), case.maximum)


# -- the page ---------------------------------------------------------------------------------------


def section(rows: Sequence[Compared]) -> str:
    lengths = sweep(*ANY)
    curves = {mask(causal): list(zip(lengths, gains(causal, lengths), strict=True)) for causal in MI300X}
    parts.draw(curves, {mask(causal): figures for causal, figures in MI300X.items()})
    return TEXT.format(
        begin=BEGIN,
        end=END,
        table=_table(rows),
        ends=_ends(),
        lengths=_by_length(),
        steps=parts.steps_table(LENGTHS[0]),
        nics=parts.nic_table(LENGTHS[-1]),
        assumptions=parts.assumptions_table(LENGTHS, sweep(ANY[0], LENGTHS[1])),
        scripted=_scripted(),
    )


def _table(rows: Sequence[Compared]) -> str:
    lines = ["| figure | ours | published | difference | 15 % |", "|---|---:|---:|---:|---|"]
    for row in rows:
        verdict = "" if not row.scored else "within" if abs(row.error) <= ALLOWED else "**missed**"
        unit = row.unit if row.unit == "/s" else ""
        figures = f"{row.ours:.2f}{unit} | {row.published:.2f}{unit} | {row.error:+.0%}"
        lines.append(f"| {row.name} | {figures} | {verdict} |")
    return "\n".join(lines)


def _ends() -> str:
    lines = ["| lengths | full: maximum | average | causal: maximum | average |", "|---|---:|---:|---:|---:|"]
    for first, last in ENDS:
        cells = []
        for causal, (average, maximum) in MI300X.items():
            found = gains(causal, sweep(first, last))
            cells += [_beside(max(found), maximum), _beside(mean(found), average)]
        lines.append(f"| {_short(first)} to {_short(last)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _by_length() -> str:
    chosen = [n for i, n in enumerate(sweep(*ANY)) if i % 4 == 0]
    lines = [
        "| tokens | " + " | ".join(_short(n) for n in chosen) + " |",
        "|---|" + "---:|" * len(chosen),
    ]
    for causal in MI300X:
        lines.append(f"| {mask(causal)} | " + " | ".join(f"{x:.2f}" for x in gains(causal, chosen)) + " |")
    return "\n".join(lines)


def _scripted() -> str:
    """What the zig-zag rows would be, were ring-flash-attention's merge compiled into one kernel."""
    cells = []
    for where, _, _, published in RING_FLASH:
        rate = rates(where, "fused")["zigzag"]
        cells.append(f"{rate:.1f}/s ({rate / published['zigzag'] - 1:+.0%}) on {where}")
    return " and ".join(cells)


def _beside(ours: float, published: float) -> str:
    return f"{ours:.2f} ({ours / published - 1:+.0%})"


def _short(length: int) -> str:
    return f"{length / 1e6:g}M" if length >= 1_000_000 else f"{length / 1e3:.3g}K"


def write_page(rows: Sequence[Compared]) -> None:
    """Replace the attention part of the page, leaving others' parts as they are."""
    text = PAGE.read_text(encoding="utf-8") if PAGE.exists() else "# Fidelity\n\nMade by `make bench`.\n"
    made = section(rows)
    if BEGIN in text:
        head, _, rest = text.partition(BEGIN)
        text = head + made + rest.partition(END)[2]
    else:
        text = text.rstrip() + "\n\n" + made + "\n"
    publish(PAGE, text)


TEXT = """{begin}
## Attention

Speed-up of Hamilton attention over ring attention (full) and zig-zag ring attention (causal), beside TASP
(arXiv 2509.26541); published averages are good to about 10 %. The lengths, heads and batches behind them
are not part of the figures used here. Ours: 32 heads of 128, bf16, batch 1, forward. On 8 x MI300X the
maximum is that of any length (1K to 1M tokens, 24 lengths per decade); maximum and average are also taken
over 10K, 20K, 50K and 100K tokens and over 8K to 1M, elsewhere over the four lengths. Passes per second on
8 x A100 and 8 x H800 are those of zhuzilin/ring-flash-attention (32 heads, 8 for KV): the library whose
ring functions are TASP's baseline.

{table}

The rows of ring-flash-attention test kernels, merges and their overlap with messages on machines whose
constants know only single kernels, all-reduces and links. No constant was fitted to those of TASP. A maximum
belongs to the lengths it is taken over, and the published ones name none here; the one at any length depends
on no such choice (it was added when the other rows had been seen). The four lengths of the example miss it:
10K is past the peak (see the trend).

### The trend over the length, 8 x MI300X

![speed-up over length, predicted, with published averages and maxima](pictures/fidelity_attention.png)

{lengths}

Short sequences: starts of messages and fixed times of kernels count. Then the ring waits for its one link
and Hamilton does not, until compute hides the ring too (above 50K full, 100K causal). Steps come from waves
of work-groups that just do or do not fit the compute units. How the figures depend on the lengths that are
taken (in brackets: beside the published ones):

{ends}

### One step, byte by byte

{steps}

A ring's step lasts as long as its exchange, Hamilton's as long as its kernels: its exchange is six times
shorter. So the gain is that of an exchange of the ring over the kernels of a step. At 10K tokens a rank has
1250 queries, ten blocks of 128 for each of 32 heads: 320 work-groups for 304 units, two waves, the second
almost empty. This halves the rate of the full mask. With the causal mask half of the pairs remain; the
ring's step (one kernel over half of the keys) becomes shorter, but it waits anyway. Hamilton's ranks hold
chunks of earlier and of later ranks at once, which are two kernels and two merges per step.

### Several nodes

{nics}

A ring's step sends the whole KV of a rank through one NIC where it leaves a node: NCCL uses the NIC next to
the device, 46 to 49 GB/s. K_n sends 8/15 of it (two nodes) or 24/31 (four nodes) through every NIC, so it
cannot gain more than 1.9 or 1.3. The paths of (8-K8-8)^u send an eighth. At 100K tokens on two nodes the
kernels of a step last nearly as long as the ring's exchange: gains above 1.2 are for shorter sequences. The
published average of (8-K8-8)^u, below that of K_n, cannot be a matter of these bytes. The seed gives its
exchanges inside and between nodes tables of their own (two communication calls per step); what they cost
beside one another is not in the figures used here. As far as bytes tell, it is Hamilton's side that is too
fast in our prediction, not the ring's too slow.

### What each assumption does

Maximum and average over 10K, 20K, 50K and 100K tokens on 8 x MI300X, and the maximum at any length, with one
assumption changed:

{assumptions}

Waves matter most. How the measured programs merge is not in the figures used here: if as
ring-flash-attention does, whose functions are the baseline, that line is nearer to them than the first,
which is our engine. With larger batches there are more work-groups and the last wave counts less; so do
starts of messages and of kernels. Which batch the published maxima belong to is not in the figures used
here.

### What the model takes from where

Reasons and sources came first, whichever way the score then moved: kernels, merges and the slowest rank
moved the maxima on MI300X away from the published ones, the cache moved them back a little (it was added
after a first look at the score). Then the engine began to merge by one kernel instead of six, which moved
gains up: the maxima towards the published ones, the causal average at 10K to 100K, which was above its
published one, away from it.

* Links and starts of messages: the machine files. MI300X: 46.5 GB/s per xGMI link (TransferBench) and the
  start and step that were fitted to RCCL's all-reduce; H100: 393 GB/s per port; 48.5 GB/s per NIC.
* Kernels: the `kernels` section of the machine files, with sources; the fits to published
  tables of single kernels are in `benchmarks/fit_attention_kernels.py`. They are flash-attn 2 (on AMD its
  Composable Kernel backend), which the engine calls.
* Waves: a work-group takes 128 query rows. Composable Kernel keeps two on a compute unit, but two groups
  share the rate of their unit, so 320 groups on 304 units still last two groups' time; a group that is
  alone cannot be faster than the unit. Groups dispatched in order to 304 units, with a fixed 21 us each,
  give the lengths 1024 to 8192 of two libraries on MI300X to 3 %.
* Results are merged as the engine does it on GPUs: one kernel, 10 bytes of traffic per element (bf16), at
  the rate of the device's last cache where they fit (256 MiB on MI300X), else of its memory. The tests count
  launches, and the bytes in the compiled kernel. The first block of a rank is not merged; writing it as f32
  and rounding the result in the end are left out.
* The rows of ring-flash-attention are predicted with that library's merge: as written, 9 kernels and 38
  bytes. From its ring and zig-zag times alone one finds 52 bytes (H800) and 58 (A100). torch's script
  compiler may fuse these kernels; if it made one of them, of 10 bytes, the zig-zag rows would be
  {scripted}.
* Short kernels of a queue begin 2.1 us after one another on AMD (measured on MI210), 2.5 us on H100.
* Messages hold compute units while they travel: 8 per peer on MI300X (RCCL's source: 4 channels per xGMI
  peer, doubled on one node), 32 on NVIDIA machines (NCCL's logs).
* Every command of a plan is timed by its own rows and columns; ranks wait for each other's data only.

### What it leaves out

* The time of the host: where Python takes longer to issue a step than the device for its kernels, steps get
  a floor, for ring and Hamilton alike.
* Packing of chunks into messages and of chunks into the keys of one kernel.
* How compute and communication slow each other down in memory, and clocks that rise while a device waits.
* On 8 x H100 a ring already fills its switch port, so the model sees no gain there, and two kernels per
  causal step cost a little. Published gains must come from limits of single pairs of devices in the
  communication library. Link figures do not show them (393 GB/s for a pair, the whole port), NCCL's logs
  neither (32 channels per peer, as many as in all); sends between two devices on bridges reach about 70 %
  of a copy (nccl-tests issues 268 and 331), but no such run on a switch was found.
* Striped ring attention of ring-flash-attention shifts and slices its tensors at every step, ours does not.
{end}"""


if __name__ == "__main__":
    write_page(list(compare()))
