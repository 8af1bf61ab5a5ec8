"""What several files of tests/hda share."""

import math
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
import yaml

from megatile.hda import HDA, Instance, ScaleView, machine
from megatile.hda.direct import Edges, FullMesh, Grid, Tree
from megatile.hda.switched import Switched
from megatile.hda.topology import Topology


def grid(dims: tuple[int, ...], wrap: tuple[bool, ...]) -> Grid:
    return Grid(math.prod(dims), "grid", dims, wrap)


GRIDS = [
    grid((7,), (False,)),
    grid((1,), (True,)),
    grid((2,), (True,)),
    grid((6,), (True,)),
    grid((7,), (True,)),
    grid((4, 3), (False, False)),
    grid((4, 3), (True, True)),
    grid((5, 4), (True, False)),
    grid((1, 5), (True, True)),
    grid((2, 3, 4), (True, True, True)),
    grid((3, 2, 2, 2, 2), (False,) * 5),
]


EDGES = Edges(6, "edges", ((0, 1, 1), (1, 2, 2), (2, 3, 1), (3, 4, 1), (4, 0, 3), (1, 5, 1)))


DIRECT: list[Topology] = [
    *GRIDS,
    FullMesh(1, "full_mesh"),
    FullMesh(5, "full_mesh"),
    Tree(1, "tree", 2),
    Tree(11, "tree", 2),
    Tree(14, "tree", 3),
    Tree(5, "tree", 1),
    EDGES,
]


SWITCHED: list[Topology] = [
    Switched(8, "switch"),
    Switched(1, "switch"),
    Switched(16, "fat_tree", (4, 4)),
    Switched(16, "fat_tree", (2, 2, 2), (2.0,)),
    Switched(11, "fat_tree", (4, 2)),
    Switched(16, "rails", (2,), (), 4),
    Switched(20, "rails", (2, 2), (2.0, 2.0), 4),
    Switched(15, "rails", (2,), (), 3),
]


def label(topology: Topology) -> str:
    shape = "x".join(map(str, topology.dims))
    return f"{topology.kind}-{shape}-{getattr(topology, 'wrap', getattr(topology, 'arity', ''))}"


every = pytest.mark.parametrize("topology", [*DIRECT, *SWITCHED], ids=label)


def graph_of(topology: Topology) -> nx.DiGraph:
    """The expanded graph: of every link its ends, except those that hang in the air at an edge."""
    graph = nx.DiGraph()
    graph.add_nodes_from(map(str, range(topology.size)))
    for link in range(topology.link_count):
        start, stop = topology.ends(link)
        if real(start, topology.size) and real(stop, topology.size):
            graph.add_edge(start, stop)
    return graph


def real(end: str, size: int) -> bool:
    return end.startswith("switch") or (end.isdecimal() and int(end) < size)


SEED = HDA.from_yaml(Path(__file__).parents[1] / "data" / "seed-h100.yaml")


H100 = machine("dgx-h100")


CLUSTER = machine("h100-cluster", nodes=12_500)


WAFER = machine("cerebras-wse2")


AHBM = machine("ahbm", sips=4)


def launch(hda: HDA, *views: ScaleView) -> Instance:
    return hda.instantiate(list(views))


def flat(name: str, count: int | tuple[int, ...] = -1) -> ScaleView:
    return ScaleView(name, instance_num=count, is_flatten=True)


def write(folder: Path, name: str, data: Any) -> Path:
    path = folder / name
    path.write_text(
        data if isinstance(data, str) else yaml.safe_dump(data, sort_keys=False), encoding="utf-8"
    )
    return path
