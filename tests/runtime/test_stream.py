"""``runtime/stream.py``: follows the streams of one unit, and of the instances below it, on real tensors."""

from __future__ import annotations

import threading

import pytest

from megatile.core.expr import unit
from megatile.plan.build import PlanBuilder


def test_messages_travel_while_kernels_work(tmp_path):
    """The first computation ends only when the message after it has come: in order they would never."""
    torch = pytest.importorskip("torch")
    from megatile.runtime import stream, torch_rules
    from megatile.runtime.tile_memory import Memory

    come = threading.Event()
    b = PlanBuilder("beside", scale="device", units=2)
    x = b.tile("x", (4,), "f32", memory="l2", role="inout")
    y = b.tile("y", (4,), "f32", memory="l2", role="output")
    ring = b.channel("ring", source=(unit + 1) % 2, slot_bytes=16, memory="l2")
    b.compute("exp", y, [x])
    message = b.receive(ring, (4,), "f32")
    b.compute("add", x, [message, y])
    b.send(ring, x, to=(unit + 1) % 2)
    sent = []

    def message_comes():
        come.set()
        return torch.ones(4)

    class Wires:
        timeout = 60.0

        def receive(self, coming):
            return message_comes

        def send(self, channel, to, member, data, slots):
            sent.append(data.clone())

        def finish(self):
            pass

    def slow(value):
        assert come.wait(20), "the message was not received while the computation ran"
        return value * 2

    plan = b.finish()
    rules = {**torch_rules.RULES, "exp": slow}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_rules, "RULES", rules)
        memory = Memory(plan, 0, {"x": torch.full((4,), 3.0)}, tmp_path)
        outputs = stream.UnitRun(plan, 0, memory, Wires()).run()
    assert outputs["x"].tolist() == [7.0] * 4  # and what is sent has been computed
    assert sent[0].tolist() == [7.0] * 4
