"""``timing/library_commands.py``: library kernels as commands of a Plan."""

from __future__ import annotations

import re

import numpy as np
import pytest

import megatile as mt
from megatile.core.errors import MegatileError


def test_a_message_time_that_is_not_a_number_is_one_sentence() -> None:
    plan = mt.model("Llama-3.1-8B").step([(1, 10)], machine="dgx-h100", pp=2).plan
    broken = re.sub(r"message_ps=\d+", 'message_ps="x"', str(plan))
    with pytest.raises(MegatileError, match="message_ps must be a whole number"):
        mt.simulate(mt.Plan.from_text(broken), machine="dgx-h100")


def test_library_kernels_have_a_time_and_no_data() -> None:
    plan = mt.model("Llama-3.1-8B").step([(1, 10)], machine="dgx-h100").plan
    with pytest.raises(MegatileError, match="computes no data"):
        mt.execute(plan, {"state": np.zeros((1, 1))})
    broken = str(plan).replace('shape="ns=', 'shape="nn=', 1)
    with pytest.raises(MegatileError, match="library_kernel: cannot read"):
        mt.simulate(mt.Plan.from_text(broken), machine="dgx-h100")
