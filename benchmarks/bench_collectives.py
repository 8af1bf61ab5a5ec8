"""Collectives: scale and time of simulated plans, of choosing an algorithm, and the fidelity page."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from harness import Row, at_most, bench, sized, smoke

MEASURED = """
import json, resource, sys, time
import megatile as mt
from toy_machines import chips
machine = {machine}
start = time.process_time()
{work}
took = time.process_time() - start
print(json.dumps([took, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024]))
"""
SIMULATED = """
plan = mt.collective("all_reduce", machine=machine, nbytes="{size}", algorithm="{name}", settings={settings})
mt.simulate(plan, machine=machine, data=False, record={record})
"""


def _alone(machine: str, work: str) -> tuple[float, float]:
    """Processor seconds of the work, and the peak memory of a whole process that does nothing else."""
    text = MEASURED.format(machine=machine, work=work)
    folders = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-c", text],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    took, memory = json.loads(done.stdout.splitlines()[-1])
    return took, memory


def _rows(
    what: str,
    machine: str,
    size: str,
    name: str,
    settings: str,
    seconds: float,
    room: float,
    record: bool = True,
) -> Iterator[Row]:
    work = SIMULATED.format(size=size, name=name, settings=settings, record=record)
    took, memory = _alone(machine, work)
    yield Row(what, took, "s", bar=at_most(seconds))
    yield Row(f"{what}: memory of the process", memory, "B", bar=at_most(room))


@bench("collectives scale")
def scale() -> Iterator[Row]:
    nodes = sized(12_500, 2)
    cluster = f'mt.machine("h100-cluster", nodes={nodes})'
    for size in sized(("1 MiB", "1 GiB"), ("1 MiB",)):
        what = f"hierarchical all-reduce of {size}, {8 * nodes:_} devices"
        yield from _rows(what, cluster, size, "hierarchical", "{}", 30, 2e9)
    side = sized(64, 4)
    torus = f'chips("torus", {side**2}, dims=[{side}, {side}])'
    yield from _rows(f"all-reduce on a {side} x {side} torus", torus, "1 MiB", "by_dimension", "{}", 2, 1e9)
    ranks = sized(4096, 8)
    what = f"1 MiB ring, {ranks} ranks, 4 chunks ({8 * ranks * (ranks - 1):_} messages)"
    yield from _rows(what, f'chips("ring", {ranks})', "1 MiB", "ring", '{"chunks": 4}', 1, 1e9)
    for n in sized((41, 410, 4096), (5,)):  # one float more than n equal blocks: no unit stands for all
        size = f"{4 * (256 * 1024 * n // 4096 + 1)} B"
        for chunks in sized((1, 4), (4,)):
            what = f"ring of {n} ranks, uneven blocks of 1 MiB in 4096, chunks: {chunks}"
            settings = f'{{"chunks": {chunks}}}'
            most = 60 if chunks == 4 else 15
            yield from _rows(what, f'chips("ring", {n})', size, "ring", settings, most, 500e6, record=False)


@bench("collectives choice")
def choice() -> Iterator[Row]:
    for size in sized(("1 KiB", "64 MiB"), ("1 KiB",)):
        work = f'mt.collective("all_reduce", machine=machine, nbytes="{size}")'
        took, _ = _alone('mt.machine("h100-cluster")', work)
        yield Row(f"best algorithm for {size} over 4 nodes", took, "s", bar=at_most(1.5))


@bench("collectives fidelity")
def fidelity() -> Iterator[Row]:
    """Writes the page; leave one out: each open row predicted by a fit without it."""
    from fidelity_collectives import OTHERS, compare, score
    from fidelity_page import draw, write_page
    from fit_transports import SETS, largest_change, leave_one_out

    for name in sized(tuple(SETS), ("mi300x-8",)):
        yield Row(f"{name}: a constant differs from the fit by", largest_change(name), "", bar=at_most(0.01))
    left_out = {name: leave_one_out(name) for name in sized(("dgx-h100", "hgx-a100"), ())}
    for name, found in left_out.items():
        constants = len(SETS[name].constants)
        yield Row(
            f"{name}, {constants} constants, rows left out, median", found.median, "", bar=at_most(0.06)
        )
        yield Row(f"{name}, rows left out, p90", found.p90, "", bar=at_most(0.16))
    rows = list(compare())
    if not smoke():
        write_page(rows, left_out)
        draw(rows)
    blind = score([r for r in rows if r.table in OTHERS])
    yield Row("rows of other machines, median error", blind.median, "", bar=at_most(0.12))
    yield Row("all rows, p90", score(rows).p90, "", bar=at_most(0.16))


@bench("collective relations")
def relations() -> Iterator[Row]:
    from metamorphic import CASES, report

    count = sized(CASES, 20)
    yield Row(f"relations broken in {count} random cases", len(report(count)), "", bar=at_most(0))
