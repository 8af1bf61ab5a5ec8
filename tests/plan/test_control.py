"""``plan/control.py``: the structure of a stream."""

from __future__ import annotations

import pytest
from tests.plan.shared import HEAD

from megatile.plan.check import check
from megatile.plan.model import Plan, PlanError


def test_a_step_that_becomes_zero():
    plan = Plan.from_text(HEAD + "    for k in range(1, 0, unit):\n        pass\n")
    with pytest.raises(PlanError, match="step 0"):
        check(plan)
