"""Mappers: which PEs of a SIP take part. Validators: how a tensor must lie for an algorithm."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from megatile.collectives.job import CollectiveError
from megatile.collectives.registry import by_import_path
from megatile.compat.ccl.topologies import Floor
from megatile.core.arguments import no_none
from megatile.core.errors import did_you_mean
from megatile.core.registry import Registry

Mapper = Callable[[Floor, int], list[tuple[int, int]]]
Validator = Callable[[Any, int, Floor], None]

MAPPERS: Registry[Mapper] = Registry("mappers")
VALIDATORS: Registry[Validator] = Registry("validators")


@MAPPERS.register("leader_only")
def leader_only(floor: Floor, rank: int) -> list[tuple[int, int]]:
    """PE 0 of cube 0."""
    return [(0, 0)]


@MAPPERS.register("all_pes")
def all_pes(floor: Floor, rank: int) -> list[tuple[int, int]]:
    """Every PE of the SIP, cube by cube."""
    return [(cube, pe) for cube in range(floor.cubes) for pe in range(floor.pes)]


@MAPPERS.register("cube_leaders")
def cube_leaders(floor: Floor, rank: int) -> list[tuple[int, int]]:
    """PE 0 of every cube."""
    return [(cube, 0) for cube in range(floor.cubes)]


def _per_sip(tensor: Any) -> Counter[int]:
    return Counter(shard.sip for shard in _shards(tensor))


def _shards(tensor: Any) -> Sequence[Any]:
    return tensor.shards if hasattr(tensor, "shards") else tensor


@VALIDATORS.register("single_shard_per_rank")
def single_shard_per_rank(tensor: Any, world_size: int, floor: Floor) -> None:
    """One shard on each of ``world_size`` SIPs. ``tensor`` has ``shards`` (or is a list of them)."""
    _expect(tensor, world_size, 1)


@VALIDATORS.register("multi_pe_sip_local")
def multi_pe_sip_local(tensor: Any, world_size: int, floor: Floor) -> None:
    """On each of ``world_size`` SIPs one shard per PE."""
    _expect(tensor, world_size, floor.cubes * floor.pes)


@VALIDATORS.register("shard_per_cube")
def shard_per_cube(tensor: Any, world_size: int, floor: Floor) -> None:
    """On each of ``world_size`` SIPs one shard per cube."""
    _expect(tensor, world_size, floor.cubes)


def _expect(tensor: Any, world_size: int, each: int) -> None:
    found = _per_sip(tensor)
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
    found: Mapper = _resolve(MAPPERS, name, "mapper", trust)
    return found


@no_none
def resolve_validator(name: str, *, trust: bool = False) -> Validator:
    """A validator by registry name, or with ``trust`` by import path."""
    found: Validator = _resolve(VALIDATORS, name, "validator", trust)
    return found


def _resolve(known: Registry[Any], name: str, what: str, trust: bool) -> Any:
    if name in known:
        return known[name]
    if "." in name or ":" in name:
        return by_import_path(name, what, trust=trust)
    advice = did_you_mean(name, known, what=f"{what}s")
    listed = ", ".join(sorted(known))
    raise CollectiveError(f"unknown {what} '{name}'; there are {listed}", advice=advice)
