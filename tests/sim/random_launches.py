"""Random sets of launches on one machine, by seed: on the same and on different units, at random times, some
of them parts of one plan that send each other messages."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from tests.sim import random_levels
from tests.sim.random_cases import ALL, PLACES, Everything, Place, toy_place

from megatile.core.expr import table, unit
from megatile.hda import HDA
from megatile.plan.build import PlanBuilder
from megatile.plan.model import Plan
from megatile.timing import Faults

TALKING = (
    "both_ways", "even_and_odd", "lengths", "any_copied_out", "any_of_some", "held", "versions", "scratch",
    "blocks", "crossing", "flood",
)  # fmt: skip
"""Patterns in which units meet only through channels, so that each may be in a launch of its own."""


@dataclass
class Launches:
    """Plans with the times at which they are submitted, in order."""

    seed: int
    hda: HDA
    plans: list[tuple[Plan, int]]
    faults: Faults
    assume: dict[str, Any]


def random_launches(seed: int) -> Launches:
    rng = random.Random(seed)
    place = rng.choice([*[toy_place] * 3, *PLACES])(rng)
    found: list[tuple[Plan, int]] = []
    for number in range(rng.randint(1, 3)):
        # Plans with installed channels of the same name and other queues would not go together.
        talking = not number and rng.random() < 0.8
        plan = random_plan(rng, place, number, TALKING if talking else ALL, rng.random() < 0.1)
        parts = [plan]
        alone = len({int(plan.place.evaluate({"unit": u})) for u in range(plan.units)}) == plan.units
        if talking and alone:
            parts = parts_of(rng, plan) * rng.choice([1, 1, 2])
            parts = parts[rng.random() < 0.05 :]
        elif rng.random() < 0.3:
            parts = [plan] * 2
        found += [(part, rng.choice([0, 0, rng.randrange(400), rng.randrange(4000)])) for part in parts]
    rng.shuffle(found)
    faults = Faults(jitter=rng.randrange(100)) if rng.random() < 0.2 else Faults()
    names = ("times", "length", "again")
    assume = {
        f"{name}{suffix}": rng.randrange(4)
        for name in names
        for suffix in ("", *(f"_{k}" for k in range(1, 9)))
    }
    return Launches(seed, place.hda, found, faults, assume)


def random_blocks(seed: int) -> Launches:
    """Launches of blocks in slots, of the same blocks again, and of single units of the same machine."""
    rng = random.Random(seed)
    where = rng.choice(random_levels.PLACES)
    hda, found = where[0](rng), list[tuple[Plan, int]]()
    for number in range(rng.randint(1, 3)):
        plan = random_levels.one_case(rng, rng.choice([seed, number]), where, hda).plan
        if rng.random() < 0.4:
            plan = loose_blocks(rng, where, hda) if rng.random() < 0.5 else inside(rng, where, hda, number)
        found += [(plan, rng.choice([0, 0, rng.randrange(3000)])) for _ in range(rng.choice([1, 1, 2]))]
    return Launches(seed, hda, found, Faults(), {})


def loose_blocks(rng: random.Random, where: Any, hda: HDA) -> Plan:
    """Blocks that take any slot of the machine."""
    _, outer, inner, _, near, _ = where
    count, size = rng.randint(1, 9), 16
    b = PlanBuilder("loose", scale=outer, units=1)
    level = b.level("block", scale=inner, grid=count, slots=rng.randint(1, 2))
    t = b.tile("t", (size,), "f32", memory=near, level=level)
    lengths = [rng.randint(1, size) for _ in range(count)]
    with b.stream(level=level), b.loop(0, table([rng.randint(0, 3) for _ in range(count)], unit)):
        part = t[0 : table(lengths, unit)]
        b.compute("add", part, [part, part])
    return b.finish()


def inside(rng: random.Random, where: Any, hda: HDA, number: int) -> Plan:
    """Single units below, which read a tensor of the unit above them."""
    _, _, inner, far, near, _ = where
    units, size = rng.randint(1, min(3, hda.count(inner))), rng.choice([4, 16])
    first = rng.randrange(hda.count(inner) - units + 1) if rng.random() < 0.5 else 0
    b = PlanBuilder(f"inside{number}", scale=inner, units=units, placement=unit + first)
    x = b.tile("x", (size,), "f32", memory=far, role="input", owner=unit * 0, owners=1)
    t = b.tile("t", (size,), "f32", memory=near)
    for _ in range(rng.randint(1, 3)):
        b.copy(t, x)
        b.compute("add", t, [t, t])
    return b.finish()


def random_plan(
    rng: random.Random, place: Place, number: int, patterns: tuple[str, ...], spoil: bool
) -> Plan:
    """A plan somewhere on the machine."""
    n = rng.randint(2, place.most)
    first = rng.choice([0, 0, rng.randrange(place.most)]) if place.total else 0
    stand = place.stand(unit + first) if place.step > 1 else unit + first
    total = place.total or place.hda.count(place.scale)
    b = PlanBuilder(f"plan{number}", scale=place.scale, units=n, placement=stand % total)
    size = rng.choice([4, 12, 16])
    memories = (place.near, place.near, place.far)
    x = b.tile("x", (n, size), "f32", memory=place.near, role="inout")
    y = b.tile("y", (size,), "f32", memory=place.near, versions=rng.randint(1, 3))
    z = b.tile("z", (size,), "f32", memory=place.near, role="output")
    b.compute("fill", y, [], value=1.0)
    b.compute("fill", z, [], value=0.0)
    make = Everything(b, rng, n, size, x, y, z, memories, place=place, spoil=spoil)
    for _ in range(rng.randint(1, 3)):
        getattr(make, rng.choice(patterns))()
        make.work()
    return b.finish()


def parts_of(rng: random.Random, plan: Plan) -> list[Plan]:
    """The plan's units among several launches."""
    owner = [rng.randrange(rng.randint(1, 4)) for _ in range(plan.units)]
    return [plan.part([u for u in range(plan.units) if owner[u] == k]) for k in sorted(set(owner))]
