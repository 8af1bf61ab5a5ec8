"""From the description of a network to its topology; what does not fit is refused at its place."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from megatile.hda.direct import Edges, FullMesh, Grid, Tree
from megatile.hda.document import Document, KeyPath
from megatile.hda.switched import Switched
from megatile.hda.topology import Topology


def wire(n: Any, size: int, document: Document, key_path: KeyPath) -> Topology:
    """Return the topology of one network over ``size`` endpoints."""
    for key, kinds in _ONLY_FOR.items():
        if getattr(n, key) not in (None, ()) and n.topology not in kinds:
            raise document.error(
                f"a {n.topology} has no {key}",
                (*key_path, key),
                f"{key} goes with: {', '.join(sorted(kinds))}",
            )
    return _TOPOLOGIES[n.topology](n, size, document, key_path)


def _grid(n: Any, size: int, document: Document, key_path: KeyPath) -> Topology:
    one = n.topology in ("ring", "line")
    dims = ((size,) if one else _square(size)) if n.dims is None else n.dims
    if not dims:
        raise document.error(f"a {n.topology} needs at least one dimension", (*key_path, "dims"))
    if one and len(dims) != 1:
        raise document.error(
            f"a {n.topology} has one dimension, not {len(dims)}", (*key_path, "dims"), "use mesh or torus"
        )
    if math.prod(dims) != size:
        shown = "×".join(map(str, dims))
        raise document.error(
            f"dims {shown} make {math.prod(dims)} units, but there are {size}",
            (*key_path, "dims"),
            f"write dims: {list((size,) if one else _square(size))}, or others whose product is {size}",
        )
    wrap = n.wrap if n.wrap is not None else (n.topology in ("ring", "torus"),)
    if len(wrap) == 1:
        wrap = wrap * len(dims)
    if len(wrap) != len(dims):
        raise document.error(f"wrap has {len(wrap)} entries for {len(dims)} dimensions", (*key_path, "wrap"))
    return Grid(size, n.topology, tuple(dims), tuple(wrap))


def _switched(n: Any, size: int, document: Document, key_path: KeyPath) -> Topology:
    if len(n.oversubscription) > len(n.arity or ()):
        raise document.error("oversubscription has more tiers than arity", (*key_path, "oversubscription"))
    rails = n.rails or 1
    if n.topology == "rails" and n.rails is None:
        raise document.error("rails needs the number of rails", key_path, "add rails: 8")
    if size % rails:
        raise document.error(f"{size} units do not divide into {rails} rails", (*key_path, "rails"))
    return Switched(size, n.topology, n.arity or (), n.oversubscription, rails)


def _tree(n: Any, size: int, document: Document, key_path: KeyPath) -> Topology:
    if n.arity and len(n.arity) > 1:
        raise document.error(
            "a tree has one arity", (*key_path, "arity"), "use fat_tree for several tiers of switches"
        )
    return Tree(size, n.topology, n.arity[0] if n.arity else 2)


def _edge_list(n: Any, size: int, document: Document, key_path: KeyPath) -> Topology:
    if not n.edges:
        raise document.error("topology edges needs a list of edges", key_path, "add edges: [[0, 1], [1, 2]]")
    if len(n.edges) < size - 1:
        raise document.error(f"{len(n.edges)} edges cannot join {size} units", (*key_path, "edges"))
    seen = set()
    for i, (a, b, _) in enumerate(n.edges):
        at = (*key_path, "edges", i)
        if not (0 <= a < size and 0 <= b < size):
            raise document.error(
                f"edge [{a}, {b}] leaves the range 0…{size - 1} of the {size} units that '{n.name}' joins",
                at,
                "list the edges of these units only; to use part of a machine, name ranks instead",
            )
        if a == b or frozenset((a, b)) in seen:
            raise document.error(
                f"edge [{a}, {b}] joins a unit to itself" if a == b else f"edge [{a}, {b}] appears twice",
                at,
                "write [a, b, 2] for two cables",
            )
        seen.add(frozenset((a, b)))
    topology = Edges(size, n.topology, n.edges)
    if cut_off := topology.unreachable():
        raise document.error(f"no edge reaches unit {cut_off[0]} from unit 0", (*key_path, "edges"))
    return topology


def _full_mesh(n: Any, size: int, document: Document, key_path: KeyPath) -> Topology:
    return FullMesh(size, n.topology)


def _square(size: int) -> tuple[int, int]:
    """Return the two factors nearest to each other, the larger first."""
    low = math.isqrt(size)
    while size % low:
        low -= 1
    return size // low, low


_ONLY_FOR: dict[str, frozenset[str]] = {
    "dims": frozenset({"ring", "line", "mesh", "torus"}),
    "wrap": frozenset({"ring", "line", "mesh", "torus"}),
    "arity": frozenset({"tree", "fat_tree", "rails"}),
    "oversubscription": frozenset({"fat_tree", "rails"}),
    "rails": frozenset({"rails"}),
    "edges": frozenset({"edges"}),
}
_TOPOLOGIES: dict[str, Callable[[Any, int, Document, KeyPath], Topology]] = {
    "ring": _grid,
    "line": _grid,
    "mesh": _grid,
    "torus": _grid,
    "switch": _switched,
    "fat_tree": _switched,
    "rails": _switched,
    "full_mesh": _full_mesh,
    "tree": _tree,
    "edges": _edge_list,
}
