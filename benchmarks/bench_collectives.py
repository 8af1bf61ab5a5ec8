"""Collectives: scale and time of simulated plans, of choosing an algorithm, and the fidelity page."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

from harness import Row, at_most, bench

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
    done = subprocess.run([sys.executable, "-c", text], check=True, capture_output=True, text=True)
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
    cluster = 'mt.machine("h100-cluster", nodes=12_500)'
    for size in ("1 MiB", "1 GiB"):
        what = f"hierarchical all-reduce of {size}, 100 000 devices"
        yield from _rows(what, cluster, size, "hierarchical", "{}", 30, 2e9)
    torus = 'chips("torus", 4096, dims=[64, 64])'
    yield from _rows("all-reduce on a 64 x 64 torus", torus, "1 MiB", "by_dimension", "{}", 2, 1e9)
    what = "1 MiB ring, 4096 ranks, 4 chunks (134 M messages)"
    yield from _rows(what, 'chips("ring", 4096)', "1 MiB", "ring", '{"chunks": 4}', 1, 1e9)
    for n in (41, 410, 4096):  # one float more than n equal blocks: no unit stands for all
        size = f"{4 * (256 * 1024 * n // 4096 + 1)} B"
        for chunks in (1, 4):
            what = f"ring of {n} ranks, uneven blocks of 1 MiB in 4096, chunks: {chunks}"
            settings = f'{{"chunks": {chunks}}}'
            most = 60 if chunks == 4 else 15
            yield from _rows(what, f'chips("ring", {n})', size, "ring", settings, most, 500e6, record=False)


@bench("collectives choice")
def choice() -> Iterator[Row]:
    for size in ("1 KiB", "64 MiB"):
        work = f'mt.collective("all_reduce", machine=machine, nbytes="{size}")'
        took, _ = _alone('mt.machine("h100-cluster")', work)
        yield Row(f"best algorithm for {size} over 4 nodes", took, "s", bar=at_most(1.5))


@bench("collectives fidelity")
def fidelity() -> Iterator[Row]:
    from fidelity_collectives import compare, score
    from fidelity_page import draw, write_page
    from fit_protocol import fit, in_files, priors_of

    fitted, files = fit(), in_files()
    differing = sum(fitted[m].get(name) != value for m in files for name, value in files[m].items())
    yield Row(
        "protocol constants of the machine files that differ from the fit", differing, "", bar=at_most(0)
    )
    rows, unfitted = list(compare()), list(compare(constants=priors_of))
    write_page(rows, unfitted)
    draw(rows)
    median, worst = score([r for r in rows if r.kind == "scored"])
    yield Row("scored rows, median error", median, "", bar=at_most(0.10))
    yield Row("scored rows, worst error", worst, "", bar=at_most(0.35))
