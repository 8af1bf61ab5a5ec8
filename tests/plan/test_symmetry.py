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


def test_the_plan_of_one_unit_sends_to_itself() -> None:
    alone = one_unit(ring(4))
    assert alone.units == 1
    sends = [s for s in pm.statements(alone.streams[0].body) if isinstance(s, pm.Send)]
    assert [int(s.to.evaluate({"unit": 0})) for s in sends] == [0]
    assert len(list(pm.statements(alone.streams[0].body))) == len(
        list(pm.statements(ring(4).streams[0].body))
    )
