"""Questions to a machine: units, parents, coordinates, routes, neighbours, shared memory, bisection."""

from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from tests.hda.small import SMALL, small

from megatile.core.errors import MachineError, MegatileError, MissingDescriptionError, RouteError
from megatile.hda import (
    HDA,
    ComputeUnit,
    HardwareAbstraction,
    HardwareSpecification,
    Link,
    ScaleView,
    Unit,
    machine,
)

SEED = HDA.from_yaml(Path(__file__).parents[1] / "data" / "seed-h100.yaml")
H100 = machine("dgx-h100")
CLUSTER = machine("h100-cluster", nodes=12_500)
WAFER = machine("cerebras-wse2")
AHBM = machine("ahbm", sips=4)


def test_the_seed_file_loads_unchanged() -> None:
    assert [level.total for level in SEED.levels] == [147456, 4608, 1152, 576, 64, 8, 1]
    assert [s.name for s in SEED.scales][:3] == ["thread", "warp", "warp_group"]
    assert SEED.count("block", within="gpu") == 144


def test_who_needs_more_says_which_keys() -> None:
    with pytest.raises(
        MissingDescriptionError, match=r"does not describe: memory, engines .*add the keys memory"
    ):
        SEED.require("memory", "engines")
    for ask in (lambda: SEED.memory("l1"), lambda: SEED.network("x"), lambda: SEED.bisection("gpu")):
        with pytest.raises(MissingDescriptionError):
            ask()
    with pytest.raises(MissingDescriptionError, match="networks"):
        SEED.route(("gpu", 0), ("gpu", 1))
    H100.require("memory", "networks", "engines", "control")


def test_made_of_objects() -> None:
    made = HDA(
        HardwareSpecification([ComputeUnit("lane", 1)], [ComputeUnit("core", 8)]),
        HardwareAbstraction([ScaleView("thread", "lane"), ScaleView("block", "core", "lambda _t, _b: _b")]),
        name="made",
    )
    assert (made.name, made.count("thread"), made.count("block")) == ("made", 8, 1)
    assert HDA.from_dict(made.to_dict()) == made
    assert made.hw_spec.pe[0].name == "lane"
    assert made.hw_abstr.scales[1].target == "core"


def test_units_are_lazy() -> None:
    cores = WAFER.units("core")
    assert len(cores) == 850_000
    assert cores[5] == Unit("core", 5)
    assert cores[-1].index == 849_999
    assert len(cores[10:20]) == 10
    assert Unit("core", 3) in cores
    assert Unit("wafer", 0) not in cores
    assert "850000" in repr(cores)


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


# routes


def test_routes_across_levels() -> None:
    near, far = CLUSTER.route(("gpu", 0), ("gpu", 5)), CLUSTER.route(("gpu", 0), ("gpu", 8))
    assert (near.networks, near.hop_count) == (("nvlink",), 2)
    assert (far.networks, far.hop_count) == (("infiniband",), 2)
    assert CLUSTER.route(("gpu", 0), ("gpu", 9)).hop_count > 2, "another rail"
    assert far.bandwidth == pytest.approx(0.97 * 50e9)
    assert far.latency_ps == 2 * 500_000 + 130_000
    assert CLUSTER.route(("sm", 0), ("sm", 132 * 8)).networks == ("infiniband",)
    assert H100.route(("sm", 0), ("sm", 5)).networks == ("dsmem",)


def test_a_route_to_itself_is_empty() -> None:
    same = H100.route(("gpu", 3), ("gpu", 3))
    assert (same.legs, same.hop_count, same.latency_ps, len(same)) == ((), 0, 0, 0)
    assert same.bandwidth == float("inf")
    assert H100.route(("gpu", 1), ("sm", 140)).legs == (), "inside it"


def test_hops_name_network_owner_and_link() -> None:
    route = AHBM.route(("cube", 17), ("cube", 23))
    hops = list(route.hops())
    assert len(hops) == len(route) == 3
    assert hops[0] == Link("cubes", 1, hops[0].number)
    assert route == AHBM.route(("cube", 17), ("cube", 23))
    assert hash(route) == hash(AHBM.route(("cube", 17), ("cube", 23)))
    assert "cubes[x×2, y×1]" in repr(route)


def test_via() -> None:
    assert CLUSTER.route(("gpu", 0), ("gpu", 1), via="infiniband").networks == ("infiniband",)
    with pytest.raises(RouteError, match="no network nvlink joins"):
        CLUSTER.route(("gpu", 0), ("gpu", 8), via="nvlink")
    with pytest.raises(MachineError, match=r"no network 'nvlnk' .*did you mean 'nvlink'"):
        CLUSTER.route(("gpu", 0), ("gpu", 1), via="nvlnk")


def test_gateways_add_the_way_in_and_out() -> None:
    boards = {
        "name": "boards",
        "level": "board",
        "topology": "ring",
        "bandwidth": "1 GB/s",
        "latency": "10 ns",
    }
    data = small()
    data["networks"].append(boards)
    plain = HDA.from_dict(data).route(("core", 4), ("core", 11))
    assert plain.networks == ("boards",)
    data["networks"][0]["gateway"] = 0
    hda = HDA.from_dict(data)
    route = hda.route(("core", 4), ("core", 11))
    assert route.networks == ("mesh", "boards", "mesh")
    mesh = hda.network("mesh").topology
    numbers = [mesh.hops(4, 0), hda.network("boards").topology.hops(0, 1), mesh.hops(0, 5)]
    assert [h.number for h in route.hops()] == [link for part in numbers for link in part]
    assert sorted({h.owner for h in route.hops() if h.network == "mesh"}) == [0, 1]
    assert route.latency_ps == 2000 * (mesh.hop_count(4, 0) + mesh.hop_count(0, 5)) + 10_000
    assert hda.route(("core", 0), ("core", 6)).networks == ("boards",), "both are gateways"
    assert hda.route(("chip", 0), ("core", 11)).networks == ("boards", "mesh")


