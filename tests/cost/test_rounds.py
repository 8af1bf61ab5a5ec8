"""``cost/rounds.py``: long loops priced by some of their rounds."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
from tests.cost.shared import blocks
from tests.sim.toys import toy

import megatile as mt
from megatile.core.errors import MegatileError
from megatile.core.expr import unit
from megatile.cost import rounds
from megatile.cost.price import Price, lower_bound, price
from megatile.plan.build import PlanBuilder
from megatile.plan.model import Plan


def random_loops(seed: int, trips: int | None = None) -> Plan:
    """One to three units with one or two long loops of copies, work and messages, and work around them."""
    rng = random.Random(seed)
    units = rng.choice((1, 1, 2, 3))
    b = PlanBuilder(f"loops{seed}", scale="core", units=units)
    n = trips or rng.randrange(150, 300)
    x = b.tile("x", (n * 8 + 64,), "f32", memory="common", role="input", owner=unit * 0, owners=1)
    y = b.tile("y", (64,), "f32", memory="local", versions=rng.randrange(1, 4))
    z = b.tile("z", (64,), "f32", memory="local", role="inout")
    w = b.tile("w", (n * 8 + 64,), "f32", memory="local", role="inout")
    talks = units > 1 and rng.random() < 0.6
    c = None
    if talks:
        c = b.channel(
            "c", source=(unit - 1) % units, slot_bytes=256, memory="local", slots=rng.randrange(1, 4)
        )
    uneven = rng.random() < 0.4

    def size() -> Any:
        return rng.randrange(1, 64) if not uneven or rng.random() < 0.5 else unit * 9 + rng.randrange(1, 40)

    def command(k: Any) -> None:
        kind, s = rng.randrange(8), size()
        engine = rng.choice(("vector", "vector", "tensor"))
        if kind == 0:
            b.copy(y, x[0:64], fresh=True)
        elif kind == 1:
            b.copy(y[0:8], x[k * 8 : k * 8 + 8])
        elif kind == 2:
            b.compute("add", z, [z, y], engine=engine)
        elif kind == 3:
            b.compute("exp", z[0:s], [z[0:s]], engine=engine)
        elif kind == 4:
            b.compute("exp", w[k * 8 : k * 8 + 8], [y[0:8]], engine=engine)
        elif kind == 5:
            reach = 8 * rng.randrange(3)
            b.compute("exp", z[0:8], [w[k * 8 + reach : k * 8 + reach + 8]], engine=engine)
        elif kind == 6 and c is not None:
            b.send(c, z, to=(unit + 1) % units)
            b.compute("add", y, [y, b.receive(c, (64,), "f32")], fresh=rng.random() < 0.5)
        else:
            with b.loop(0, rng.randrange(1, 4)) as inner:
                part = y[inner.index * 4 : inner.index * 4 + 4]
                b.compute("exp", part, [part])

    for _ in range(rng.randrange(3)):
        command(0)
    for _ in range(rng.randrange(1, 3)):
        with b.loop(0, n) as loop:
            for _ in range(rng.randrange(1, 5)):
                command(loop.index)
        for _ in range(rng.randrange(3)):
            command(int(rng.random() * n))
    return b.finish()


def both(plan: Plan, hda: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[Price, Price, int]:
    """Bounds by some rounds and by all, and how often the former were enough."""
    used: list[int] = []
    end_ps = rounds.Shortened.end_ps

    def counted(self: Any, *run: Any) -> int | None:
        found = end_ps(self, *run)
        used.append(found is not None)
        return found

    monkeypatch.setattr(rounds.Shortened, "end_ps", counted)
    monkeypatch.setattr(rounds, "MANY_COMMANDS", 0)
    monkeypatch.setattr(rounds, "KEPT_ROUNDS", (8, 16, 32))
    short = price(plan, hda)
    assert short.lower_ps <= short.upper_ps  # some are found when they are asked for
    monkeypatch.setattr(rounds, "MANY_COMMANDS", 1 << 60)
    return short, price(plan, hda), any(used)


def test_some_rounds_give_the_bounds_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    enough = 0
    for seed in range(80):
        plan = random_loops(seed)
        hda = toy(plan.units, "switch" if seed % 3 == 0 else "ring")
        short, long, used = both(plan, hda, monkeypatch)
        assert short == long, seed
        enough += used
    assert enough >= 40


def test_ten_trillion_rounds_take_milliseconds() -> None:
    for seed in (2, 4, 5, 7):
        few, many = (price(random_loops(seed, n), toy(3)) for n in (10**5, 2 * 10**5))
        before = perf_counter()
        found = price(random_loops(seed, 10**13), toy(3))
        assert perf_counter() - before < 1  # some milliseconds on an idle computer
        for name in ("lower_ps", "upper_ps"):
            one, two, all_of_them = (getattr(bounds, name) for bounds in (few, many, found))
            assert all_of_them - one == (two - one) * (10**13 - 10**5) // 10**5
        assert found.shared == few.shared


def nest(outer: int, inner: int) -> Plan:
    b = PlanBuilder("nest", scale="core", units=1)
    x = b.tile("x", (64,), "f32", memory="common", role="input")
    y = b.tile("y", (64,), "f32", memory="local", versions=2)
    z = b.tile("z", (64,), "f32", memory="local", role="inout")
    with b.loop(0, outer) as i, b.loop(0, inner) as j:
        at = (i.index + j.index) % 2 * 32
        b.copy(y[0:32], x[at : at + 32], fresh=True)
        b.compute("add", z[0:32], [z[0:32], y[0:32]])
    return b.finish()


def test_nested_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    assert price(nest(10**6, 10**7), toy(1)).lower_ps > 10**13
    short, long, used = both(nest(30, 20), toy(1), monkeypatch)
    assert used
    assert short == long


def test_lower_bounds_of_long_loops() -> None:
    plan = random_loops(2, 10**13)
    assert lower_bound(plan, toy(3)) == price(plan, toy(3)).lower_ps


def test_loops_that_do_not_repeat_themselves_are_refused_when_they_are_too_long() -> None:
    b = PlanBuilder("uneven", scale="core", units=1)
    x = b.tile("x", (64,), "f32", memory="local", role="inout")
    with b.loop(0, 10**13) as k:
        part = x[0 : k.index % 7 + 1]
        b.compute("exp", part, [part])
    with pytest.raises(MegatileError, match=r"'uneven' issues about 1e\+13 commands, more than"):
        price(b.finish(), toy(1))


def test_loops_whose_rounds_are_not_alike_are_run_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A carried number or the index decides how much a round does."""
    monkeypatch.setattr(rounds, "MANY_COMMANDS", 0)
    for carried in (True, False):
        b = PlanBuilder("uneven", scale="core", units=1)
        x = b.tile("x", (128,), "f32", memory="local", role="inout")
        y = b.tile("y", (128,), "f32", memory="local", role="inout")
        with b.loop(0, 100, **({"n": 1} if carried else {})) as loop:
            part = slice(0, loop.n if carried else loop.index + 1)
            b.compute("exp", y[part], [x[part]])
            if carried:
                loop.next(n=loop.n + 1)
        assert not list(rounds.shortened(b.finish()))
    b = PlanBuilder("turns", scale="core", units=2)
    x = b.tile("x", (128,), "f32", memory="local", role="inout")
    y = b.tile("y", (128,), "f32", memory="local", role="inout")
    with b.loop(0, 100) as loop:
        b.copy(y, x.at(loop.index // 50))
    assert not list(rounds.shortened(b.finish()))


LITTLE_MEMORY = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
import numpy as np
import megatile as mt
from megatile.core.limits import OutOfMemory
from tests.cost.shared import cleared
from tests.sim.test_limits import rounds
from tests.sim.toys import toy

plan, machine, blocks = rounds(3, 850_000), toy(850_000), cleared(1 << 40)
for call in (
    lambda: mt.simulate(plan, machine=machine),
    lambda: mt.price(plan, machine),
    lambda: mt.execute(rounds(1, 8_000_000), {"x": np.broadcast_to(np.float32(0), (8_000_000, 16))}),
    lambda: mt.simulate(blocks, machine="dgx-h100"),
    lambda: mt.price(blocks, machine="dgx-h100"),
):
    try:
        call()
    except OutOfMemory as error:
        print(error)
"""


def test_a_large_ring_in_little_memory_is_one_sentence() -> None:
    pytest.importorskip("resource", reason="needs limits of memory")
    done = subprocess.run(
        [sys.executable, "-c", LITTLE_MEMORY], capture_output=True, text=True, cwd=Path(__file__).parents[2]
    )
    memory = " needs more memory than this process can have"
    table = r"the simulation needs more than [\d,]+ rows in its table '\w+'"
    ring = f"{table}|plan 'rounds' of 850000 units{memory}"  # whichever comes first
    expected = [ring, ring, f"executing plan 'rounds' of 8000000 units{memory}"]
    expected += 2 * [f"lowering program 'clear'{memory}"]
    said = [line.partition(" (try: ")[0] for line in done.stdout.splitlines()]
    assert len(said) == len(expected), done.stderr
    for line, pattern in zip(said, expected, strict=True):
        assert re.fullmatch(pattern, line)


def test_blocks_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    hda = mt.machine("dgx-h100")
    found = price(blocks(1, 10**12), hda)
    assert 10**12 < found.lower_ps < found.upper_ps
    for seed in range(6):
        short, long, _ = both(blocks(seed, 50 + seed), hda, monkeypatch)
        assert (short.lower_ps, short.upper_ps, short.shared) == (long.lower_ps, long.upper_ps, long.shared)
