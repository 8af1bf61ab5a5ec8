"""What benchmark files are written with.

    from harness import Row, at_most, bench, best_of, growth, ratio_at_most

    @bench("machines")
    def loading() -> Iterator[Row]:
        yield Row("load dgx-h100", best_of(lambda: machine("dgx-h100")), "s", bar=at_most(0.050))
        yield from growth("routes", lambda n: best_of(lambda: route(n)), 1_000, "s", bar=ratio_at_most(12))

A row is one figure of ours, beside a rival's where there is one. ``ratio`` is always ours / rival.

With ``BENCH_SMOKE=1`` (``run.py --smoke``) benchmarks only show that they run: every measurement is one run,
``sized(full, small)`` is the small value, bars are not judged and no page is written.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import math
import os
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def smoke() -> bool:
    """Return whether benchmarks only show that they run. Child processes see it too."""
    return os.environ.get("BENCH_SMOKE") == "1"


def sized(full: T, small: T) -> T:
    """Return the size to measure at: ``small`` in a smoke run."""
    return small if smoke() else full


DOCS = Path(__file__).parent.parent / "docs"
ACCURACY = DOCS / "fidelity.md"


def publish(page: Path, text: str) -> None:
    """Write a page of the documentation; not in a smoke run."""
    if not smoke():
        page.write_text(text, encoding="utf-8")


def publish_section(name: str, text: str) -> None:
    """Replace one section of the accuracy page, between its marks."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    page = ACCURACY.read_text(encoding="utf-8")
    before, (_, _, after) = page.partition(begin)[0], page.partition(end)
    publish(ACCURACY, f"{before}{begin}\n{text.strip()}\n{end}{after}")


def shown_section(name: str) -> str:
    """Return a section of the accuracy page as it is now."""
    page = ACCURACY.read_text(encoding="utf-8")
    return page.partition(f"<!-- {name}: begin -->\n")[2].partition(f"\n<!-- {name}: end -->")[0]


def table_behind(title: str, name: str, lines: Iterable[str]) -> str:
    """Write a Markdown table as ``docs/tables/NAME.csv``; return the link that stands for it on a page."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(r for r in rows if not set("".join(r)) <= set("-:"))
    publish(DOCS / "tables" / f"{name}.csv", text.getvalue())
    return f"[{title}](tables/{name}.csv)"


def rows_behind(name: str) -> list[list[str]]:
    """Return the rows of a table of the accuracy page, without its head."""
    with (DOCS / "tables" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))[1:]


# -- rows and bars ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bar:
    """A limit for a row: for our figure itself, or for the ratio to the rival's."""

    limit: float
    on_ratio: bool
    at_most: bool

    def met(self, value: float) -> bool:
        return value <= self.limit if self.at_most else value >= self.limit

    def text(self, unit: str) -> str:
        sign = "<=" if self.at_most else ">="
        return f"ratio {sign} {self.limit:g}" if self.on_ratio else f"{sign} {quantity(self.limit, unit)}"


def at_most(limit: float) -> Bar:
    """Our figure must not exceed `limit`, in the row's unit."""
    return Bar(limit, on_ratio=False, at_most=True)


def at_least(limit: float) -> Bar:
    """Our figure must reach `limit`, in the row's unit."""
    return Bar(limit, on_ratio=False, at_most=False)


def ratio_at_most(limit: float) -> Bar:
    """Ours / rival must not exceed `limit`: for times and sizes."""
    return Bar(limit, on_ratio=True, at_most=True)


def ratio_at_least(limit: float) -> Bar:
    """Ours / rival must reach `limit`: for rates."""
    return Bar(limit, on_ratio=True, at_most=False)


@dataclass(frozen=True)
class Row:
    """One measured figure. `unit` is ``s``, ``B`` or any other text (``events/s``, empty for a count)."""

    name: str
    ours: float
    unit: str = "s"
    rival: float | None = None
    rival_name: str = ""
    bar: Bar | None = None

    def __post_init__(self) -> None:
        if self.bar and self.bar.on_ratio and self.rival is None:
            raise ValueError(f"row {self.name!r}: a bar on the ratio needs a rival")

    @property
    def ratio(self) -> float | None:
        if self.rival is None:
            return None
        return self.ours / self.rival if self.rival else math.inf

    @property
    def ok(self) -> bool | None:
        """Whether the bar is met; None without a bar, and in a smoke run."""
        if self.bar is None or smoke():
            return None
        value = self.ratio if self.bar.on_ratio else self.ours
        return value is not None and self.bar.met(value)


