"""Compare the speed of two checkouts: ``python benchmarks/compare_commits.py BEFORE AFTER [--runs 10]``.

Each checkout runs its own ``bench_*.py`` in processes that take turns; a row counts with the least processor
time of all its runs, so that what else the machine does matters little. Rows are compared by name; rivals and
rows of memory are left out. ``--without-gateways`` leaves gateways out of machines, which commits before them
do not know: then both simulate the same routes.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

UNITS = ("s", "messages/s", "transfers/s")
FILES = ("sim", "session", "host", "programs")
CHILD = """
import json, sys, time
time.perf_counter = time.process_time
sys.path[:0] = [sys.argv[1] + "/src", sys.argv[1] + "/benchmarks"]
import harness
from pathlib import Path
harness.peak_memory = lambda function: 0
from run import benchmarks_in
found = benchmarks_in(Path(sys.argv[1]) / "benchmarks" / f"bench_{sys.argv[2]}.py")
module, no_rival = sys.modules[f"bench_{sys.argv[2]}"], lambda *given: 0
for name, value in list(vars(module).items()):
    if name == "same" or name.endswith("_in_simpy") or getattr(value, "__module__", "") == "simpy_models":
        setattr(module, name, no_rival)
if sys.argv[4:] and hasattr(module, "machine"):
    find_machine = module.machine
    def machine(name):
        for network in (found := find_machine(name)).networks:
            if hasattr(network, "gateway"):
                object.__setattr__(network, "gateway", None)
        return found
    module.machine = machine
rows = [r for b in found if "fidelity" not in b.name and not b.missing() for r in b.rows()]
Path(sys.argv[3]).write_text(json.dumps([(r.name, r.ours, r.unit) for r in rows]))
"""
"""What a process does: the rows of one file of a checkout, in seconds of the processor, into a file."""
RENAMED = {
    "simulate each of its 2048 blocks (time of the processor)": (
        "simulate each of its blocks (time of the processor)"
    ),
    "256 PEs x 64 KiB with data": "256 PEs x 65536 B with data",
    "a million events to Perfetto JSON": "1_000_000 events to Perfetto JSON",
}
"""Rows that had another name."""


def measured(checkout: Path, file: str, *options: str) -> dict[str, float]:
    """Return seconds (or seconds for one of what a rate counts) by row of one file."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    with TemporaryDirectory() as folder:
        into = Path(folder) / "rows.json"
        command = [sys.executable, "-c", CHILD, str(checkout.resolve()), file, str(into), *options]
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        rows = json.loads(into.read_text())
    seconds = [(name, ours if unit == "s" else 1 / ours) for name, ours, unit in rows if unit in UNITS]
    return {RENAMED.get(name, name): taken for name, taken in seconds}


def compare(before: Path, after: Path, files: Sequence[str], runs: int, *options: str) -> list[str]:
    """Return a line per row, and the geometric mean of all ratios."""
    lines, ratios = [], []
    for file in files:
        best: tuple[dict[str, float], dict[str, float]] = ({}, {})
        for _ in range(runs):
            for found, checkout in zip(best, (before, after), strict=True):
                for name, taken in measured(checkout, file, *options).items():
                    found[name] = min(taken, found.get(name, math.inf))
        for name in best[0].keys() & best[1].keys():
            ratios.append(best[1][name] / best[0][name])
        for name, taken in best[1].items():
            ratio = f"{taken / best[0][name]:.3f}" if name in best[0] else "new"
            was = f"{best[0].get(name, 0):.4g}"
            lines.append(f"{file:9} {ratio:>6} {was:>9} {taken:9.4g} s  {name}")
    mean = math.exp(sum(map(math.log, ratios)) / max(1, len(ratios)))
    return [*lines, f"{'all':9} {mean:6.3f} (geometric mean of {len(ratios)} rows, {runs} runs each)"]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compare the speed of two checkouts, row by row.")
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--file", action="append", metavar="NAME", help=f"default: {', '.join(FILES)}")
    parser.add_argument("--runs", type=int, default=10, help="processes for each file and checkout")
    parser.add_argument("--without-gateways", action="store_true", help="the same routes in both")
    options = parser.parse_args(arguments)
    chosen, how = options.file or FILES, ["without gateways"] * options.without_gateways
    print("\n".join(compare(options.before, options.after, chosen, options.runs, *how)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
