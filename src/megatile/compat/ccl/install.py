"""Install plans: which PEs take part in a kernel, and the neighbour table of each. Pure and printable."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from megatile.collectives.job import CollectiveError
from megatile.compat.ccl.config import (
    STANDARD,
    Entry,
    at_key,
    check_reduction,
    check_values,
    given,
    kernel_module,
)
from megatile.compat.ccl.spec import spec_of
from megatile.compat.ccl.topologies import (
    Floor,
    Neighbors,
    floor_of,
    resolve_mapper,
    resolve_topology,
    resolve_validator,
    topology_names,
)
from megatile.core.quantities import whole
from megatile.hda import HDA, machine as find_machine
from megatile.language.kernel.directions import TOPOLOGIES, direction_back

SIP_KINDS = "TOPO_NAME_TO_KIND"
"""A KernBench module that has this table is wired between cubes and SIPs, and gets its SIP's place."""


TO_KERNELS = ("n_elem", "reduce_op", "root_cube", "dtype", "n_slots", "slot_size")
"""Settings that ``kernel_args`` gets, beside those that begin with ``kernel_``."""


@dataclass(frozen=True)
class NeighborTableEntry:
    """One direction: the peer, the direction in which it hears us, and where we receive from it: the offset
    in the memory of the queues, and once a host has installed it the physical address."""

    direction: str
    peer_direction: str
    peer_sip: int
    peer_cube: int
    peer_pe: int
    rx_base: int
    rx_size: int
    rx_base_pa: int | None = None


@dataclass(frozen=True)
class PeInstallSpec:
    cube: int
    pe: int
    neighbors: tuple[NeighborTableEntry, ...]


@dataclass(frozen=True)
class SipInstallPlan:
    """What one SIP installs. ``kernel_config`` is what ``kernel_args`` gets."""

    algorithm_name: str
    sip: int
    rank: int
    world_size: int
    pe_installs: tuple[PeInstallSpec, ...]
    buffer_kind: str
    n_slots: int
    slot_size: int
    kernel_module: str
    participating_pes: tuple[tuple[int, int], ...]
    kernel_config: Mapping[str, Any]

    def __str__(self) -> str:
        head = f"SIP {self.sip}: {self.algorithm_name}, {len(self.pe_installs)} PEs, {self.buffer_kind}"
        lines = [head]
        for pe in self.pe_installs:
            routes = ", ".join(
                f"{n.direction} -> {n.peer_sip}/{n.peer_cube}/{n.peer_pe} ({n.peer_direction})"
                for n in pe.neighbors
            )
            lines.append(f"  cube {pe.cube} pe {pe.pe}: {routes or 'no neighbours'}")
        return "\n".join(lines)


def build_install_plans(
    world_size: int,
    algorithm: str,
    algorithm_config: Mapping[str, Any],
    spec: HDA | Mapping[str, Any] | str,
    *,
    trust: bool = False,
) -> list[SipInstallPlan]:
    """One plan per rank (= SIP): mapper × topology × the module's own ``neighbors`` if it brings them.

    ``trust``: import what the configuration names by import path, which runs its code.
    """
    hda = _machine(spec)
    floor = floor_of(hda)
    config = Entry({**STANDARD, **given(algorithm_config)})
    config.places = getattr(algorithm_config, "places", config.places)
    if "module" not in config:
        raise CollectiveError(
            "no module is named", advice="take the configuration of resolve_algorithm_config"
        )
    with at_key(config, "module"):
        module = kernel_module(config["module"], trust=trust)
    config.setdefault("root_cube", root_of(module)(*floor.mesh))
    seats = _seats(config, hda, world_size, trust)
    ranks = {"ranks": world_size, "sip_topology": spec_of(hda)["system"]["sips"]["topology"]}
    world_size = seats[-1][0] + 1
    _check(config, hda, floor, trust)
    with at_key(config, "topology"):
        maps = neighbour_maps(config, _used(floor, world_size), len(seats), trust)
    slots, size = int(config["n_slots"]), int(config["slot_size"])
    plans = []
    for sip in range(world_size):
        mine = [(i, seat) for i, seat in enumerate(seats) if seat[0] == sip]
        installs = tuple(
            PeInstallSpec(cube, pe, _entries(i, maps, seats, slots * size)) for i, (_, cube, pe) in mine
        )
        plans.append(
            SipInstallPlan(
                algorithm,
                sip,
                sip,
                world_size,
                installs,
                config["buffer_kind"],
                slots,
                size,
                config["module"],
                tuple((cube, pe) for _, (_, cube, pe) in mine),
                kernel_config(config, _used(floor, world_size), len(seats)) | ranks,
            )
        )
    check_disjoint(plans)
    _check_directions(plans, hda)
    return plans


def root_of(module: Any) -> Callable[[int, int], int]:
    """Return the module's ``root_cube(mesh_w, mesh_h)``, or that of the last cube."""
    own = getattr(module, "root_cube", None)
    return own if callable(own) else lambda width, height: width * height - 1


