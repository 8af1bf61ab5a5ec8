"""The text form: a golden plan, and what is wrong with bad text and bad JSON."""

from __future__ import annotations

import json

import numpy as np
import pytest

from megatile.core.errors import Place
from megatile.plan.build import PlanBuilder
from megatile.plan.expr import unit
from megatile.plan.model import Plan, PlanError

GOLDEN = """\
plan("ring", scale="device", grid=(4,))
x = tile(f32, (4, 16), memory="l2", role="inout")
ring = channel(source=(unit - 1) % 4, slots=2, slot_bytes=64, memory="l2")
with units((0, 4, 1)):
    for k in range(0, 3, 1):  # ring.py:6
        send(ring, x[(unit - k) % 4:+1, 0:+16], to=(unit + 1) % 4, bytes=64)  # ring.py:7
        message <- receive(ring, f32[1, 16], bytes=64)  # ring.py:7
        x[k:+1, 0:+16] <- add(x[k:+1, 0:+16], message, flops=16, bytes=192)  # ring.py:7
        free(message)  # ring.py:7
"""


def ring():
    b = PlanBuilder("ring", scale="device", units=4)
    x = b.tile("x", (4, 16), "f32", memory="l2", role="inout")
    c = b.channel("ring", source=(unit - 1) % 4, slot_bytes=64, memory="l2")
    b.place = Place("ring.py", 6)
    with b.loop(0, 3) as loop:
        b.place = Place("ring.py", 7)
        b.send(c, x[(unit - loop.index) % 4], to=(unit + 1) % 4)
        message = b.receive(c, (1, 16), "f32")
        mine = x[loop.index]
        b.compute("add", mine, [mine, message])
    return b.finish()


def test_golden_text():
    plan = ring()
    assert str(plan) == GOLDEN
    again = Plan.from_text(GOLDEN)
    assert again == plan
    assert again.streams[0].body[0].place == Place("ring.py", 6)


def test_places_are_no_part_of_a_plans_identity():
    plan = ring()
    elsewhere = Plan.from_text(GOLDEN.replace("ring.py:7", "other.py:70"))
    assert elsewhere == plan
    assert elsewhere.digest == plan.digest
    assert Plan.from_json(plan.to_json()).streams[0].body[0].place == Place("ring.py", 6)


def test_the_hash_is_stable_and_sees_changes():
    plan = ring()
    assert plan.digest == "54c25d3ba8ff50915464e1ff05adf05b079edb7aee66d8edcb45706f7eefba67"
    assert Plan.from_text(GOLDEN.replace("slots=2", "slots=3")).digest != plan.digest


def test_attributes_of_every_kind_read_back():
    b = PlanBuilder("p", scale="device", units=2)
    x = b.tile("x", (4,), "f32", memory="l2")
    for value in (
        1,
        -2,
        0.1,
        1e-30,
        float("inf"),
        float("-inf"),
        True,
        unit * 2,
        np.float32(0.5),
        np.int64(7),
    ):
        b.compute("fill", x, value=value)
    b.compute("sum", x[0:1], [x], axis=0, keepdims=True, engine="tensor")
    plan = b.finish()
    assert Plan.from_text(str(plan)) == plan
    assert Plan.from_json(plan.to_json()) == plan
    assert {type(s.attributes[0][1]) for s in plan.streams[0].body[-3:-1]} == {float, int}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "a plan begins with plan"),
        ("plan(", "cannot read the text"),
        ('plan("p", scale="s", grid=(1,))\ny = tyle(f32, (1,), memory="m")', "2: 'tyle' declares nothing"),
        ('plan("p", scale="s", grid=(1,))\nwith unit(0):\n    pass', "a stream begins with 'with units"),
        ('plan("p", scale="s", grid=(1,))\nwith units((0, 1, 1)):\n    go(x)', "3: 'go' is no command"),
        (
            'plan("p", scale="s", grid=(1,))\nwith units((0, 1, 1)):\n    x <- go(x)',
            "3: 'go' is no operation",
        ),
        (
            'plan("p", scale="s", grid=(1,))\nwith units((0, 1, 1)):\n    x[0:4] <- neg(x)',
            r"tile\[start:\+extent",
        ),
        (
            'plan("p", scale="s", grid=(1,))\nwith units((0, 1, 1)):\n    merge(a, b, c)',
            "stands after its if",
        ),
        ('plan("p", scale="s", grid=(1,))\nwith units((0, 1, 1)):\n    x = 3', "not a statement of a plan"),
    ],
)
def test_bad_text_names_the_line(text, message):
    with pytest.raises(PlanError, match=message):
        Plan.from_text(text)


def test_bad_json():
    document = json.loads(ring().to_json())
    for change, message in (
        ({"format": 9}, "not a plan in format 1"),
        ({"is": "Plam"}, "'Plam' is no part of a plan"),
        ({"colour": 1}, "Plan has no field 'colour'"),
    ):
        with pytest.raises(PlanError, match=message):
            Plan.from_json(json.dumps(document | change))
    with pytest.raises(PlanError, match="not JSON"):
        Plan.from_json("{")
    del document["grid"]
    with pytest.raises(PlanError, match="grid"):
        Plan.from_json(json.dumps(document))
