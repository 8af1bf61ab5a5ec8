"""The matrix: every operation × algorithm × network × number of ranks × odd size × setting.

Every case must give NumPy's result, be proved by provenance, and pass ``check``. ``make matrix`` runs all of
them, ``test_matrix.py`` a sample. A case's name says all of it; ``make matrix MATRIX_ARGS='-k NAME'`` repeats
it, ``MATRIX_ARGS='ring tree'`` runs these algorithms only.
"""

from __future__ import annotations

import argparse
import sys
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from tests.collectives.networks import NETWORKS, network

import megatile as mt
from megatile.collectives.algorithms import algorithms
from megatile.collectives.job import REDUCING, REDUCTIONS, Job
from megatile.collectives.provenance import prove
from megatile.collectives.reference import make_inputs, wrong_elements
from megatile.collectives.requests import make_job
from megatile.core.dtypes import itemsize
from megatile.hda import HDA
from megatile.plan.check import check_machine
from megatile.plan.memory import check_memory
from megatile.plan.model import Plan

RANKS = (*range(1, 18), 32, 64)
DTYPES = ("f32", "f16", "bf16", "i32")
# Beside the defaults; each goes with one chunk and with three.
SETTINGS: dict[str, tuple[Any, ...]] = {
    "inner": ("direct",),
    "outer": ("messages", "in_network"),
    "both_ways": (True,),
    "rings": (1, 3),
    "lag": (2,),
    "arity": (1, 3),
}


@dataclass(frozen=True)
class Case:
    """One cell. Without a network the ranks are only nested, two levels deep where that is possible."""

    algorithm: str
    operation: str
    ranks: int
    count: int
    network: str = ""
    settings: tuple[tuple[str, Any], ...] = ()
    in_place: bool = False

    def __str__(self) -> str:
        options = [f"{name}={value}" for name, value in self.settings]
        place = ["in-place"] if self.in_place else []
        where = [self.network.replace(" ", "-")] if self.network else []
        return "-".join(
            [self.algorithm, self.operation, f"n={self.ranks}", f"count={self.count}"]
            + where
            + options
            + place
        )

    @property
    def pick(self) -> int:
        """Decides dtype, reduction and root; the same on every network, so that equal plans are met again."""
        return zlib.crc32(str(replace(self, network="")).encode())


def every_case() -> Iterator[Case]:
    yield from alone()
    yield from on_networks()


def alone() -> Iterator[Case]:
    """Every algorithm with every setting and size, on no particular machine."""
    for name, known in algorithms().items():
        for operation in known.operations:
            for n in RANKS:
                for place, count in enumerate((3 * n, 2 * n + 1, 13, 5, 1, 0)):
                    for settings in variants(known.options, place % 2 == 1 and n <= 17):
                        yield Case(name, operation, n, count, "", settings, bool((n + place) % 2))


