"""The text form: a golden plan, and what is wrong with bad text and bad JSON."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tests.plan.text_cases import GOLDEN, ring

from megatile.core.errors import MegatileError, Place
from megatile.core.expr import expression, unit
from megatile.plan.build import PlanBuilder
from megatile.plan.model import Plan


def test_golden_text():
    plan = ring()
    assert str(plan) == GOLDEN
    again = Plan.from_text(GOLDEN)
    assert again == plan
    assert again.streams[0].body[0].source == Place("ring.py", 6)


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
    "text",
    [5, None, "", "select()", "table()", "table((), unit)", "1 << 10000000000", "min(1)", "(" * 300, "\0"],
)
def test_hostile_expressions(text):
    with pytest.raises(MegatileError):
        expression(text)


def test_an_attribute_that_is_a_constant_expression_is_a_number():
    b = PlanBuilder("fill", scale="pe", units=1)
    x = b.tile("x", (4,), "f32", memory="tcm")
    b.compute("fill", x, value=1)
    document = json.loads(b.finish().to_json())
    (pair,) = document["streams"][0]["body"][0]["attributes"]
    assert pair == ["value", 1]
    pair[1] = {"expr": "1"}
    plan = Plan.from_json(json.dumps(document))
    assert plan == b.finish() == Plan.from_text(str(plan))
