"""``timing/fit.py``: fit the free constants of a machine's ``kernels`` to measured times, and judge them on
times left out."""

import math

import numpy as np
import pytest
from tests.timing.shared import KERNELS, grid, put

import megatile as mt
from megatile.hda import HDA, machine
from megatile.timing.database import DatabaseError
from megatile.timing.fit import fit, machine_file, minimise
from megatile.timing.formulas import Device, gemm
from megatile.timing.measurements import read_measurements


def test_a_fit_finds_the_figures_that_made_the_times(tmp_path):
    other = machine("dgx-h100", **{"kernels.gemm.share": "60 %", "kernels.gemm.start": "9 us"})
    device = Device.of(other)
    rows = [
        m._replace(time_us=float(gemm(device, {**m.shape, "quantised": 0}, "bf16"))) for m in grid(step=2)
    ]
    (found,) = fit(machine("dgx-h100"), rows, held_out=0.25)
    assert found.before.median > 0.05
    assert found.after.median < 0.005
    assert found.figures["gemm"].share == pytest.approx(0.6, rel=0.02)
    assert found.fitted_rows + found.after.rows == len(rows)
    file = put(tmp_path, machine_file("fitted", "dgx-h100", [found], 'a test: of "figures"'), "fitted.yaml")
    again = Device.of(HDA.from_yaml(file)).kernel("gemm")
    assert again.start_us == pytest.approx(9, rel=0.02)


def test_too_little_to_fit():
    with pytest.raises(DatabaseError, match="too few to fit"):
        fit(machine("dgx-h100"), grid()[:5])
    with pytest.raises(DatabaseError, match="nothing to fit"):
        fit(machine("dgx-h100"), [])


def test_the_simplex_finds_a_minimum():
    found = minimise(
        lambda x: (math.log(x[0] / 3)) ** 2 + (math.log(x[1] / 700)) ** 2 + 1, np.array([1.0, 100.0])
    )
    assert found == pytest.approx([3, 700], rel=1e-3)


def test_figures_of_experts_are_fitted():
    rows = read_measurements(KERNELS / "deepep_h100.csv.gz", "dgx-h100")
    hda = mt.machine("hgx-a100")  # has no figures for them
    for found in fit(hda, rows, held_out=0.3):
        assert found.after.median < min(0.15, found.before.median)
        assert found.after.rows > 40
