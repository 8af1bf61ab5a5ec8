"""Relations of times of programs and model steps: ``PYTHONPATH=. python benchmarks/metamorphic_programs.py``.

On every machine that is shipped, with random figures: the time of a program is between its bounds; twice the
bandwidth or half the latency of a memory or network is never slower, but for scheduling anomalies of at most
5 % (blocks that are served earlier take a turn from others on the critical path: Graham 1969); another name
changes nothing; twice the work of one shape is never faster.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.tuning.factories import gemm, rounded_down, two_products

import megatile as mt
from megatile.core.errors import MegatileError
from megatile.hda import HDA, machine_names

CASES = 200
ANOMALY = 0.05
MODELS = ("Llama-3.2-1B", "Llama-3.1-8B")


@dataclass(frozen=True)
class Case:
    """Work that is timed on a machine with some figures changed."""

    machine: str
    figures: tuple[tuple[str, float], ...]
    what: str
    shape: tuple[int, ...]

    def hda(self, **scaled: float) -> HDA:
        """The machine; ``scaled`` multiplies figures once more."""
        base, factors = mt.machine(self.machine), dict(self.figures)
        for path, factor in scaled.items():
            factors[path] = factors.get(path, 1.0) * factor
        return mt.machine(self.machine, **{p: _text(p, _value(base, p) * f) for p, f in factors.items()})

    def time(self, hda: HDA, more: int = 1) -> tuple[int, int, int]:
        """Lower bound, time and upper bound in picoseconds; ``more`` times the work."""
        if self.what in MODELS:
            batch, context = self.shape
            step = mt.model(self.what).step([(1, context)] * batch * more, machine=hda)
            found = round(step.time_us * 1e6)
            return 0, found, found
        low = mt.lower(PROGRAMS[self.what](self.shape, more), machine=hda)
        price = mt.price(low.plan, machine=low.machine)
        found = mt.simulate(low.plan, machine=low.machine, record=False).time_ps
        return price.lower_ps, found, price.upper_ps


PROGRAMS: dict[str, Callable[[tuple[int, ...], int], Any]] = {
    "gemm": lambda s, more: gemm(s[0] * 128 * more, s[1] * 128, s[2] * 64, 64, 64, 32, 1 + s[2] % 3),
    "copy": lambda s, more: rounded_down(s[0] * 4096 * more, 128),
    "two products": lambda s, more: two_products(256, 128),
}


def _value(hda: HDA, path: str) -> float:
    """A figure of a machine: bytes per second, or picoseconds."""
    kind, name, figure = path.split(".")
    found = hda.network(name) if kind == "networks" else hda.memory(name)
    return float(getattr(found, "latency_ps" if figure == "latency" else figure) or 0)


def _text(path: str, value: float) -> str:
    return f"{round(value)} ps" if path.endswith("latency") else f"{value / 1e9:.6f} GB/s"


def figures_of(hda: HDA) -> list[str]:
    """The bandwidths and latencies that can be changed one by one."""
    layers = [*(("memory", m) for m in hda.memories), *(("networks", n) for n in hda.networks)]
    paths = [f"{kind}.{one.name}.{figure}" for kind, one in layers for figure in ("bandwidth", "latency")]
    return [path for path in paths if _value(hda, path)]


def cases(count: int, seed: int = 0) -> Iterator[Case]:
    """Random work on the machines in turn, each with up to three figures between half and twice as large."""
    draw = random.Random(seed)
    names = machine_names()
    number = 0
    while count:
        name, number = names[number % len(names)], number + 1
        paths = figures_of(mt.machine(name))
        changed = draw.sample(paths, min(len(paths), draw.randint(0, 3)))
        what = draw.choice((*PROGRAMS, *MODELS))
        shape = (draw.randint(1, 8), draw.choice((128, 1000, 4096)))
        if what in PROGRAMS:
            shape = (draw.randint(1, 6), draw.randint(1, 6), draw.randint(1, 8))
        case = Case(name, tuple((path, draw.uniform(0.5, 2)) for path in changed), what, shape)
        try:
            case.time(case.hda())
        except MegatileError:  # the machine cannot do it
            continue
        yield case
        count -= 1


def violations(case: Case, draw: random.Random) -> Iterator[str]:
    """What a case breaks."""
    hda = case.hda()
    low, time, high = case.time(hda)
    if not low <= time <= high:
        yield f"{time} ps is not between {low} and {high}"
    paths = figures_of(hda)
    path = draw.choice(paths)
    factor = 0.5 if path.endswith("latency") else 2.0
    better = case.time(case.hda(**{path: factor}))[1]
    if better > time * (1 + ANOMALY):
        yield f"{path} times {factor}: {time} ps becomes {better}"
    elif better > time:
        yield f"anomaly: {path} times {factor}: {time} ps becomes {better}"
    named = HDA.from_dict({**hda.to_dict(), "name": "another"})
    if case.what in PROGRAMS and case.time(named)[1] != time:  # kernels of models are measured by machine
        yield f"another name: {time} ps becomes {case.time(named)[1]}"
    if case.what != "two products" and case.time(hda, 2)[1] < time * (1 - ANOMALY):
        yield f"twice the work: {time} ps becomes {case.time(hda, 2)[1]}"


def report(count: int = CASES, seed: int = 0) -> list[str]:
    """One line for every violation among so many cases."""
    draw = random.Random(seed)
    return [f"{case}: {text}" for case in cases(count, seed) for text in violations(case, draw)]


if __name__ == "__main__":
    number, seed = (int(given) for given in (*sys.argv[1:], *("200", "0")[len(sys.argv) - 1 :]))
    found = report(number, seed)
    wrong = [line for line in found if ": anomaly: " not in line]
    print(
        "\n".join([*found, f"{number} cases, {len(wrong)} violations, {len(found) - len(wrong)} anomalies"])
    )
    sys.exit(bool(wrong))
