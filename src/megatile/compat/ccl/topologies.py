"""Topologies by name: who is whose neighbour, in which direction.

Those of single ranks (``ring_1d``, ``mesh_2d`` …) are the ``tl`` language's own; here are the ones that know
how a machine is nested: ``hierarchical_3level`` and the wiring between cubes and SIPs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from megatile.collectives.job import CollectiveError
from megatile.collectives.registry import by_import_path
from megatile.core.arguments import no_none
from megatile.core.errors import did_you_mean
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
    if not {"sip", "cube", "pe"} <= {level.name for level in hda.levels}:
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
        inside = {"E": column < width - 1, "W": column > 0, "S": row < height - 1, "N": row > 0}
        steps = {"E": 1, "W": -1, "S": width, "N": -width}
        found = {direction: rank + step for direction, step in steps.items() if inside[direction]}
        y, x = divmod(sip, columns)
        for direction, dx, dy in ACROSS:
            to_x, to_y = x + dx, y + dy
            there = floor.wrap or (0 <= to_x < columns and 0 <= to_y < rows)
            if (columns if dx else rows) > 1 and there:
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


# --- Mappers: which PEs of a SIP take part. Validators: how a tensor must lie for an algorithm --------------


Mapper = Callable[[Mapping[str, Any], int], list[tuple[int, int]]]
"""From the machine as a nested dict (`spec_of`) and a SIP to the (cube, pe) that take part."""
Validator = Callable[[Any, int, Mapping[str, Any]], None]
"""Refuses a tensor (its ``shards`` on all SIPs) whose placement does not suit; also gets the nested dict."""
Found = TypeVar("Found")

MAPPERS: Registry[Mapper] = Registry("mappers")
VALIDATORS: Registry[Validator] = Registry("validators")


@MAPPERS.register("leader_only")
def leader_only(spec: Mapping[str, Any], rank: int) -> list[tuple[int, int]]:
    """PE 0 of cube 0."""
    return [(0, 0)]


@MAPPERS.register("all_pes")
def all_pes(spec: Mapping[str, Any], rank: int) -> list[tuple[int, int]]:
    """Every PE of the SIP, cube by cube."""
    return [(cube, pe) for cube in range(_cubes(spec)) for pe in range(_pes(spec))]


@MAPPERS.register("cube_leaders")
def cube_leaders(spec: Mapping[str, Any], rank: int) -> list[tuple[int, int]]:
    """PE 0 of every cube."""
    return [(cube, 0) for cube in range(_cubes(spec))]


def _cubes(spec: Mapping[str, Any]) -> int:
    mesh = spec["sip"]["cube_mesh"]
    return int(mesh["w"]) * int(mesh["h"])


def _pes(spec: Mapping[str, Any]) -> int:
    layout = spec["cube"]["pe_layout"]
    return len(layout["corners"]) * int(layout["pe_per_corner"])


@VALIDATORS.register("single_shard_per_rank")
def single_shard_per_rank(tensor: Any, world_size: int, spec: Mapping[str, Any]) -> None:
    """One shard on each of ``world_size`` SIPs."""
    _expect(tensor, world_size, 1)


@VALIDATORS.register("multi_pe_sip_local")
def multi_pe_sip_local(tensor: Any, world_size: int, spec: Mapping[str, Any]) -> None:
    """On each of ``world_size`` SIPs one shard per PE."""
    _expect(tensor, world_size, _cubes(spec) * _pes(spec))


@VALIDATORS.register("shard_per_cube")
def shard_per_cube(tensor: Any, world_size: int, spec: Mapping[str, Any]) -> None:
    """On each of ``world_size`` SIPs one shard per cube."""
    _expect(tensor, world_size, _cubes(spec))


def _expect(tensor: Any, world_size: int, each: int) -> None:
    found = Counter(shard.sip for shard in tensor.shards)
    wrong = {sip: count for sip, count in sorted(found.items()) if count != each}
    if wrong or len(found) != world_size:
        shown = ", ".join(f"SIP {sip}: {count}" for sip, count in sorted(found.items())) or "none"
        raise CollectiveError(
            f"needs {each} per SIP on {world_size} SIPs, the tensor has shards on {shown}",
            advice="create the tensor with another DPPolicy, or choose another algorithm",
        )


@no_none
def resolve_mapper(name: str, *, trust: bool = False) -> Mapper:
    """A mapper by registry name, or with ``trust`` by import path."""
    return _resolve(MAPPERS, name, "mapper", trust)


@no_none
def resolve_validator(name: str, *, trust: bool = False) -> Validator:
    """A validator by registry name, or with ``trust`` by import path."""
    return _resolve(VALIDATORS, name, "validator", trust)


def _resolve(known: Registry[Found], name: str, what: str, trust: bool) -> Found:
    if name in known:
        return known[name]
    if "." in name or ":" in name:
        return cast(Found, by_import_path(name, what, trust=trust))
    advice = did_you_mean(name, known, what=f"{what}s")
    listed = ", ".join(sorted(known))
    raise CollectiveError(f"unknown {what} '{name}'; there are {listed}", advice=advice)
