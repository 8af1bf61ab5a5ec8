"""``hda/places.py``: units of a machine."""

import pytest
from hypothesis import given, strategies as st
from tests.hda.shared import AHBM, H100, SEED, WAFER

from megatile.core.errors import MachineError, MegatileError, RouteError
from megatile.hda import HDA, Unit, machine


def test_counts() -> None:
    assert (H100.count("gpu"), H100.count("sm"), H100.count("thread", within="warp")) == (8, 1056, 32)
    with pytest.raises(MachineError, match="'gpu' is larger than 'block'"):
        H100.count("gpu", within="block")


def test_parents_and_children() -> None:
    assert H100.parent(("sm", 140), "gpu") == Unit("gpu", 1)
    assert H100.parent(("sm", 140), "sm") == Unit("sm", 140)
    assert [u.index for u in H100.children(("gpu", 1), "tpc")][:2] == [66, 67]
    with pytest.raises(RouteError, match="larger"):
        H100.parent(("gpu", 0), "sm")
    with pytest.raises(RouteError, match="larger than gpu:0"):
        H100.children(("gpu", 0), "node")


@given(st.integers(0, 1055))
def test_a_unit_is_a_child_of_its_parent(index: int) -> None:
    gpu = H100.parent(("block", index), "device")
    assert Unit("sm", index) in H100.children(gpu, "block")


@pytest.mark.parametrize("what", [("gpu", 3), "gpu:3", "device:3", Unit("gpu", 3), ("devices", 3)])
def test_ways_to_name_a_unit(what: tuple[str, int]) -> None:
    assert H100.unit(what) == Unit("gpu", 3)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("gpu", "not a unit .*gpu:3"),
        ("gpu:x", "not a unit"),
        ("gpu:²", "not a unit"),
        ("gpu:--3", "not a unit"),
        ("gpu:-1", "gpu -1 does not exist"),
        (("gpu", 8), "gpu 8 does not exist .*there are 8, from 0"),
        (("gpu", True), "does not exist"),
        (("gpu", 1.5), "does not exist"),
        (("gup", 1), "no scale 'gup' .*did you mean 'gpu'"),
        (("lane", (1, 2)), "no coordinates"),
        (3, "not a unit"),
        ((1, 2), "not a unit"),
    ],
)
def test_units_that_are_not(what: object, message: str) -> None:
    with pytest.raises(MegatileError, match=message):
        H100.unit(what)  # type: ignore[arg-type]


def test_coordinates() -> None:
    assert WAFER.coords(("core", (3, 5))) == {"wafer": (0,), "core": (3, 5)}
    assert WAFER.unit(("core", (3, 5))).index == 5 * 850 + 3
    assert AHBM.coords(("pe", 128 + 8 * 6 + 5)) == {"system": (0,), "sip": (1,), "cube": (2, 1), "pe": (1, 1)}
    with pytest.raises(RouteError, match="outside the 850×1000"):
        WAFER.unit(("core", (850, 0)))


def test_aliases_and_standard_scales() -> None:
    assert H100.scale("gpu") == H100.scale("device") == H100.scale("devices")
    assert H100.scale("warp_group") == H100.scale("warpgroup")
    assert H100.scale("tbc") == H100.scale("cluster") == H100.scale("cta_cluster")
    assert (H100.scale("tbc").level, H100.scale("cta_pair").level) == ("gpc", "tpc")
    assert H100.scale("threads") == H100.scale("thread")
    assert SEED.scale("warpgroup").name == "warp_group"
    assert WAFER.scale("warp").implied
    assert WAFER.count("warp") == WAFER.count("block") == 850_000
    assert WAFER.count("node") == WAFER.count("cluster") == 1
    assert machine("hgx-a100").count("cluster", within="device") == 1


def levels(*names: str) -> dict[str, object]:
    first, *rest = ({"name": name, "num_units": 2} for name in names)
    return {"pe": [{**first, "num_units": 1}], "pe_groups": rest}


def test_an_undeclared_standard_scale_is_on_the_level_of_its_name() -> None:
    hda = HDA(levels("core", "node", "rack", "system"), [{"name": "block", "target": "core"}])
    assert (hda.scale("node").level, hda.count("node")) == ("node", 4)
    assert hda.scale("device").level == "node"
    assert hda.unit(Unit("node", 1)) == Unit("node", 1)
    assert hda.parent("core:5", "node") == hda.units("node")[2]


def test_a_level_in_the_wrong_place_is_not_the_scale() -> None:
    hda = HDA(levels("node", "core", "system"), [{"name": "block", "target": "core"}])
    assert hda.scale("node").level == "system"
