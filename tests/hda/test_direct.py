"""``hda/direct.py``: networks whose endpoints are wired to each other."""

import math
from itertools import combinations, pairwise

import networkx as nx
import pytest
from tests.hda.shared import EDGES, every, graph_of, grid, label, real

from megatile.hda.direct import Edges, FullMesh, Tree
from megatile.hda.switched import Switched
from megatile.hda.topology import Run, Topology


@every
def test_routes_are_shortest_and_chain(topology: Topology) -> None:
    far = dict(nx.all_pairs_shortest_path_length(graph_of(topology)))
    for a in range(topology.size):
        for b in range(topology.size):
            hops = topology.hops(a, b)
            assert len(hops) == topology.hop_count(a, b) == far[str(a)][str(b)]
            assert len(set(hops)) == len(hops)
            ends = [topology.ends(link) for link in hops]
            assert all(0 <= link < topology.link_count for link in hops)
            if hops:
                assert ends[0][0] == str(a)
                assert ends[-1][1] == str(b)
            assert all(one[1] == two[0] for one, two in pairwise(ends))


@every
def test_links_have_two_directions_and_a_width(topology: Topology) -> None:
    graph = graph_of(topology)
    assert all(graph.has_edge(b, a) for a, b in graph.edges)
    for a, b in combinations(range(topology.size), 2):
        assert not set(topology.hops(a, b)) & set(topology.hops(b, a))
    assert all(topology.width(link) >= 1 for link in range(topology.link_count))


def test_ties_go_forward_on_a_ring() -> None:
    ring = grid((6,), (True,))
    assert ring.route(0, 3)[0].step == ring.route(3, 0)[0].step == 1


def test_a_route_has_one_run_per_dimension() -> None:
    wafer = grid((850, 1000), (False, False))
    runs = wafer.route(0, wafer.size - 1)
    assert [(run.axis, run.hops) for run in runs] == [("x", 849), ("y", 999)]


def test_a_wrap_over_two_is_not_a_second_cable() -> None:
    assert grid((2,), (True,)).wrap == (False,)
    assert list(grid((2, 2), (True, True)).neighbors(0)) == [1, 2]


def test_edges_prefer_low_numbers_and_know_their_cables() -> None:
    square = Edges(4, "edges", ((0, 1, 1), (1, 2, 1), (2, 3, 4), (3, 0, 1)))
    assert [square.ends(link) for link in square.hops(0, 2)] == [("0", "1"), ("1", "2")]
    assert [square.width(link) for link in square.hops(2, 3)] == [4]


def brute_force(topology: Topology) -> int:
    """Cables (one direction) of the smallest cut into halves; switches stand on the better side."""
    edges: dict[tuple[str, str], int] = {}
    for link in range(topology.link_count):
        ends = topology.ends(link)
        if ends[0] < ends[1] and all(real(end, topology.size) for end in ends):
            edges[ends] = edges.get(ends, 0) + topology.width(link)
    switches = sorted({end for pair in edges for end in pair if end.startswith("switch")})
    best = math.inf
    for half in combinations(map(str, range(topology.size)), topology.size // 2):
        for bits in range(2 ** len(switches)):
            side = {*half, *(s for i, s in enumerate(switches) if bits >> i & 1)}
            best = min(best, sum(w for (a, b), w in edges.items() if (a in side) != (b in side)))
    return int(best)


HALVED: list[Topology] = [
    *(grid((n,), (wrap,)) for n in range(2, 9) for wrap in (False, True)),
    *(
        grid(dims, wrap)
        for dims in [(2, 2), (3, 2), (4, 2), (3, 3), (2, 5), (4, 3), (2, 2, 3)]
        for wrap in [(False,) * len(dims), (True,) * len(dims), (True, False, False)[: len(dims)]]
    ),
    *(FullMesh(n, "full_mesh") for n in range(2, 8)),
    *(Tree(n, "tree", arity) for n in range(2, 12) for arity in (1, 2, 3, 9)),
    *(Switched(n, "switch") for n in range(2, 9)),
    *(Switched(n, "fat_tree", (2,), (over,)) for n in (4, 6, 8) for over in (1.0, 2.0)),
    Switched(9, "fat_tree", (3,)),
    Edges(5, "edges", ((0, 1, 1), (1, 2, 2), (2, 3, 1), (3, 4, 5), (4, 0, 3))),
    EDGES,
]


@pytest.mark.parametrize("topology", HALVED, ids=label)
def test_bisection_is_the_smallest_balanced_cut(topology: Topology) -> None:
    assert topology.bisection_links() == brute_force(topology)


@pytest.mark.parametrize("alone", [grid((1,), (True,)), FullMesh(1, "m"), Tree(1, "t", 2), Switched(1, "s")])
def test_one_unit_has_nothing_to_cut(alone: Topology) -> None:
    assert alone.bisection_links() == 0
    assert alone.hops(0, 0) == []
    assert list(alone.neighbors(0)) == []


def test_bisection_of_large_machines() -> None:
    assert grid((850, 1000), (False, False)).bisection_links() == 850
    assert grid((16, 16, 16), (True,) * 3).bisection_links() == 512
    assert FullMesh(100_000, "full_mesh").bisection_links() == 50_000**2
    assert Switched(32, "rails", (4,), (), 8).bisection_links() == 16
    assert Tree(1000, "tree", 2).bisection_links() == 1
    ring = Edges(40, "edges", tuple((i, (i + 1) % 40, 1) for i in range(40)))
    assert ring.bisection_links() == 2


def test_a_chain_is_not_walked() -> None:
    chain = Tree(10**12, "tree", 1)
    assert chain.route(10**12 - 1, 2) == (Run("up", 10**12 - 1, 2, 10**12 - 3),)
    assert chain.route(2, 10**12 - 1) == (Run("down", 2, 10**12 - 1, 10**12 - 3),)
    assert chain.hops(3, 5) == [9, 11]
