"""Every algorithm on every kind of network, as a user would ask for it: right results and a time."""

from __future__ import annotations

import numpy as np
import pytest
from tests.collectives.shared import cases

import megatile as mt
from megatile.collectives import predict
from megatile.collectives.job import OPERATIONS, REDUCING
from megatile.collectives.reference import make_inputs, wrong_elements


@pytest.mark.parametrize(("hda", "operation", "name", "fields"), list(cases()))
def test_right_and_timed(hda, operation, name, fields):
    found = predict(operation, machine=hda, algorithm=name, **fields)
    job = found.job
    assert found.time_ps > 0
    if operation == "barrier":
        return
    inputs = make_inputs(job, seed=1)
    result = mt.simulate(found.plan, {"x": np.stack(inputs)}, machine=hda)
    assert wrong_elements(job, inputs, result.outputs["x" if job.in_place else "y"]) == 0


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "i32"])
def test_nothing_to_move(operation, dtype):
    """No elements: a plan all the same, with nothing in it that counts."""
    found = predict(operation, machine="dgx-h100", nbytes=0, dtype=dtype)
    assert found.job.count == 0
    mt.check(found.plan)
    inputs = make_inputs(found.job)
    if inputs:
        outputs = mt.execute(found.plan, {"x": np.stack(inputs)})
        assert wrong_elements(found.job, inputs, outputs["y"]) == 0


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("ranks", [[3], [6, 1], [5, 0, 7], [0, 2, 4, 6]])
def test_some_of_the_devices(operation, ranks):
    """Sub-groups in any order; ranks count in the order given."""
    found = predict(operation, machine="dgx-h100", nbytes=4 * 13, ranks=ranks)
    assert found.job.ranks == len(ranks)
    inputs = make_inputs(found.job, seed=2)
    if inputs:
        result = mt.simulate(found.plan, {"x": np.stack(inputs)}, machine="dgx-h100")
        assert wrong_elements(found.job, inputs, result.outputs["y"]) == 0


@pytest.mark.parametrize("reduction", ["sum", "max", "min", "prod", "avg"])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "i32"])
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("operation", REDUCING)
def test_every_reduction_of_every_type(operation, reduction, dtype, in_place):
    fields = {"reduction": reduction, "dtype": dtype, "in_place": in_place, "nbytes": 4 * 14}
    found = predict(operation, machine="mi300x-8", algorithm="direct", **fields)
    inputs = make_inputs(found.job, seed=3)
    outputs = mt.execute(found.plan, {"x": np.stack(inputs)})
    assert wrong_elements(found.job, inputs, outputs["x" if in_place else "y"]) == 0
