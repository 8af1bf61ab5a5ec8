"""``plan/liveness.py``: slots of received messages end after their last use."""

from megatile.core.expr import unit
from megatile.plan import model as pm
from megatile.plan.build import PlanBuilder
from megatile.plan.liveness import slot_names, with_frees


def received(late: bool) -> pm.Plan:
    b = PlanBuilder("received", scale="device", units=2)
    x, y = (b.tile(name, (8,), "f32", memory="hbm") for name in "xy")
    ring = b.channel("ring", source=(unit - 1) % 2, slot_bytes=64, memory="hbm", slots=2)
    b.send(ring, x, to=(unit + 1) % 2)
    message = b.receive(ring, (8,), "f32")
    b.compute("add", y, [x, message])
    b.compute("mul", y, [y, message if late else x])
    return b.finish()


def test_a_slot_is_freed_after_its_last_use() -> None:
    for late, before in ((False, "add"), (True, "mul")):
        body = received(late).streams[0].body
        at = next(i for i, s in enumerate(body) if isinstance(s, pm.Free))
        assert body[at - 1].operation == before  # type: ignore[union-attr]
        assert set(body[at].names) == slot_names(body)  # type: ignore[union-attr]


def test_frees_are_written_again_where_there_are_some() -> None:
    body = received(True).streams[0].body
    assert with_frees(body) == body
    assert with_frees(tuple(s for s in body if not isinstance(s, pm.Free))) == body