def growth(
    name: str, measure: Callable[[int], float], n: int, unit: str = "s", *, bar: Bar | None = None
) -> Iterator[Row]:
    """Rows for n, 10n and 100n; the rival of each is the size before, so linear growth has ratio 10.
    A smoke run has n / 10 only."""
    before: float | None = None
    for size in sized((n, 10 * n, 100 * n), (max(n // 10, 1),)):
        ours = measure(size)
        shown = f"{name}, n = {size:_}"
        if before is None:
            yield Row(shown, ours, unit)
        else:
            yield Row(shown, ours, unit, before, f"n = {size // 10:_}", bar)
        before = ours


# -- benchmarks -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Benchmark:
    """A function that yields rows, the name `--only` finds it by, and the modules it cannot do without."""

    name: str
    rows: Callable[[], Iterable[Row]]
    needs: tuple[str, ...] = ()

    def missing(self) -> list[str]:
        return [module for module in self.needs if importlib.util.find_spec(module) is None]


def bench(name: str, *, needs: Iterable[str] = ()) -> Callable[[Callable[[], Iterable[Row]]], Benchmark]:
    """Make a benchmark of a function that yields rows."""
    return lambda function: Benchmark(name, function, tuple(needs))


# -- measuring --------------------------------------------------------------------------------------


def best_of(function: Callable[[], object], repeat: int = 5) -> float:
    """The shortest of `repeat` runs, in seconds, after one run that is not counted."""
    if not smoke():
        function()
    return min(seconds(function) for _ in range(sized(repeat, 1)))


def best_of_fresh(function: Callable[[T], object], make: Callable[[], T], repeat: int = 5) -> float:
    """The shortest of `repeat` runs in seconds of the processor, each with something that was made for it, of
    which nothing is known yet. (On a busy machine a short run may have the processor for itself, a long one
    never: on the wall the two could not be compared.)"""
    if not smoke():
        function(make())
    taken = []
    for thing in [make() for _ in range(sized(repeat, 1))]:
        start = time.process_time()
        function(thing)
        taken.append(time.process_time() - start)
    return min(taken)


def side_by_side(ours: Callable[[], object], rival: Callable[[], object], repeat: int) -> tuple[float, float]:
    """The shortest runs of two functions that take turns: what else the machine does meets both alike."""
    if not smoke():
        ours(), rival()
    runs = [(seconds(ours), seconds(rival)) for _ in range(sized(repeat, 1))]
    return min(run[0] for run in runs), min(run[1] for run in runs)


def in_turn(ours: Callable[[], object], rival: Callable[[], object], repeat: int) -> tuple[float, float]:
    """The median run of a rival, and that times the median of ours / rival: for times of microseconds."""
    for _ in range(sized(10, 0)):
        ours(), rival()
    runs = [(seconds(ours), seconds(rival)) for _ in range(sized(repeat, 1))]
    theirs = statistics.median(run[1] for run in runs)
    return theirs * statistics.median(run[0] / run[1] for run in runs), theirs


def seconds(function: Callable[[], object]) -> float:
    """The time of one run."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def fresh_interpreter(code: str, repeat: int = 5) -> float:
    """The shortest time in which a new Python executes `code`, its own start left out."""
    timed = f"import time\nstart = time.perf_counter()\n{code}\nprint(time.perf_counter() - start)"

    def once() -> float:
        run = subprocess.run([sys.executable, "-c", timed], capture_output=True, text=True, check=True)
        return float(run.stdout.split()[-1])

    if not smoke():
        once()
    return min(once() for _ in range(sized(repeat, 1)))


def peak_memory(function: Callable[[], object]) -> int:
    """The most bytes that Python objects and NumPy arrays took while `function` ran, its result included."""
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def resident_memory(function: Callable[[], object]) -> int:
    """The most bytes of memory that this process has had up to the end of `function`."""
    import resource

    function()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


# -- text -------------------------------------------------------------------------------------------

PREFIXES = {
    "s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")),
    "B": ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B")),
}


def quantity(value: float, unit: str) -> str:
    """A figure to read: ``quantity(0.0123, "s")`` is ``12.3 ms``."""
    for factor, symbol in PREFIXES.get(unit, ()):
        if abs(value) >= factor:
            return f"{value / factor:.3g} {symbol}"
    shown = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{shown} {unit}".rstrip()


HEADER = ("name", "ours", "rival", "ratio", "bar", "")
VERDICT = {True: "ok", False: "MISSED", None: ""}


def cells(row: Row) -> tuple[str, ...]:
    rival = "" if row.rival is None else f"{quantity(row.rival, row.unit)} {row.rival_name}".rstrip()
    ratio = "" if row.ratio is None else f"{row.ratio:.3g}"
    bar = row.bar.text(row.unit) if row.bar else ""
    return (row.name, quantity(row.ours, row.unit), rival, ratio, bar, VERDICT[row.ok])


def table(rows: Iterable[Row]) -> str:
    """The rows under a header, in aligned columns."""
    lines = [HEADER, *map(cells, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEADER))]
    texts = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
    texts.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(text.rstrip() for text in texts)
