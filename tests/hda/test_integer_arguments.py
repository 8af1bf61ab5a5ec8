"""Units, coordinates, ranks and counts: NumPy's integers are taken, everything else is refused in words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from megatile.core.errors import InstanceError, RouteError
from megatile.core.quantities import whole
from megatile.hda import ScaleView, Unit, machine

ODD: list[Any] = [True, 1.0, "1", None, (1,), np.float64(1)]


@pytest.mark.parametrize("value", ODD)
def test_no_whole_numbers(value: Any) -> None:
    assert whole(value) is None


@pytest.mark.parametrize("kind", [int, np.int8, np.int64, np.uint32])
def test_whole_numbers(kind: type) -> None:
    wafer = machine("cerebras-wse2")
    launch = wafer.instantiate([ScaleView("core", instance_num=(kind(3), 4))])
    assert whole(kind(5)) == 5
    assert type(whole(kind(5))) is int
    assert wafer.unit(("core", kind(7))) == Unit("core", 7)
    assert wafer.unit(("core", (kind(3), 4))) == Unit("core", 4 * 850 + 3)
    assert launch.coords("core", kind(4)) == ((1, 1),)
    assert launch.rank("core", [(kind(1), 1)]) == launch.rank("core", [[1, 1]]) == 4


@pytest.mark.parametrize("value", ODD)
def test_other_values_are_refused(value: Any) -> None:
    wafer = machine("cerebras-wse2")
    launch = wafer.instantiate([ScaleView("core", instance_num=(3, 4))])
    with pytest.raises(RouteError):
        wafer.unit(("core", (value, 4)))
    with pytest.raises(InstanceError, match="outside"):
        launch.rank("core", [(value, 1)])
    with pytest.raises(InstanceError, match="there is no core"):
        launch.coords("core", value)


def test_a_rank_in_place_of_coordinates_is_refused() -> None:
    launch = machine("cerebras-wse2").instantiate([ScaleView("core")])
    with pytest.raises(InstanceError, match="0 coordinates"):
        launch.rank("core", 5)  # type: ignore[arg-type]


def test_endless_unit_numbers_are_refused() -> None:
    with pytest.raises(RouteError, match="is not a unit"):
        machine("dgx-h100").unit("gpu:" + "9" * 5000)
