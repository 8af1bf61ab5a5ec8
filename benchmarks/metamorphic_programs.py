"""Relations of times of programs, plans, collectives and model steps, on shipped and random machines.

    PYTHONPATH=. python benchmarks/metamorphic_programs.py 500 0     500 cases of seed 0

Half of the cases take the machines that are shipped in turn, with random figures, the others one of 200 of
``random_machines.py``. The time is between its bounds; twice the bandwidth or half the latency of a memory or
network is never slower, but for scheduling anomalies of at most 5 % (blocks or transfers that are served
earlier take a turn from others on the critical path: Graham 1969); other names, and a file that ``extends:``
the machine and sets again what its base had otherwise, change nothing; twice the work and more ranks of a
ring are never faster (a product is made longer: more blocks may be faster, as they load for each other into a
cache). A model step takes at least what reading its weights once takes, and at most the steps of its requests
one by one.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from tests.sim.random_plans import random_plan
from tests.tuning.factories import gemm, rounded_down

import megatile as mt
import megatile.language as T
from megatile.core.errors import MegatileError
from megatile.hda import HDA, machine_names
from random_machines import machine_text, random_machine

CASES = 200
RANDOM_MACHINES = 200
ANOMALY = 0.05
ROUNDING = 1000
"""Picoseconds: every figure of a machine is a whole number of them."""
MODELS = ("Llama-3.2-1B", "Llama-3.1-8B")
COLLECTIVES = (
    ("all_reduce", "ring"),
    ("all_gather", "ring"),
    ("broadcast", "tree"),
    ("all_to_all", "direct"),
)
RINGS = ("all_reduce", "all_gather")
OTHER_FORM = "ahbm"
"""A machine in KernBench's form."""
UNEVEN = "v100-8"
"""Some of its pairs have two links, others one: a longer ring of ranks can be a faster one."""


class Times(NamedTuple):
    lower: int
    found: int
    upper: int


@dataclass(frozen=True)
class Case:
    """Work that is timed on a machine with some figures changed; ``machine`` is a name or a seed."""

    machine: str | int
    figures: tuple[tuple[str, float], ...]
    what: str
    shape: tuple[int, ...]

    def hda(self, prefix: str = "", **scaled: float) -> HDA:
        """The machine; ``scaled`` multiplies figures once more, ``prefix`` comes before its names."""
        changes = self.changes(**scaled)
        if isinstance(self.machine, str):
            if self.machine == OTHER_FORM:  # figures can be set in the form of megatile only
                return mt.machine(
                    HDA.from_dict({**_plain(self.machine).to_dict(), "name": f"{prefix}a"}), **changes
                )
            return _renamed(self.machine, prefix, changes) if prefix else mt.machine(self.machine, **changes)
        hda = _random(self.machine, prefix)
        renamed = {
            f"{k}.{prefix}{rest}": v
            for (k, _, rest), v in ((p.partition("."), v) for p, v in changes.items())
        }
        return mt.machine(hda, **renamed)

    def changes(self, **scaled: float) -> dict[str, str]:
        base, factors = _plain(self.machine), dict(self.figures)
        for path, factor in scaled.items():
            factors[path] = factors.get(path, 1.0) * factor
        return {p: _text(p, _value(base, p) * f) for p, f in factors.items()}

    def extended(self) -> HDA:
        """The same machine, whose base has other figures that it sets as they should be."""
        with tempfile.TemporaryDirectory() as folder:
            hda, base = self.hda(), self.machine if isinstance(self.machine, str) else "base.yaml"
            if isinstance(self.machine, int):
                (Path(folder) / base).write_text(machine_text(self.machine))
            elif base == OTHER_FORM:
                base = "base.yaml"
                (Path(folder) / base).write_text(hda.to_yaml())
            path = figures_of(hda)[0]
            kind, name, figure = path.split(".")
            for file, over, factor in (("middle", base, 3.0), ("last", "middle.yaml", 1.0)):
                figure_text = _text(path, _value(hda, path) * factor)
                changed = f"{kind}: [{{name: {name}, {figure}: {figure_text}}}]"
                text = f"extends: {over}\nname: {hda.name}\n{changed}\n"
                (Path(folder) / f"{file}.yaml").write_text(text)
            others = {p: v for p, v in self.changes().items() if p != path}
            return mt.machine(str(Path(folder) / "last.yaml"), **others)

    def times(self, hda: HDA, more: int = 1, ranks: int = 0) -> Times:
        """``more`` times the work, on ``ranks`` more ranks."""
        if self.what in MODELS:
            return self._step(hda, more)
        if self.what == "plan":
            plan = random_plan(self.shape[0], memories=("local", "common"))
        elif self.what == "collective":
            index, nbytes, count = self.shape
            operation, algorithm = COLLECTIVES[index]
            taken = range(count + ranks)
            fixed = {"algorithm": algorithm, "protocol": "Simple"}
            plan = mt.collective(operation, machine=hda, nbytes=nbytes * more, ranks=taken, **fixed)
        else:
            low = mt.lower(PROGRAMS[self.what](self.shape, more, ranks), machine=hda)
            plan, hda = low.plan, low.machine
        price = mt.price(plan, machine=hda)
        return Times(price.lower_ps, mt.simulate(plan, machine=hda, record=False).time_ps, price.upper_ps)

    def _step(self, hda: HDA, more: int) -> Times:
        batch, context = self.shape
        model = mt.model(self.what)
        step = model.step([(1, context)] * batch * more, machine=hda)
        alone = model.step([(1, context)], machine=hda).time_ps
        read = step.memory.weights / hda.memory("l2").bandwidth * 1e12
        return Times(round(read), step.time_ps, batch * more * alone)


