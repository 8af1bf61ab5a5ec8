"""Fit the protocol constants of the machine files: ``python benchmarks/fit_protocol.py [--write]``.

Only the rows at ``fit_sizes(machine)`` are read. Three sizes cannot tell five constants apart, so each has a
prior: the figure with which NCCL or RCCL model themselves (``src/graph/tuning.cc``), or of the machine file.
The fit minimises, by a pattern search on the planner's own predictions,

    sum over rows (ln(predicted / measured) / 5 %)² + sum over constants (ln(constant / prior) / ln 2)²

and rounds to three digits. A constant that no fitted row depends on keeps its prior.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

from fidelity_collectives import FITTED, Measured, fit_rows, fit_sizes, hda_of
from megatile.collectives.algorithms import algorithms
from megatile.collectives.candidates import Candidate
from megatile.collectives.libraries import offered, reason_against
from megatile.collectives.planner import make_job
from megatile.collectives.ranking import on_transport, plan_of, variants
from megatile.sim import simulate
from megatile.timing.library import costs, paths
from megatile.timing.transports import head_cost, launch_floor_ps

ROW_SPREAD, PRIOR_SPREAD = 0.05, math.log(2)
NCCL, RCCL = "NCCL tuning.cc", "RCCL tuning.cc"
PRIORS: dict[str, dict[str, tuple[float, str]]] = {
    "dgx-h100": {
        "start": (6.6, f"{NCCL}: base latency, LL ring"),
        "small_step": (0.6, f"{NCCL}: NVLink, LL ring"),
        "step": (3.4, f"{NCCL}: NVLink, Simple ring"),
        "switch_step": (25, f"{NCCL}: NVLS"),
        "switch_share": (83.3, f"{NCCL}: 5/6 for NVLS"),
    },
    "h100-cluster": {"far_step": (4.4, f"{NCCL}: network 5.0, less NVLink 0.6, LL tree")},
    "hgx-a100": {
        "start": (6.6, f"{NCCL}: base latency, LL ring"),
        "small_step": (0.6, f"{NCCL}: NVLink, LL ring"),
        "step": (3.4, f"{NCCL}: NVLink, Simple ring"),
        "share": (85.8, f"{NCCL}: at most 235 GB/s on A100, of 274"),
    },
    "mi300x-8": {
        "launch": (5.5, "the machine file's own launch stations"),
        "start": (12, f"{RCCL}: base latency, LL ring"),
        "small_step": (0.8, f"{RCCL}: LL ring"),
        "step": (3.6, f"{RCCL}: Simple ring"),
        "share": (99, "the machine file's link efficiency is measured already"),
    },
}
MACHINES = Path(__file__).parent.parent / "src" / "megatile" / "hda" / "machines"


def text(name: str, value: float) -> str:
    return f"{value:.3g} {'%' if name.endswith('share') else 'us'}"


def rounded(values: dict[str, float]) -> dict[str, float]:
    return {name: float(f"{value:.3g}") for name, value in values.items()}


class Way:
    """One algorithm on one path for one row; what it simulates depends on few constants and is remembered."""

    def __init__(self, job: Any, candidate: Any, hda: Any, library: str):
        self.candidate = candidate
        self.job, self.plan = job, on_transport(plan_of(candidate, job), candidate, job, hda, library)
        self.known: dict[tuple[float, ...], int] = {}

    def total_ps(self, hda: Any, launch: bool) -> int:
        paid, transport = costs(hda, self.candidate.path, self.candidate.algorithm), self.plan.transports[0]
        head = head_cost(hda, transport, self.job.operation, self.job.ranks, self.job.nbytes)
        key = (paid.step_ps, paid.far_step_ps, paid.share)
        if key not in self.known:
            asked = {"machine": hda, "launch": False, "record": False}
            found = simulate(self.plan, **asked, capacity=False).time_ps  # libraries send in small slots
            self.known[key] = found - head
        return max(launch_floor_ps(hda, transport) if launch else 0, head + self.known[key])


def ways_of(row: Measured, hda: Any) -> list[Way]:
    """The candidates of a row, without those that are hopeless (four times the best) with the priors."""
    job, _ = make_job(row.operation, machine=hda, nbytes=row.size, in_place=True)
    library, captured = row.setting.library, not row.setting.launch
    known = [algorithms()[name] for name in offered(library, row.operation)]
    ways = [
        Way(job, Candidate(one.name, tuple(sorted(options.items())), path), hda, library)
        for one in known
        if one.reason_against(job) is None
        for options in variants(one, job, hda.library.ring_piece)
        for path in paths(hda, one.path, algorithm=one.name)
        if reason_against(library, one.name, path, job, captured) is None
    ]
    best = min(way.total_ps(hda, False) for way in ways)
    return [way for way in ways if way.total_ps(hda, False) <= 4 * best]


def misfit(machine: str, base: dict[str, float]) -> Callable[[dict[str, float]], float]:
    """What the fit minimises, of the machine's own constants; ``base`` are those of the file it extends.

    A row's prediction is the planner's: the fastest of what the library offers, simulated.
    """
    rows, priors = fit_rows(machine), PRIORS[machine]

    def of(constants: dict[str, float]) -> Any:
        overrides = {f"protocol.{n}": text(n, v) for n, v in {**base, **constants}.items()}
        return hda_of(rows[0].setting, **overrides)

    first = of({n: prior for n, (prior, _) in priors.items()})
    ways = {row: ways_of(row, first) for row in rows}

    @cache
    def value(constants: tuple[tuple[str, float], ...]) -> float:
        if any(v > 100 for name, v in constants if name.endswith("share")):
            return math.inf
        hda = of(dict(constants))
        total = sum((math.log(v / priors[n][0]) / PRIOR_SPREAD) ** 2 for n, v in constants)
        for row in rows:
            us = min(way.total_ps(hda, row.setting.launch) for way in ways[row]) / 1e6
            total += (math.log(us / row.us) / ROW_SPREAD) ** 2
        return total

    return lambda constants: value(tuple(constants.items()))


def search(value: Callable[[dict[str, float]], float], start: dict[str, float]) -> dict[str, float]:
    """Pattern search in ever smaller ratios, along single constants and along pairs of them."""
    best = rounded(start)
    alone = [{name: sign} for name in best for sign in (1, -1)]
    pairs = [{a: 1, b: sign} for a, b in combinations(best, 2) for sign in (1, -1)]
    moves = [*alone, *pairs, *({n: -sign for n, sign in pair.items()} for pair in pairs)]
    for ratio in (1.2, 1.06, 1.02, 1.01):
        moved = True
        while moved:
            moved = False
            for move in moves:
                tried = rounded({n: v * ratio ** move.get(n, 0) for n, v in best.items()})
                if value(tried) < value(best) - 1e-9:
                    best, moved = tried, True
    return best


def begin(machine: str) -> dict[str, float]:
    """Where the search begins: the priors, but a launch that shows (it hides behind longer kernels)."""
    start = {name: prior for name, (prior, _) in PRIORS[machine].items()}
    return start | ({"launch": fit_rows(machine)[0].us} if "launch" in start else {})


def fit() -> dict[str, dict[str, float]]:
    """Constants by machine file."""
    found: dict[str, dict[str, float]] = {}
    for machine in FITTED:
        base = found["dgx-h100"] if machine == "h100-cluster" else {}
        found[machine] = search(misfit(machine, base), begin(machine))
        print(machine, fit_sizes(machine), found[machine], flush=True)
    return found


def priors_of(machine: str) -> dict[str, str]:
    """The priors as overrides of a machine file: what is predicted for a machine that nobody measured."""
    inherited = PRIORS["dgx-h100"] if machine == "h100-cluster" else {}
    priors = {**inherited, **PRIORS[machine]}
    return {f"protocol.{name}": text(name, prior) for name, (prior, _) in priors.items()}


def in_files() -> dict[str, dict[str, float]]:
    """The constants that the machine files have of their own."""
    found = {}
    for machine in FITTED:
        section = (MACHINES / f"{machine}.yaml").read_text(encoding="utf-8").partition("\nprotocol: {")[2]
        pairs = re.findall(r"(\w+): ([\d.]+) (?:us|%)", section.partition("source:")[0])
        found[machine] = {name: float(value) for name, value in pairs}
    return found


def write(found: dict[str, dict[str, float]]) -> None:
    """Put fitted constants into the machine files."""
    for machine, constants in found.items():
        path = MACHINES / f"{machine}.yaml"
        head, _, old = path.read_text(encoding="utf-8").partition("\nprotocol: {")
        sizes = ", ".join(str(s) for s in fit_sizes(machine))
        source = f"benchmarks/fit_protocol.py on {' and '.join(FITTED[machine])} at {sizes} B"
        values = ", ".join(f"{n}: {text(n, v)}" for n, v in constants.items())
        rest = old.partition("}\n")[2]
        path.write_text(f"{head}\nprotocol: {{{values},\n  source: '{source}'}}\n{rest}", encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Fit the protocol constants of the machine files.")
    parser.add_argument("--write", action="store_true", help="put them into the machine files")
    result = fit()
    if parser.parse_args().write:
        write(result)
    print("the machine files have these" if in_files() == result else "the machine files have others")
