"""``hda/routing.py``: routes through the networks of a machine."""

import pytest
from tests.hda.shared import AHBM, CLUSTER, H100
from tests.hda.small import SMALL, small

from megatile.core.errors import RouteError
from megatile.hda import HDA, Link


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


def test_units_without_a_network_are_pointed_to_shared_memory() -> None:
    with pytest.raises(RouteError, match=r"no network joins lane:0 and lane:1 .*share memory 'ram'"):
        HDA.from_dict(SMALL).route(("thread", 0), ("thread", 1))
    with pytest.raises(RouteError, match="describe a network"):
        HDA.from_dict(SMALL).route(("chip", 0), ("chip", 1))


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
