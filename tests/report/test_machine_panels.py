"""``report/machine_panels.py``: which levels of a machine get a panel, and what stands in each."""

from pathlib import Path

from tests.report.shared import SEED, grid_machine, one_level, texts

from megatile.hda import HDA, machine
from megatile.report.machine_panels import panels
from megatile.report.machine_picture import draw_machine


def test_panels_go_inwards_and_fold_levels_without_content() -> None:
    found = panels(machine("dgx-h100"))
    assert [panel.level.name for panel in found] == ["node", "gpu", "sm"]
    assert [panel.zoom for panel in found] == ["unit", "part", None]
    assert [panel.level.name for panel in panels(HDA.from_yaml(SEED))] == [
        "arch_level_3",
        "arch_level_1",
        "pe_level_2",
    ]


def test_a_level_that_wraps_one_unit_is_left_out() -> None:
    spec = one_level()
    spec["hw_spec"] = {
        "pe": [{"name": "x", "num_units": 1}],
        "pe_groups": [{"name": "wrapper", "num_units": 1}, {"name": "y", "num_units": 3}],
    }
    (panel,) = panels(HDA.from_dict(spec))
    assert panel.level.name == "y"
    assert panel.caption == "3 xs"


def test_a_network_across_units_draws_its_own_endpoints(tmp_path: Path) -> None:
    hda = grid_machine(topology="mesh", connects="core", dims=[6, 6])
    (panel,) = panels(hda)
    assert panel.caption == "36 cores in 4 dies"
    assert "core 35" in texts(draw_machine(hda, tmp_path / "a.svg"))
