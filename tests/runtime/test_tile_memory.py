"""``runtime/tile_memory.py``: where the tiles of a process lie."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: plans cannot run on processes")

from tests.runtime.launch_cases import UNITS, X, builder, on_ranks  # noqa: E402

from megatile.core.expr import unit  # noqa: E402


def test_a_get_before_any_barrier_reads_what_was_given() -> None:
    b, x, y, _ = builder()
    with b.loop(0, 2, index="k") as loop:
        b.copy(y[loop.index], x[loop.index].at((unit + 1) % UNITS))
    plan = b.finish()
    np.testing.assert_array_equal(on_ranks(plan, {"x": X})["y"], np.roll(X, -1, axis=0))
