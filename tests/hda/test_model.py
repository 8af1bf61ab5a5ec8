"""``hda/model.py``: the parts of a machine with every number resolved."""

import pytest
from tests.hda.shared import WAFER

from megatile.hda import Unit, machine


def test_units_are_lazy() -> None:
    cores = WAFER.units("core")
    assert len(cores) == 850_000
    assert cores[5] == Unit("core", 5)
    assert cores[-1].index == 849_999
    assert len(cores[10:20]) == 10
    assert Unit("core", 3) in cores
    assert Unit("wafer", 0) not in cores
    assert "850000" in repr(cores)


def test_units_are_compared_and_found_without_counting_them_off() -> None:
    wafer = machine("cerebras-wse2", width=10**6, height=10**6)
    units = wafer.units("core")
    assert units == machine("cerebras-wse2", width=10**6, height=10**6).units("core")
    assert units != wafer.units("wafer")
    assert units[5:] != units[6:]
    assert units.index(Unit("core", 10**12 - 1)) == 10**12 - 1
    assert units[10:].index(("core", 12)) == 2
    with pytest.raises(ValueError, match="is not among"):
        units.index(("core", 10**12))
    near = machine("dgx-h100").neighbors("gpu:3")
    assert near == machine("dgx-h100").neighbors("gpu:3")
    assert near != machine("dgx-h100").neighbors("gpu:4")
    assert near.index(("gpu", 4)) == 3
