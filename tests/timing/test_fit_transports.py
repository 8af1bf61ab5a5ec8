"""Constants of transports are found again from times that they make."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("scipy", reason="needs scipy")

from megatile.core.frozen import Frozen
from megatile.hda import HDA, machine
from megatile.timing.collective_choice import rule_of, times_ps
from megatile.timing.database import DatabaseError, Measurement
from megatile.timing.fit_transports import fit_measurements, machine_text, minimise_residuals

SIZES = [2**i for i in range(9, 31)]


def other_machine():
    """Times of a machine like dgx-h100 with a slower start and a slower link."""
    rule = rule_of(machine("dgx-h100"))
    protocols = dict(rule.figures.protocols)
    protocols["LL"] = replace(protocols["LL"], start_ps=8 * 10**6, step_ps=10**6)
    protocols["Simple"] = replace(protocols["Simple"], share=0.8)
    return replace(rule, figures=replace(rule.figures, protocols=Frozen(protocols)))


def measurements(rule, operation="all_gather", ranks=(2, 4, 8)):
    return [
        Measurement(
            "x", operation, "f16", "", {"ranks": n, "bytes": s}, float(times_ps(rule, operation, n, s)) / 1e6
        )
        for n in ranks
        for s in SIZES
    ]


def test_constants_are_found_again():
    found = fit_measurements(machine("dgx-h100"), measurements(other_machine()))
    assert found.held_after.rows + found.after.rows == 3 * len(SIZES)
    assert found.held_before.median > 0.05
    assert found.held_after.median < 0.01
    assert found.figures.protocols["LL"].start_ps / 1e6 == pytest.approx(8, rel=0.05)
    assert found.figures.protocols["Simple"].share == pytest.approx(0.8, rel=0.03)
    assert found.figures.protocols["NVLS"] == rule_of(machine("dgx-h100")).figures.protocols["NVLS"]
    assert all(0 < d < 2 for d in found.deviations)


def test_the_file_extends_the_machine(tmp_path):
    found = fit_measurements(machine("dgx-h100"), measurements(other_machine()))
    file = tmp_path / "mine.yaml"
    file.write_text(machine_text("mine", "dgx-h100", "nccl", found, 'fitted to "a.log"'), encoding="utf-8")
    hda = HDA.from_yaml(file)
    for each in ("LL", "Simple"):
        here, there = (vars(f.protocols[each]) for f in (hda.transports["device"]["nccl"], found.figures))
        assert {k: pytest.approx(v, rel=0.01) for k, v in there.items() if v} == {
            k: v for k, v in here.items() if v
        }
    assert "a.log" in hda.spec.transports["device"]["nccl"].protocols["LL"].source
    assert hda.transports["device"]["nccl"].channels == 24


def test_a_covariance_is_that_of_the_linear_problem():
    matrix = np.array([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]])
    found, covariance = minimise_residuals(lambda x: 1e-3 * (matrix @ (x - [3.0, -1.0])), np.zeros(2))
    assert found == pytest.approx([3, -1], abs=1e-3)
    assert covariance == pytest.approx(np.linalg.inv(1e-6 * matrix.T @ matrix), rel=1e-3)


@pytest.mark.parametrize(
    ("name", "rows", "message"),
    [
        ("cpu", 66, "machine 'cpu' has no transports to fit"),
        ("dgx-h100", 4, "4 rows of collectives are too few to fit"),
    ],
)
def test_what_cannot_be_fitted_is_one_sentence(name, rows, message):
    with pytest.raises(DatabaseError, match=message):
        fit_measurements(machine(name), measurements(other_machine())[:rows])


def test_more_ranks_than_devices_are_refused():
    rows = [m._replace(shape={"ranks": 64, "bytes": 8}) for m in measurements(other_machine())]
    with pytest.raises(DatabaseError, match="the log has 64 ranks, machine 'dgx-h100' only 8 devices"):
        fit_measurements(machine("dgx-h100"), rows)
