"""Relations that simulated collectives keep on random machines: ``benchmarks/metamorphic_plans.py [N]``.

At a fixed algorithm and protocol: twice the bandwidth and no latency are never slower; where only bytes
count, twice the bytes take twice as long; which rank stands where means nothing on a network that looks alike
from everywhere; more ranks are never faster (on a full mesh they are: every rank brings its own links; with
LL they may be: parts that became smaller may need a pass less); the time is between the bounds of ``price``.
A scheduling anomaly may break the first two by up to 5 %: transfers that arrive earlier can win a link from
others that are on the critical path (Graham 1969).
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import megatile as mt
from megatile.core.errors import MegatileError
from megatile.hda import HDA
from toy_machines import chips

CASES = 500
ANOMALY = 0.05
ROUNDING = 1e-4
ALGORITHMS = {
    "all_reduce": ("ring", "direct", "halving_doubling", "tree"),
    "all_gather": ("ring", "direct"),
    "reduce_scatter": ("ring", "direct"),
    "all_to_all": ("direct",),
    "broadcast": ("tree", "binomial"),
}
SHIPPED = {"dgx-h100": 450, "hgx-a100": 300}
"""Machines with a library, by the GB/s of their links; there the protocol is fixed too."""
PROTOCOLS = ("LL", "LL128", "Simple")
ALIKE = ("ring", "switch", "full_mesh")
"""Networks that look the same from every unit."""


@dataclass(frozen=True)
class Case:
    """A collective on a random machine."""

    topology: str
    count: int
    gigabytes: float
    latency_ns: int
    startup_ns: int
    memory_ns: int
    operation: str
    algorithm: str
    nbytes: int
    protocol: str | None = None
    ranks: tuple[int, ...] | None = None

    def machine(self) -> HDA:
        if self.protocol:
            return mt.machine(self.topology, **{"networks.nvlink.bandwidth": f"{self.gigabytes} GB/s"})
        return chips(
            self.topology,
            self.count,
            bandwidth=f"{self.gigabytes} GB/s",
            latency=f"{self.latency_ns} ns",
            startup=f"{self.startup_ns} ns",
            memory_latency=f"{self.memory_ns} ns",
        )

    def plan(self) -> tuple[Any, HDA]:
        hda = self.machine()
        ranks = self.ranks or tuple(range(self.count))
        named = {"algorithm": self.algorithm, "protocol": self.protocol}
        return mt.collective(self.operation, machine=hda, nbytes=self.nbytes, ranks=ranks, **named), hda

    def ps(self, **changes: Any) -> int:
        plan, hda = replace(self, **changes).plan()
        return int(mt.simulate(plan, machine=hda, record=False).time_ps)


def cases(count: int, seed: int = 0) -> Iterator[Case]:
    """Random machines × operations × algorithms that fit them."""
    draw = random.Random(seed)
    while count:
        operation = draw.choice([*ALGORITHMS])
        topology = draw.choice(("ring", "switch", "full_mesh", "line", *SHIPPED))
        case = Case(
            topology,
            draw.randint(2, 7 if topology in SHIPPED else 12),
            round(draw.uniform(5, 900), 1),
            draw.randint(0, 3000),
            draw.choice((0, draw.randint(0, 3000))),
            draw.randint(0, 600),
            operation,
            draw.choice(ALGORITHMS[operation]),
            4 * draw.randint(1, 2 ** draw.randint(6, 26)),
            draw.choice(PROTOCOLS) if topology in SHIPPED else None,
        )
        try:
            case.plan()
        except MegatileError:  # the algorithm does not do this number of ranks, or this network
            continue
        yield case
        count -= 1


def violations(case: Case) -> Iterator[str]:
    """What a case breaks."""
    plan, hda = case.plan()
    time = int(mt.simulate(plan, machine=hda, record=False).time_ps)
    price = mt.price(plan, machine=hda)
    if not price.lower_ps <= time <= price.upper_ps:
        yield f"{time} ps is not within {price.lower_ps} and {price.upper_ps}"
    fast = case.ps(gigabytes=2 * case.gigabytes)
    if fast > time * (1 + ANOMALY):
        yield f"twice the bandwidth: {time} ps becomes {fast}"
    if fast < time / 2 * (1 - ROUNDING):
        yield f"twice the bandwidth more than halves {time} ps: {fast}"
    if case.protocol is None:
        yield from _of_bytes_alone(case, time)
    if case.topology in ALIKE or case.protocol:
        moved = tuple((rank + 1) % case.count for rank in range(case.count))
        if case.topology != "ring":
            moved = tuple(reversed(moved))
        elsewhere = case.ps(ranks=moved)
        if elsewhere != time:
            yield f"other places of the ranks: {time} ps becomes {elsewhere}"
    if (
        case.topology != "full_mesh"
        and case.protocol != "LL"
        and case.algorithm not in ("halving_doubling", "tree", "binomial")
    ):
        more = case.count + (
            2 if case.topology == "ring" else 1
        )  # of an even ring opposite ranks choose one side
        if more <= 8 or not case.protocol:
            try:
                later = case.ps(count=more)
            except MegatileError:  # as in `cases`: not for so many ranks
                return
            if later < time * (1 - ANOMALY):
                yield f"more ranks are faster: {time} ps with {case.count}, {later} with {more}"


def _of_bytes_alone(case: Case, time: int) -> Iterator[str]:
    bare = replace(case, latency_ns=0, startup_ns=0, memory_ns=0)
    bytes_alone = bare.ps()
    if bytes_alone > time * (1 + ANOMALY):
        yield f"no latency: {time} ps becomes {bytes_alone}"
    even = 1 << 22
    one, two = (bare.ps(nbytes=even * case.count * scale) for scale in (1, 2))
    if abs(two - 2 * one) > ROUNDING * two:
        yield f"linearity: {one} ps, {two} for twice the bytes"


def report(count: int = CASES, seed: int = 0) -> list[str]:
    """One line for every violation among so many cases."""
    return [f"{case}: {text}" for case in cases(count, seed) for text in violations(case)]


if __name__ == "__main__":
    number = int(sys.argv[1]) if len(sys.argv) > 1 else CASES
    found = report(number)
    print("\n".join([*found, f"{number} cases, {len(found)} violations"]))
    sys.exit(bool(found))