def test_units_without_a_network_are_told_of_shared_memory() -> None:
    with pytest.raises(RouteError, match=r"no network joins lane:0 and lane:1 .*share memory 'ram'"):
        HDA.from_dict(SMALL).route(("thread", 0), ("thread", 1))
    with pytest.raises(RouteError, match="describe a network"):
        HDA.from_dict(SMALL).route(("chip", 0), ("chip", 1))


def test_shared_memory() -> None:
    assert H100.shared_memory(("thread", 0), ("thread", 40)).name == "shared"  # type: ignore[union-attr]
    assert H100.shared_memory(("sm", 0), ("sm", 1)).name == "hbm"  # type: ignore[union-attr]
    assert H100.shared_memory(("gpu", 0), ("gpu", 1)) is None


# neighbours and bisection


def test_neighbours() -> None:
    assert [u.index for u in H100.neighbors(("gpu", 3))] == [0, 1, 2, 4, 5, 6, 7]
    assert {u.index for u in WAFER.neighbors(("core", (1, 1)))} == {851 + 1, 851 - 1, 851 + 850, 851 - 850}
    assert [u.index for u in AHBM.neighbors(("cube", 16))] == [17, 20], "no wrap, inside its own SIP"
    assert list(H100.neighbors(("tpc", 0))) == []


def test_neighbours_of_100_000_gpus_are_lazy() -> None:
    assert CLUSTER.count("gpu") == 100_000
    for index, on_leaf in ((0, 32), (99_999, 12_500 % 32)):
        near = CLUSTER.neighbors(("gpu", index), via="infiniband")
        assert len(near) == on_leaf - 1
        assert all(u.index % 8 == index % 8 for u in near)
        assert len(CLUSTER.neighbors(("gpu", index))) == 7 + on_leaf - 1
    wide = HDA.from_dict(small(hw_spec__pe_groups__0__num_units=10**9, networks__0__topology="full_mesh"))
    near = wide.neighbors(("core", 5))
    assert len(near) == 10**9 - 1
    assert (near[4].index, near[5].index) == (4, 6)


def test_bisection() -> None:
    assert H100.bisection("gpu") == pytest.approx(4 * 450e9 * 0.873)
    assert WAFER.bisection("core") == pytest.approx(850 * 4 * 1.1e9)
    assert CLUSTER.bisection("gpu") == pytest.approx(50_000 * 50e9 * 0.97)
    assert machine("mi300x-8").bisection("gpu") == pytest.approx(16 * 64e9 * 0.727)
    assert H100.bisection("node") == 0
    with pytest.raises(RouteError, match="no network joins units of 'chip'"):
        HDA.from_dict(SMALL).bisection("chip")


# names, equality, text


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


def test_an_undeclared_standard_scale_stands_on_the_level_of_its_name() -> None:
    hda = HDA(levels("core", "node", "rack", "system"), [{"name": "block", "target": "core"}])
    assert (hda.scale("node").level, hda.count("node")) == ("node", 4)
    assert hda.scale("device").level == "node"
    assert hda.unit(Unit("node", 1)) == Unit("node", 1)
    assert hda.parent("core:5", "node") == hda.units("node")[2]


def test_a_level_in_the_wrong_place_is_not_the_scale() -> None:
    hda = HDA(levels("node", "core", "system"), [{"name": "block", "target": "core"}])
    assert hda.scale("node").level == "system"


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: H100.scale("blok"), "no scale 'blok' .*did you mean 'block'"),
        (lambda: H100.memory("share"), "no memory 'share' .*did you mean 'shared'"),
        (lambda: H100.network("nvlnk"), "no network 'nvlnk' .*did you mean 'nvlink'"),
    ],
)
def test_unknown_names(ask: object, message: str) -> None:
    with pytest.raises(MachineError, match=message):
        ask()  # type: ignore[operator]


def test_equal_machines_have_equal_hashes() -> None:
    one = HDA.from_dict(small(memory__0__bandwidth="0.5 TB/s"))
    two = HDA.from_dict(small(memory__0__bandwidth="500 GB/s"))
    assert one == two
    assert hash(one) == hash(two)
    assert one != HDA.from_dict(SMALL)
    assert one != 3


def test_a_machine_cannot_be_changed() -> None:
    with pytest.raises(AttributeError, match="cannot be changed"):
        H100.name = "x"  # type: ignore[misc]


def test_engines_and_throughput() -> None:
    assert [e.name for e in H100.engines_of("block", "tensor")] == ["tensor_core"]
    assert [e.name for e in H100.engines_of("device")] == ["copy_engine"]
    assert H100.throughput("device", "f8e5m2") == H100.throughput("device", "f8e4m3")
    assert H100.throughput("node", "f16") == pytest.approx(8 * H100.throughput("device", "f16"))
    assert H100.throughput("device", "bool", kind="dma") == 0


def test_text() -> None:
    assert repr(H100) == "HDA(dgx-h100: 8 gpu × 6 gpc × 11 tpc × 2 sm × 4 subcore × 32 lane)"


def test_a_million_units_are_cheap() -> None:
    for i in range(2000):
        assert WAFER.route(("core", i * 400), ("core", 849_999 - i)).hop_count >= 0


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


def test_who_asks_for_engines_or_neighbours_says_which_keys() -> None:
    with pytest.raises(MissingDescriptionError, match="engines"):
        SEED.throughput("gpu", "f16")
    with pytest.raises(MissingDescriptionError, match="networks"):
        SEED.neighbors("gpu:0")
