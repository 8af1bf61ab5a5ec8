"""``plan/handles.py``: what a plan is built with."""

from __future__ import annotations

from dataclasses import replace

from tests.plan.shared import builder, fails, ring, tile

from megatile.core.expr import unit
from megatile.plan.model import Stream


def test_a_handle_that_has_ended():
    b = builder(2)
    c, x = ring(b, 2), tile(b)
    b.send(c, x, to=(unit + 1) % 2)
    message = b.receive(c, (8,), "f32")
    b.compute("add", x, [x, message])
    plan = b.finish()
    body = plan.streams[0].body
    again = replace(plan, streams=(Stream(((0, 2, 1),), (*body, body[2])),))
    fails(again, r"kernel.py:7: 'message' has ended before: x <- add\(x, message")