def reduced(devices: int, size: int) -> Any:
    """Every device adds up a tensor of its own with those of the others, around a ring."""

    @T.program
    def kernel(X: T.Tensor((devices, size), "f32")):
        with T.Kernel(device=devices, block=1, threads=32), T.Scale("device"):
            T.allreduce(T.view(X, layout=T.Shard(0)), algorithm="ring")

    return kernel


PROGRAMS: dict[str, Callable[[tuple[int, ...], int, int], Any]] = {
    "gemm": lambda s, more, _: gemm(s[0] * 32, s[1] * 32, s[2] * 16 * more, 32, 32, 16, 1 + s[2] % 3),
    "copy": lambda s, more, _: rounded_down(s[0] * 1024 * more, 128),
    "all-reduce program": lambda s, more, ranks: reduced(s[1] + 1 + ranks, 840 * s[0] * s[2] * more),
}


@cache
def _random(seed: int, prefix: str) -> HDA:
    return random_machine(seed, prefix)


def _renamed(name: str, prefix: str, changes: dict[str, str]) -> HDA:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "m.yaml"
        file.write_text(f"extends: {name}\nname: {prefix}{name}\n")
        return mt.machine(str(file), **changes)


def _plain(machine: str | int) -> HDA:
    return mt.machine(machine) if isinstance(machine, str) else _random(machine, "")


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
    number = seed * 7919
    while count:
        number += 1
        machine = names[number // 2 % len(names)] if number % 2 else number // 2 % RANDOM_MACHINES
        paths = figures_of(_plain(machine))
        changed = draw.sample(paths, min(len(paths), draw.randint(0, 3)))
        what = draw.choice((*PROGRAMS, "plan", "collective", *MODELS))
        if what == "plan":
            shape: tuple[int, ...] = (draw.randrange(10**6),)
        elif what == "collective":
            shape = (
                draw.randrange(len(COLLECTIVES)),
                840 * draw.randint(1, 10 ** draw.randint(1, 4)),
                draw.randint(2, 5),
            )
        elif what in MODELS:
            shape = (draw.randint(1, 8), draw.choice((128, 1000, 4096)))
        else:
            shape = (draw.randint(1, 6), draw.randint(1, 6), draw.randint(1, 8))
        case = Case(machine, tuple((path, draw.uniform(0.5, 2)) for path in changed), what, shape)
        try:
            case.times(case.hda())
        except MegatileError:  # the machine cannot do it
            continue
        yield case
        count -= 1


def violations(case: Case, draw: random.Random) -> Iterator[str]:
    """What a case breaks."""
    hda = case.hda()
    times = case.times(hda)
    time = times.found
    if not times.lower <= time <= times.upper:
        yield f"{time} ps is not between {times.lower} and {times.upper}"
    path = draw.choice(figures_of(hda))
    factor = 0.5 if path.endswith("latency") else 2.0
    better = case.times(case.hda(**{path: factor})).found
    if better > time + ROUNDING:
        kind = "" if better > time * (1 + ANOMALY) else "anomaly: "
        yield f"{kind}{path} times {factor}: {time} ps becomes {better}"
    if case.what not in MODELS:  # kernels of models are measured by machine
        named = case.times(case.hda("b_")).found
        if named != time:
            yield f"other names: {time} ps becomes {named}"
    same = case.times(case.extended()).found
    if same != time:
        yield f"extends: {time} ps becomes {same}"
    if case.what != "plan":
        yield from _of_growth(case, hda, time)


def _of_growth(case: Case, hda: HDA, time: int) -> Iterator[str]:
    changes = {"twice the work": (2, 0), "one rank more": (1, 1)}
    if not _one_rank_more(case, hda):
        del changes["one rank more"]
    for what, (more, ranks) in changes.items():
        with suppress(MegatileError):  # there is no room for it
            found = case.times(hda, more, ranks).found
            if found < time * (1 - ANOMALY):
                yield f"{what}: {time} ps becomes {found}"


def _one_rank_more(case: Case, hda: HDA) -> bool:
    """Whether a ring of one more rank does more of the same."""
    if case.what == "all-reduce program":
        ranks, chosen = case.shape[1] + 1, bool(hda.transports)  # a library chooses the protocol
    elif case.what == "collective" and case.shape[0] < len(RINGS):
        ranks, chosen = case.shape[2], case.machine == UNEVEN
    else:
        return False
    inside = hda.count("device") // hda.count("node")  # whole nodes have more ways out than a part of one
    # Around a ring of links, the way back of ranks 0 to n becomes shorter when they are more than half of it.
    around = any(network["topology"] in ("ring", "torus") for network in hda.to_dict()["networks"])
    return not chosen and not around and ranks < inside


def report(count: int = CASES, seed: int = 0, seen: Counter[str] | None = None) -> list[str]:
    """One line for every violation among so many cases; ``seen`` counts what was tried."""
    draw, found = random.Random(seed), []
    for case in cases(count, seed):
        for text in violations(case, draw):
            found.append(f"{case}: {text}")
            if seen is not None:
                print(found[-1], flush=True)
        if seen is not None:
            seen[case.what] += 1
            seen["random machine" if isinstance(case.machine, int) else "shipped machine"] += 1
    return found


if __name__ == "__main__":
    number, seed = (int(given) for given in (*sys.argv[1:], *("200", "0")[len(sys.argv) - 1 :]))
    seen: Counter[str] = Counter()
    found = report(number, seed, seen)
    wrong = [line for line in found if ": anomaly: " not in line]
    print("\n".join(f"{times:>7} {what}" for what, times in seen.items()))
    print(f"{number} cases, {len(wrong)} violations, {len(found) - len(wrong)} anomalies")
    sys.exit(bool(wrong))
