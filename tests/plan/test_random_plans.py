"""Properties of random plans: data, checks, text and JSON."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from tests.plan.generator import cases

from megatile.plan.check import check
from megatile.plan.execute import execute
from megatile.plan.model import Plan


@settings(max_examples=150)
@given(case=cases())
def test_execution_equals_numpy(case):
    result = execute(case.plan, case.inputs)
    np.testing.assert_array_equal(result["x"], case.expected["x"])
    assert not result.order_dependent


@settings(max_examples=60)
@given(case=cases())
def test_check_accepts_what_runs(case):
    assert check(case.plan).units == case.plan.units


@settings(max_examples=60)
@given(case=cases())
def test_text_and_json_round_trips(case):
    text = str(case.plan)
    again = Plan.from_text(text)
    assert again == case.plan
    assert str(again) == text
    assert Plan.from_json(case.plan.to_json()) == case.plan
    assert again.digest == case.plan.digest
