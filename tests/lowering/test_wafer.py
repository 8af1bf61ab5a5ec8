"""Grids of blocks on a wafer's mesh: neighbours stay neighbours whichever way a grid fits, and data agree."""

import runpy
from pathlib import Path

import numpy as np
import pytest

import megatile as mt
from megatile.sim import sharing
from megatile.timing.resources import control_ps

stencil = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "38_stencil.py"))["stencil"]
WAFER = mt.machine("cerebras-wse2", width=6, height=5)


@pytest.mark.parametrize(
    ("nx", "ny", "furthest"),
    [(6, 5, 1), (4, 3, 1), (5, 6, 1), (12, 2, 2), (2, 12, 2), (17, 1, 3)],
    ids=["whole", "part", "turned", "folded", "turned and folded", "folded twice"],
)
def test_neighbours_stay_near(nx, ny, furthest):
    low = mt.lower(stencil(nx, ny, h=2, w=2, steps=2), machine=WAFER)
    (level,) = low.plan.levels
    place = np.broadcast_to(level.place.evaluate({"unit": np.arange(nx * ny)}), (nx * ny,)).reshape(ny, nx)
    assert len(np.unique(place)) == nx * ny
    assert place.min() >= 0
    assert place.max() < 30
    x, y = place % 6, place // 6
    for axis in (0, 1):
        apart = abs(np.diff(x, axis=axis)) + abs(np.diff(y, axis=axis))
        assert apart.max(initial=0) <= furthest
    u = np.random.default_rng(0).standard_normal((2 * ny, 2 * nx), dtype=np.float32)
    expected = u.copy()
    mt.run(low.program, expected, machine=WAFER)
    np.testing.assert_array_equal(mt.execute(low, u)["U"], expected)
    assert mt.simulate(low, record=False).time_ps >= mt.price(low).lower_ps


def test_transfers_without_end_are_refused_in_a_sentence(monkeypatch):
    monkeypatch.setattr(sharing, "MAX_HOPS", 100)
    with pytest.raises(mt.MegatileError, match=r"cross more than 100 links.*side by side.*'fabric'"):
        mt.simulate(stencil(7, 4, h=2, w=2, steps=1), machine=WAFER)


@pytest.mark.parametrize("name", ["cerebras-wse2", "ahbm", "tpu-v5p"])
def test_a_captured_launch_leaves_the_host_out(name: str) -> None:
    """Neither the message that installs queues nor the one that starts the plan comes from the host."""
    hda = mt.machine(name, **({"width": 8, "height": 8} if name == "cerebras-wse2" else {}))
    plan = mt.collective("all_reduce", machine=hda, scale="block", nbytes=1024, algorithm="ring", ranks=2)
    usual, captured = (mt.simulate(plan, machine=hda, launch=launch).time_ps for launch in (True, False))
    assert usual - captured == 2 * control_ps(hda, hda.level(hda.scale("block").level).position)
    bounds = mt.price(plan, hda, launch=False)
    assert bounds.lower_ps <= captured <= bounds.upper_ps