def mapper_name(config: Mapping[str, Any], module: Any, counts_pes: bool) -> str:
    """Return the entry's mapper; without one that of the module (topology ``none``), or all PEs if
    ``world_size`` counts PEs, or PE 0 of cube 0."""
    named = config.get("mapper")
    if named is None and str(config.get("topology") or "none") == "none":
        named = getattr(module, "MAPPER", "cube_leaders" if hasattr(module, SIP_KINDS) else None)
    return str(named or ("all_pes" if counts_pes else "leader_only"))


def _seats(config: Entry, hda: HDA, world_size: int, trust: bool) -> list[tuple[int, int, int]]:
    """Who takes part: (SIP, cube, PE). ``world_size`` counts SIPs; where all PEs take part and the topology
    knows nothing of SIPs, more than there are SIPs are PEs, the first ones of the machine."""
    check_values(config)
    spec, sips = spec_of(hda), floor_of(hda).sip_count
    counts_pes = whole(world_size) is not None and world_size > sips
    name = mapper_name(config, kernel_module(config["module"], trust=trust), counts_pes)
    with at_key(config, "mapper"):
        mapper = resolve_mapper(name, trust=trust)
    if counts_pes and name == "all_pes":
        every = [(sip, cube, pe) for sip in range(sips) for cube, pe in mapper(spec, sip)]
        if world_size <= len(every) and config.get("topology") in TOPOLOGIES:
            return every[:world_size]
        if world_size % (len(every) // sips) == 0 and world_size <= len(every):
            return every[:world_size]
    if whole(world_size) is None or not 1 <= world_size <= sips:
        raise CollectiveError(
            f"world_size {world_size} does not fit {sips} SIPs",
            place=config.places.get("world_size"),
            advice="ranks are SIPs; with mapper all_pes also PEs (whole SIPs of them if levels are nested)",
        )
    return [(sip, cube, pe) for sip in range(world_size) for cube, pe in mapper(spec, sip)]


def _check(config: Entry, hda: HDA, floor: Floor, trust: bool) -> None:
    """Refuse what this machine cannot install."""
    if not 0 <= config["root_cube"] < floor.cubes:
        raise CollectiveError(
            f"root_cube {config['root_cube']} does not exist",
            place=config.places.get("root_cube"),
            advice=f"there are {floor.cubes}",
        )
    with at_key(config, "buffer_kind"):
        hda.memory(config["buffer_kind"])
    with at_key(config, "validator"):
        if config.get("validator") is not None:
            resolve_validator(config["validator"], trust=trust)
    module = kernel_module(config["module"], trust=trust)
    with at_key(config, "reduce_op"):
        check_reduction(config, module)
    able, name = getattr(module, "TOPOLOGIES", None), topology_of(config, module)
    if able is not None and name not in able and name in topology_names():
        raise CollectiveError(
            f"{module.__name__.rpartition('.')[2]} runs on topology {' or '.join(able)}, not '{name}'",
            place=config.places.get("topology"),
            advice=f"write topology: {able[0]}, or none",
        )


def _machine(spec: HDA | Mapping[str, Any] | str | None) -> HDA:
    if spec is None:
        raise CollectiveError("neither an engine nor a machine is given")
    if isinstance(spec, str):
        return find_machine(spec)
    return spec if isinstance(spec, HDA) else HDA.from_dict(spec)


def _used(floor: Floor, world_size: int) -> Floor:
    """The floor with only the first SIPs, which then stand in a row unless they are all."""
    return floor if world_size == floor.sip_count else replace(floor, sips=(world_size, 1))


def neighbour_maps(
    config: Mapping[str, Any], floor: Floor, count: int, trust: bool = False
) -> list[dict[str, int]]:
    """Every participant's directions and peers (numbers of participants)."""
    module = kernel_module(config["module"], trust=trust)
    neighbors = resolve_topology(topology_of(config, module), trust=trust)(floor)
    own = getattr(module, "neighbors", None)
    if own is not None:
        neighbors = _own_neighbors(own, neighbors)
    maps = [dict(neighbors(i, count)) for i in range(count)]
    for i, entry in enumerate(maps):
        for direction, peer in entry.items():
            if not 0 <= peer < count:
                raise CollectiveError(f"participant {i} has no neighbour {peer} in direction {direction}")
    return maps


def topology_of(config: Mapping[str, Any], module: Any) -> str:
    """The entry's topology; for ``none``, or if it names none, the one that the module brings."""
    name = str(config.get("topology") or "none")
    own = "intercube" if hasattr(module, SIP_KINDS) else "none"
    return str(getattr(module, "TOPOLOGY", own)) if name == "none" else name


def _own_neighbors(own: Any, base: Neighbors) -> Neighbors:
    """A module's ``neighbors(rank, world_size)``, or ``neighbors(rank, world_size, base)``."""
    try:
        given = len(inspect.signature(own).parameters)
    except (TypeError, ValueError):
        given = 2
    if given not in (2, 3):
        raise CollectiveError(
            f"neighbors() of the module takes {given} arguments",
            advice="write neighbors(rank, world_size) or neighbors(rank, world_size, base)",
        )
    if given == 2:
        return own
    return lambda rank, count: own(rank, count, dict(base(rank, count)))


def kernel_config(config: Mapping[str, Any], floor: Floor, count: int) -> dict[str, Any]:
    """What the kernel's ``kernel_args`` may ask for."""
    own = {k: v for k, v in config.items() if k in TO_KERNELS or k.startswith("kernel_")}
    return own | {
        "world_size": count,
        "pes_per_cube": floor.pes,
        "cubes_per_sip": floor.cubes,
        "num_sips": floor.sip_count,
        "mesh_w": floor.mesh[0],
        "mesh_h": floor.mesh[1],
        "sip_w": floor.sips[0],
        "sip_h": floor.sips[1],
        "sip_wrap": floor.wrap,
    }


def _entries(
    number: int, maps: list[dict[str, int]], seats: list[tuple[int, int, int]], ring: int
) -> tuple[NeighborTableEntry, ...]:
    entries = []
    for place, (direction, peer) in enumerate(maps[number].items()):
        heard = direction_back(maps[peer], number, direction)
        if heard is None:
            raise CollectiveError(f"participant {peer} has no direction back to {number}")
        entries.append(NeighborTableEntry(direction, heard, *seats[peer], place * ring, ring))
    return tuple(entries)


def _check_directions(plans: list[SipInstallPlan], hda: HDA) -> None:
    """A PE has as many queues as its hardware has directions."""
    limit = hda.queues_of(hda.levels[0].name)
    for plan, pe in ((sip, pe) for sip in plans for pe in sip.pe_installs):
        if limit is not None and len(pe.neighbors) > limit.directions:
            names = ", ".join(n.direction for n in pe.neighbors)
            raise CollectiveError(
                f"SIP {plan.sip} cube {pe.cube} pe {pe.pe} needs {len(pe.neighbors)} directions ({names}), "
                f"'{limit.name}' of machine '{hda.name}' has {limit.directions}",
                advice="use a topology with fewer neighbours, or raise directions of pe_ipcq",
            )


def check_disjoint(plans: list[SipInstallPlan]) -> None:
    """No two receive ranges of a PE may overlap."""
    for plan in plans:
        for pe in plan.pe_installs:
            ranges = sorted((n.rx_base, n.rx_base + n.rx_size, n.direction) for n in pe.neighbors)
            for (_, end, one), (start, _, two) in pairwise(ranges):
                if start < end:
                    raise CollectiveError(
                        f"SIP {plan.sip} cube {pe.cube} pe {pe.pe}: ranges of {one} and {two} overlap"
                    )


class InstalledQueues(Mapping[str, Any]):
    """What was installed: ``plans``, one per SIP, and under KernBench's keys ``world_size`` (PEs that take
    part), ``rank_to_pe``, ``neighbor_table``, ``buffer_kind``, ``n_slots`` and ``slot_size``."""

    def __init__(self, plans: Sequence[SipInstallPlan]) -> None:
        self.plans = tuple(plans)
        first = self.plans[0]
        seats = [(p.sip, pe.cube, pe.pe) for p in self.plans for pe in p.pe_installs]
        number = {seat: i for i, seat in enumerate(seats)}
        entries = [pe.neighbors for p in self.plans for pe in p.pe_installs]
        self._values = {
            "algorithm": first.algorithm_name,
            "world_size": len(seats),
            "rank_to_pe": seats,
            "neighbor_table": {
                i: {n.direction: number[n.peer_sip, n.peer_cube, n.peer_pe] for n in table}
                for i, table in enumerate(entries)
            },
            "buffer_kind": first.buffer_kind,
            "n_slots": first.n_slots,
            "slot_size": first.slot_size,
        }

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def configure_sfr_intercube_multisip(
    engine: Any, spec: HDA | Mapping[str, Any] | str | None, cfg: Mapping[str, Any]
) -> InstalledQueues:
    """Wire PE 0 of every cube to its mesh neighbours, and for all cubes to the same cube of the peer SIPs.

    ``engine`` is that of a host, whose queues are then these; without one the machine is ``spec`` and nothing
    is installed.
    """
    if not isinstance(cfg, Mapping):
        raise CollectiveError(
            f"a configuration is keys and values, not {type(cfg).__name__}", advice="resolve_algorithm_config"
        )
    config: dict[str, Any] = {**cfg, "topology": "intercube", "mapper": "cube_leaders"}
    config.setdefault("algorithm", "intercube")
    config.setdefault("module", "megatile.collectives.kernels.intercube_allreduce")
    if engine is None or engine.host is None:
        hda = _machine(spec if engine is None or spec is not None else engine.machine)
        name = str(config["algorithm"])
        return InstalledQueues(build_install_plans(floor_of(hda).sip_count, name, config, hda))
    entry = {key: value for key, value in config.items() if key != "algorithm"}
    return engine.host.install_ipcq(config["algorithm"], ccl={"algorithms": {config["algorithm"]: entry}})


configure_sfr = configure_sfr_intercube_multisip
