"""Topologies by name: who is whose neighbour, in which direction.

Those of single ranks (``ring_1d``, ``mesh_2d`` …) are the ``tl`` language's own; here are the ones that know
how a machine is nested: ``hierarchical_3level`` and the wiring between cubes and SIPs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from megatile.collectives.job import CollectiveError
from megatile.collectives.registry import by_import_path
from megatile.core.registry import Registry
from megatile.hda import HDA
from megatile.language.kernel.directions import TOPOLOGIES, neighbor_maps

Neighbors = Callable[[int, int], Mapping[str, int]]


@dataclass(frozen=True)
class Floor:
    """The plan of an accelerator machine: SIPs on a grid, cubes on a mesh in each, PEs in each cube."""

    sips: tuple[int, int]
    mesh: tuple[int, int]
    pes: int
    wrap: bool = True
    """Whether the rows and columns of SIPs are rings."""

    @property
    def sip_count(self) -> int:
        return self.sips[0] * self.sips[1]

    @property
    def cubes(self) -> int:
        return self.mesh[0] * self.mesh[1]


def floor_of(hda: HDA) -> Floor:
    """Read the counts off a machine with the levels ``sip``, ``cube`` and ``pe``."""
    names = {level.name for level in hda.levels}
    if not {"sip", "cube", "pe"} <= names:
        raise CollectiveError(
            f"machine '{hda.name}' has no sip, cube and pe",
            advice="use ahbm, or collective() for any machine",
        )
    sips = _grid(hda, "sip", hda.count("sip"))
    wrap = not any(n.connects == "sip" and n.topology.kind == "mesh" for n in hda.networks)
    return Floor(sips, _grid(hda, "cube", hda.count("cube", "sip")), hda.count("pe", "cube"), wrap)


def _grid(hda: HDA, connects: str, count: int) -> tuple[int, int]:
    for network in hda.networks:
        dims = network.topology.dims
        if network.connects == connects and len(dims) == 2 and dims[0] * dims[1] == count:
            return dims[0], dims[1]
    return count, 1


def hierarchical_3level(floor: Floor) -> Neighbors:
    """Rings of PEs in a cube (E W), of the cubes' first PEs (N S), of the SIPs' first PEs (global_E/W)."""

    def neighbors(rank: int, world_size: int) -> dict[str, int]:
        pe, rest = rank % floor.pes, rank // floor.pes
        cube, sip = rest % floor.cubes, rest // floor.cubes
        home = rank - pe
        found = {}
        if floor.pes > 1:
            found = {"E": home + (pe + 1) % floor.pes, "W": home + (pe - 1) % floor.pes}
        first = sip * floor.cubes
        if pe == 0 and floor.cubes > 1:
            found["S"] = (first + (cube + 1) % floor.cubes) * floor.pes
            found["N"] = (first + (cube - 1) % floor.cubes) * floor.pes
        if pe == 0 and cube == 0 and floor.sip_count > 1:
            whole = floor.cubes * floor.pes
            found["global_E"] = (sip + 1) % floor.sip_count * whole
            found["global_W"] = (sip - 1) % floor.sip_count * whole
        return found

    return neighbors


def intercube(floor: Floor) -> Neighbors:
    """PE 0 of every cube: mesh neighbours without wrap-around, and the same cube of the neighbouring SIPs."""
    width, height = floor.mesh
    columns, rows = floor.sips

    def neighbors(rank: int, world_size: int) -> dict[str, int]:
        sip, cube = divmod(rank, floor.cubes)
        row, column = divmod(cube, width)
        found = {}
        if column < width - 1:
            found["E"] = rank + 1
        if column > 0:
            found["W"] = rank - 1
        if row < height - 1:
            found["S"] = rank + width
        if row > 0:
            found["N"] = rank - width
        y, x = divmod(sip, columns)
        for direction, dx, dy in ACROSS:
            to_x, to_y = x + dx, y + dy
            inside = 0 <= to_x < columns and 0 <= to_y < rows
            if (columns if dx else rows) > 1 and (inside or floor.wrap):
                found[direction] = (to_y % rows * columns + to_x % columns) * floor.cubes + cube
        return found

    return neighbors


NESTED: Registry[Callable[[Floor], Neighbors]] = Registry("topologies")
NESTED.add("hierarchical_3level", hierarchical_3level)
NESTED.add("intercube", intercube)


ACROSS = (("global_E", 1, 0), ("global_W", -1, 0), ("global_S", 0, 1), ("global_N", 0, -1))
"""Directions between SIPs, and where they lead on their grid."""
DIRECTIONS = {
    "hierarchical_3level": ("E", "W", "S", "N", "global_E", "global_W"),
    "intercube": ("E", "W", "S", "N", *(direction for direction, _, _ in ACROSS)),
}


def direction_names(name: Any, count: int) -> tuple[str, ...]:
    """The directions of a topology by name, also those in which nobody has a neighbour (a single row)."""
    if name in TOPOLOGIES:
        return TOPOLOGIES[name](count).names
    return DIRECTIONS.get(name, ())


def topology_names() -> list[str]:
    return sorted([*TOPOLOGIES, *NESTED])


def resolve_topology(name: Any, *, trust: bool = True) -> Callable[[Floor], Neighbors]:
    """A topology by registry name, or with ``trust`` by import path, as a function of the machine's floor.

    An imported one is a function ``(rank, world_size) -> {direction: peer}``.
    """
    if name in NESTED:
        return NESTED[name]
    if name in TOPOLOGIES:
        return lambda floor: _flat(name)
    if "." in str(name) or ":" in str(name):
        own = by_import_path(str(name), "topology", trust=trust)
        return lambda floor: own
    from megatile.core.errors import did_you_mean

    raise CollectiveError(
        f"unknown topology '{name}'", advice=did_you_mean(str(name), topology_names(), what="topologies")
    )


def _flat(name: str) -> Neighbors:
    maps: dict[int, list[dict[str, int]]] = {}

    def neighbors(rank: int, world_size: int) -> dict[str, int]:
        if world_size not in maps:
            maps[world_size] = neighbor_maps(name, world_size)
        return maps[world_size][rank]

    return neighbors
