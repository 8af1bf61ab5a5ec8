"""What files that test reader share."""

from __future__ import annotations

import numpy as np
import pytest

from megatile.language import tl
from megatile.language.kernel.mock import run_kernel_in_mock
from megatile.plan.check import check
from megatile.plan.execute import execute


def run(kernel, units=3, elements=4, extra=(), **options):
    """Read, check and execute a kernel; its plan, its input and its result."""
    options.setdefault("topology", "ring_1d")
    plan = tl.read_kernel(kernel, [tl.Tensor("t", (elements,)), *extra], world_size=units, **options)
    check(plan)
    x = np.random.default_rng(0).integers(0, 4, (units, elements)).astype("f2")
    return plan, x, execute(plan, {"t": x})["t"]


def told(error_info):
    """Class, message and line of an error: what the plan and the mock have to agree on."""
    error = error_info.value
    return type(error), error.message, error.place.file, error.place.line


def both(kernel, error, units=4, topology="ring_1d", elements=4, extra=(), **options):
    """The error that a kernel gives as a plan and in the mock; both must be the same."""
    with pytest.raises(error) as as_plan:
        run(kernel, units, elements, extra, topology=topology, **options)
    inputs = list(np.zeros((units, elements), "f2"))
    with pytest.raises(error) as in_mock:
        run_kernel_in_mock(kernel, units, topology, inputs, extra, **options)
    assert told(as_plan) == told(in_mock)
    return as_plan.value
