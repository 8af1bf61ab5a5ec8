"""The Plan's own random plans, timed: NumPy oracle, evaluators, determinism."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.plan.generator import cases
from toys import toy

from megatile.sim import simulate

slow = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
memories = st.sampled_from(["local", "common"])


@slow
@given(st.data(), memories, st.sampled_from(["ring", "line", "switch", "full_mesh"]), st.booleans())
def test_data_and_times(data, memory: str, topology: str, control: bool) -> None:
    case = data.draw(cases(scale="core", memory=memory, local="local"))
    hda = toy(
        max(2, case.plan.units),
        topology,
        control=control,
        network={"in_network_reduction": ["sum", "max", "min"]},
    )
    r = simulate(case.plan, case.inputs, machine=hda)
    np.testing.assert_array_equal(r.outputs["x"], case.expected["x"])
    oracle = simulate(case.plan, case.inputs, machine=hda, engine="bucket")
    assert oracle.time_ps == r.time_ps
    ahead, plain = r.recorded[1], oracle.recorded[1]
    assert ahead.start == plain.start
    assert ahead.end == plain.end
    assert sum(step.adds_ps for step in r.critical_path) == r.time_ps