def on_networks() -> Iterator[Case]:
    """Every algorithm as the planner offers it on every network that can have so many units."""
    for name, known in algorithms().items():
        for operation in known.operations:
            for n in RANKS:
                for where in NETWORKS:
                    if network(where, n) is None:
                        continue
                    pick = zlib.crc32(f"{name} {operation} {n}".encode())
                    count = (2 * n + 1, 13, 5)[pick % 3]
                    settings = (("chunks", 3),) if "chunks" in known.options and pick // 3 % 2 else ()
                    yield Case(name, operation, n, count, where, settings, bool(pick // 6 % 2))


def variants(options: dict[str, Any], rare: bool) -> list[tuple[tuple[str, Any], ...]]:
    """One chunk and three; every other setting where ``rare``: with every second size, up to 17 ranks."""
    ways: list[tuple[tuple[str, Any], ...]] = [()]
    if rare:
        ways += [((name, value),) for name in options for value in SETTINGS.get(name, ())]
    if "chunks" in options:
        ways += [(*way, ("chunks", 3)) for way in ways]
    return ways


def nesting(name: str, n: int) -> tuple[int, ...]:
    if name in ("in_network", "hamilton", "multi_ring"):
        return (n,)
    inner = next((k for k in (4, 3, 2) if n % k == 0 and n > k), None)
    return (inner, n // inner) if inner else (n,)


def job_of(case: Case) -> tuple[Job, HDA | None]:
    """What the case asks for; on a network, as the planner reads it."""
    n, pick = case.ranks, case.pick
    root = n - 1 if pick % 3 == 0 else pick % n
    fields: dict[str, Any] = {
        "reduction": REDUCTIONS[pick % 5] if case.operation in REDUCING else "sum",
        "root": root,
        "in_place": case.in_place and not (case.operation == "all_to_all" and case.count % n),
    }
    if case.operation == "send_recv" and pick % 2:
        fields["peer"] = (root + n // 2) % n
    dtype = DTYPES[pick // 5 % 4]
    if not case.network:
        levels = nesting(case.algorithm, n)
        reduces = (("sum", "max", "min", "prod"),) * len(levels)
        return Job(case.operation, n, case.count, dtype, levels=levels, reduces=reduces, **fields), None
    hda = network(case.network, n)
    assert hda is not None
    nbytes = case.count * itemsize(dtype)
    return make_job(case.operation, machine=hda, nbytes=nbytes, dtype=dtype, **fields)[0], hda


def reason_against(case: Case) -> str | None:
    """Why the planner does not offer the algorithm here; None if it does."""
    return algorithms()[case.algorithm].reason_against(job_of(case)[0])


def verify(case: Case) -> None:
    """Raise what is wrong."""
    job, hda = job_of(case)
    if hda is None:
        plan = algorithms()[case.algorithm].plan(job, **dict(case.settings))
    else:
        plan = mt.collective(
            case.operation,
            machine=hda,
            algorithm=case.algorithm,
            nbytes=job.nbytes,
            dtype=job.dtype,
            settings=dict(case.settings),
            **{name: getattr(job, name) for name in ("reduction", "root", "peer", "in_place")},
        )
        check_machine(plan, hda)
        check_memory(plan, hda)
    proved(plan, replace(job, levels=(), dims=(), wrap=(), reduces=()))
    if hda is not None and job.ranks <= 17 and case.pick // 7 % 8 == 0:
        right(job, lambda inputs: mt.simulate(plan, inputs, machine=hda).outputs)


@cache
def proved(plan: Plan, job: Job) -> None:
    """The three proofs; a plan met again, on another network, is the same plan."""
    mt.check(plan)
    right(job, lambda inputs: mt.execute(plan, inputs))
    prove(plan, job)


def right(job: Job, run: Any) -> None:
    """What ``run`` makes of numbers is what NumPy makes of them."""
    inputs = make_inputs(job, seed=1)
    outputs = run({"x": np.stack(inputs)} if inputs else {})
    if job.operation != "barrier":
        wrong = wrong_elements(job, inputs, outputs["x" if job.in_place else "y"])
        assert wrong == 0, f"{wrong} elements differ from NumPy's"


# --- all of it ---------------------------------------------------------------------------------------


@dataclass
class Tally:
    """What became of the cases of one algorithm."""

    passed: int = 0
    failed: int = 0
    seconds: float = 0.0
    against: Counter[str] | None = None

    def count(self, case: Case) -> str | None:
        """Verify a case; what is wrong with it, if anything is."""
        reason, begun = reason_against(case), time.process_time()
        if reason is not None:
            self.against = self.against or Counter()
            self.against[reason] += 1
            return None
        try:
            verify(case)
        except Exception as error:
            self.failed += 1
            return f"{type(error).__name__}: {error}"
        finally:
            self.seconds += time.process_time() - begun
        self.passed += 1
        return None


class Progress:
    """One line that tells how far it is: rewritten on a screen, now and then in a file."""

    def __init__(self, total: int):
        self.total, self.begun, self.shown = total, time.perf_counter(), 0.0
        self.screen = sys.stdout.isatty()

    def show(self, done: int, failed: int, case: Case) -> None:
        now = time.perf_counter()
        if now - self.shown < (0.2 if self.screen else 20):
            return
        self.shown = now
        left = (now - self.begun) / done * (self.total - done)
        text = f"{100 * done // self.total:3} %  {done}/{self.total} cases, {failed} failed, "
        text += f"about {left / 60:.0f} min left: {case}"
        print(f"\r\x1b[K{text[:100]}" if self.screen else text, end="" if self.screen else "\n", flush=True)

    def clear(self) -> None:
        if self.screen:
            print("\r\x1b[K", end="", flush=True)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Every collective, everywhere: NumPy, provenance, check.")
    parser.add_argument("algorithms", nargs="*", help="only these algorithms")
    parser.add_argument("-k", metavar="TEXT", default="", help="only cases with this in their name")
    asked = parser.parse_args(arguments)
    unknown = set(asked.algorithms) - set(algorithms())
    if unknown:
        parser.error(f"there is no algorithm '{min(unknown)}'; there are {', '.join(algorithms())}")
    cases = [
        case
        for case in every_case()
        if asked.k in str(case) and (not asked.algorithms or case.algorithm in asked.algorithms)
    ]
    if not cases:
        parser.error(f"no case has '{asked.k}' in its name")
    # One algorithm after the other, so that the plans met again are near.
    cases.sort(key=lambda case: list(algorithms()).index(case.algorithm))
    tallies: dict[str, Tally] = {}
    progress, failed = Progress(len(cases)), 0
    for done, case in enumerate(cases, 1):
        if case.algorithm not in tallies:
            proved.cache_clear()
        wrong = tallies.setdefault(case.algorithm, Tally()).count(case)
        if wrong is not None:
            failed += 1
            progress.clear()
            print(f"FAILED {case}: {wrong}", flush=True)
        progress.show(done, failed, case)
    progress.clear()
    report(tallies)
    return 1 if failed else 0


def report(tallies: dict[str, Tally]) -> None:
    print(f"{'algorithm':20}{'passed':>8}{'failed':>8}{'no plan':>9}{'CPU s':>9}")
    reasons: Counter[str] = Counter()
    for name, tally in tallies.items():
        against = tally.against or Counter()
        reasons.update({f"{name}: {reason}": many for reason, many in against.items()})
        print(f"{name:20}{tally.passed:8}{tally.failed:8}{against.total():9}{tally.seconds:9.0f}")
    print("\nNo plan, because")
    for reason, many in reasons.most_common():
        print(f"{many:7}  {reason}")


if __name__ == "__main__":
    sys.exit(main())
