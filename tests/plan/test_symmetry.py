"""``plan/symmetry.py``: whether one unit, sending to itself, represents all."""

import pytest

from megatile.core.expr import unit
from megatile.plan import model as pm
from megatile.plan.build import PlanBuilder
from megatile.plan.symmetry import difference, one_unit


def ring(units: int, peer: object = None, rounds: object = 3, shared: bool = False) -> pm.Plan:
    b = PlanBuilder("ring", scale="device", units=units)
    x = b.tile("x", (64,), "f32", memory="hbm", **({"owner": unit * 0, "owners": 1} if shared else {}))  # type: ignore[arg-type]
    c = b.channel("c", source=(unit - 1) % units, slot_bytes=256, memory="hbm", slots=2)
    with b.loop(0, rounds):  # type: ignore[arg-type]
        b.send(c, x, to=(unit + 1) % units if peer is None else peer)  # type: ignore[arg-type]
        b.compute("add", x, [x, b.receive(c, (64,), "f32")])
    return b.finish()


def test_units_of_a_ring_do_the_same() -> None:
    assert difference(ring(4)) is None


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        (ring(1), "there is one"),
        (ring(4, rounds=unit + 1), "they differ in what they do"),
        (ring(4, peer=3 - unit), "they differ in what they do"),
        (ring(4, shared=True), "they share tiles, or name addresses"),
    ],
    ids=["one unit", "rounds", "peers", "shared"],
)
def test_what_tells_units_apart_is_reported(plan: pm.Plan, why: str) -> None:
    assert difference(plan) == why


def blocks(write: object, read: object, size: int = 16, carried: bool = False) -> pm.Plan:
    """A block of a tile is written, another one is read; through a name that goes round, if ``carried``."""
    b = PlanBuilder("blocks", scale="device", units=4)
    x, y = (b.tile(name, (64,), "f32", memory="hbm") for name in "xy")
    with b.loop(0, 2, **({"t": y} if carried else {})) as loop:  # type: ignore[arg-type]
        source = loop.t if carried else y
        b.compute("copy", x[write : write + size], [source[read : read + size]])  # type: ignore[index, operator]
        b.compute("exp", x[write : write + size], [x[read : read + size]])  # type: ignore[index, operator]
        if carried:
            loop.next(t=loop.t)
    return b.finish()


NEXT, SELF, BACK = (unit + 1) % 4 * 16, unit * 16, (3 - unit) % 4 * 16


@pytest.mark.parametrize(
    ("plan", "alike"),
    [
        (blocks(0, 16), True),
        (blocks(NEXT, SELF), True),
        (blocks(SELF, NEXT), True),
        (blocks(BACK, BACK), True),
        (blocks(NEXT, NEXT + 4, 12), True),
        (blocks(NEXT, NEXT + 4, 16), False),  # reaches into the next block
        (blocks(NEXT, 0), False),
        (blocks(NEXT, BACK), False),
        (blocks(unit * 8, unit * 8), False),
        (blocks(SELF // 2 * 3, SELF // 2 * 3), False),
        (blocks(0, 16, carried=True), True),
        (blocks(0, SELF, carried=True), False),
    ],
)
def test_blocks_turn_with_their_units(plan: pm.Plan, alike: bool) -> None:
    assert (difference(plan) is None) == alike


def inside(start: int, stop: int, step: int = 1) -> pm.Plan:
    """Elements of the unit's block that a loop names, four at a time."""
    b = PlanBuilder("inside", scale="device", units=4)
    x = b.tile("x", (64,), "f32", memory="hbm")
    with b.loop(start, stop, step) as loop:
        b.compute("exp", x[NEXT + loop.index : NEXT + loop.index + 4], [x[NEXT : NEXT + 4]])
    return b.finish()


@pytest.mark.parametrize(
    ("loop", "alike"),
    [
        ((0, 13), True), ((0, 14), False), ((12, -1, -1), True), ((13, -1, -1), False), ((-1, 12), False),
        ((12, -2, -1), False), ((0, 0), True), ((30, 30), True), ((0, 13, 12), True), ((0, 14, 13), False),
        ((1, 2), True), ((13, 14), False),
    ],
)  # fmt: skip
def test_loops_stay_in_the_block_of_their_unit(loop: tuple[int, ...], alike: bool) -> None:
    assert (difference(inside(*loop)) is None) == alike


def other(what: str, units: int = 4) -> pm.Plan:
    """A plan with something that tells units apart, or with parts that only some have."""
    b = PlanBuilder("other", scale="device", units=units)
    x = b.tile("x", (64,), "f32", memory="hbm")
    flag = b.flag("f", installed=what == "installed")
    c = b.channel("c", source=unit + 1 if what == "source" else (unit - 1) % units, slot_bytes=256,
                  memory="hbm", members=units)  # fmt: skip
    with b.stream(range(units - (what == "some"))):
        if what == "meets":
            b.barrier(b.group("all"))
        elif what == "signals":
            b.signal(flag, to=(unit + 1) % units)
        elif what == "there":
            b.compute("copy", x, [x.at((unit + 1) % units)])
        elif what == "member":
            b.send(c, x, to=(unit + 1) % units, member=unit)
        else:
            b.send(c, x, to=(unit + 1) % units)
        b.receive(c, (64,), "f32", member=unit if what == "member" else 0)
    return b.finish()


@pytest.mark.parametrize("what", ["source", "some", "installed", "meets", "signals", "there", "member"])
def test_units_that_meet_or_name_each_other_differ(what: str) -> None:
    assert difference(other(what)) is not None
    assert difference(other("nothing")) is None


def test_the_plan_of_one_unit_has_one() -> None:
    assert difference(ring(2)) is None
    assert one_unit(ring(2)).streams[0].unit_count() == 1
    assert list(one_unit(ring(3)).streams[0].units) == [(0, 1, 1)]


def test_the_plan_of_one_unit_sends_to_itself() -> None:
    alone = one_unit(ring(4))
    assert alone.units == 1
    sends = [s for s in pm.statements(alone.streams[0].body) if isinstance(s, pm.Send)]
    assert [int(s.to.evaluate({"unit": 0})) for s in sends] == [0]
    assert len(list(pm.statements(alone.streams[0].body))) == len(
        list(pm.statements(ring(4).streams[0].body))
    )
