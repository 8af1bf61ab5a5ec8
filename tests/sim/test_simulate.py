"""``sim/simulate.py``: ``simulate(plan, machine=…)``."""

from __future__ import annotations

import numpy as np
import pytest
from tests.sim.toys import ring, toy

from megatile.core.errors import MegatileError
from megatile.plan.execute import execute
from megatile.plan.model import Plan
from megatile.sim import simulate

WRONG = {
    "x <- neg(y)": "there is no tile 'y' here",
    "if q: pass": "'q' is not an integer that is known in if q",
    "wait(f, value=1)": "there is no flag 'f'",
    'collective("meet", g)': "there is no collective 'meet'",
    "m, k <- receive_any(c, f32[4], members=(9,), bytes=16)": "names member 9",
    "x <- add(x)": "takes 2 operands, not 1",
}


@pytest.mark.parametrize("engine", [None, "plain", "compiled"])
@pytest.mark.parametrize("command", WRONG)
def test_a_plan_that_does_not_hang_together_is_refused(command: str, engine: str | None) -> None:
    plan = Plan.from_text(f"""plan("p", scale="core", grid=(2,))
x = tile(f32, (4,), memory="local", role="inout")
c = channel(source=1 - unit, slots=1, slot_bytes=16, memory="local")
g = group(0)
with units((0, 2, 1)):
    {command}
""")
    with pytest.raises(MegatileError, match=WRONG[command]):
        simulate(plan, machine=toy(2), engine=engine)
    with pytest.raises(MegatileError, match=WRONG[command]):
        execute(plan, {"x": np.ones((2, 4))})


def test_arguments_of_the_wrong_kind() -> None:
    for plan, where in ((ring(3, 4), None), (ring(3, 4), 3), ("ring", "ahbm")):
        with pytest.raises(MegatileError, match="takes a Plan"):
            simulate(plan, machine=where)  # type: ignore[arg-type]


def test_standard_machines_by_name() -> None:
    plan = ring(8, 1024, scale="device", memory="l2")
    assert simulate(plan, machine="dgx-h100").time_ns > 0
