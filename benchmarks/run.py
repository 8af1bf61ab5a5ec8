"""Run the benchmarks beside this file: ``python benchmarks/run.py [--only NAME] [--json FILE] [--smoke]``.

Prints one table per ``bench_*.py``. A missed bar is printed, not punished:
the exit code is 0 unless something crashes.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import sys
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from harness import Benchmark, Row, cells, table

HERE = Path(__file__).parent


@dataclass
class Outcome:
    """What a run collected: rows by file, and the names of the benchmarks that crashed."""

    rows: dict[str, list[Row]] = field(default_factory=dict)
    crashed: list[str] = field(default_factory=list)

    @property
    def missed(self) -> list[tuple[str, Row]]:
        return [(file, row) for file, rows in self.rows.items() for row in rows if row.ok is False]

    def as_json(self) -> dict[str, object]:
        rows = [
            {"file": file, **asdict(row), "ratio": row.ratio, "ok": row.ok}
            for file, rows in self.rows.items()
            for row in rows
        ]
        host = {"python": platform.python_version(), "system": platform.platform(), "cores": os.cpu_count()}
        return {"host": host, "rows": rows, "missed": len(self.missed), "crashed": self.crashed}


def benchmarks_in(path: Path) -> list[Benchmark]:
    """The benchmarks of one file, in the order they are written."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    # Registered as an import would: dataclasses and kernels look their module up.
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return [value for value in vars(module).values() if isinstance(value, Benchmark)]


def run_file(path: Path, only: Sequence[str], outcome: Outcome) -> None:
    """Run what `only` selects in one file and print its table."""
    try:
        found = benchmarks_in(path)
    except Exception:
        crash(path.stem, outcome)
        return
    chosen = [b for b in found if not only or any(o in path.stem or o in b.name for o in only)]
    if not chosen:
        return
    print(f"\n{path.stem.removeprefix('bench_')}", flush=True)
    rows = outcome.rows.setdefault(path.stem, [])
    for benchmark in chosen:
        run_benchmark(benchmark, path.stem, rows, outcome)
    if rows:
        print(table(rows), flush=True)


def run_benchmark(benchmark: Benchmark, file: str, rows: list[Row], outcome: Outcome) -> None:
    if missing := benchmark.missing():
        print(f"skipped {benchmark.name}: {', '.join(missing)} not installed")
        return
    try:
        rows.extend(benchmark.rows())
    except Exception:
        crash(f"{file}: {benchmark.name}", outcome)


def crash(name: str, outcome: Outcome) -> None:
    outcome.crashed.append(name)
    print(f"CRASHED {name}\n{traceback.format_exc()}", file=sys.stderr, flush=True)


def summary(outcome: Outcome) -> str:
    """The closing lines: how many bars were met, and which were not."""
    judged = [row for rows in outcome.rows.values() for row in rows if row.ok is not None]
    lines = [f"{len(judged) - len(outcome.missed)} of {len(judged)} bars met"]
    for file, row in outcome.missed:
        _, ours, _, ratio, bar, _ = cells(row)
        reached = f"ratio {ratio}" if row.bar and row.bar.on_ratio else ours
        lines.append(f"MISSED {file}: {row.name}: {reached}, bar {bar}")
    lines += [f"CRASHED {name}" for name in outcome.crashed]
    return "\n".join(lines)


def run(paths: Iterable[Path], only: Sequence[str] = ()) -> Outcome:
    outcome = Outcome()
    for path in sorted(paths):
        run_file(path, only, outcome)
    return outcome


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Measure megatile, beside rivals where there are any.")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="NAME",
        help="files and benchmarks whose name contains NAME; may be repeated",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to FILE too")
    parser.add_argument("--smoke", action="store_true", help="only show that all run: small sizes, no bars")
    parser.add_argument("--folder", type=Path, default=HERE, help="where the bench_*.py are")
    options = parser.parse_args(arguments)
    if options.smoke:
        os.environ["BENCH_SMOKE"] = "1"
    outcome = run(options.folder.glob("bench_*.py"), options.only)
    print(f"\n{summary(outcome)}")
    if options.json:
        options.json.write_text(json.dumps(outcome.as_json(), indent=2) + "\n", encoding="utf-8")
    return 1 if outcome.crashed else 0


if __name__ == "__main__":
    raise SystemExit(main())
