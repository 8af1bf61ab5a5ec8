"""The collective kernel that a ``ccl.yaml`` chooses, on this machine: its PEs, its queues, its plans."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from megatile.compat.ccl.config import load_ccl_config, resolve_algorithm_config
from megatile.compat.ccl.install import (
    InstalledQueues as InstalledQueues,
    NeighborTableEntry,
    SipInstallPlan,
    build_install_plans,
)
from megatile.compat.ccl.kernel_plans import kernel_plan, neighbor_maps
from megatile.compat.ccl.spec import spec_of
from megatile.compat.ccl.topologies import floor_of, resolve_validator
from megatile.core.dtypes import itemsize
from megatile.core.errors import MegatileError
from megatile.core.files import exists
from megatile.hda import HDA
from megatile.language.kernel.directions import from_neighbors
from megatile.plan.memory import check_memory
from megatile.plan.model import Plan
from megatile.runtime.host.allocators import Allocators
from megatile.runtime.host.placement import PlacedShard
from megatile.runtime.host.state import HostError
from megatile.runtime.host.workers import DistributedError


def choose(
    machine: HDA, ccl: str | Path | Mapping[str, Any] | None, algorithm: str | None
) -> Mapping[str, Any] | None:
    """The kernel for ``mt.host``'s all_reduce; None for one that this machine cannot install."""
    config = load_ccl_config() if ccl is None else None
    if has_cubes(machine) or (config is not None and algorithm not in config["algorithms"]):
        return resolve_algorithm_config(config or _config(ccl), algorithm)
    return None


def has_cubes(machine: HDA) -> bool:
    """Return whether a machine has SIPs, cubes and PEs, on which kernels of ccl.yaml run."""
    return {"sip", "cube", "pe"} <= {level.name for level in machine.levels}


def local_choice(machine: HDA) -> Mapping[str, Any] | None:
    """Return the kernel that ``./ccl.yaml`` chooses, or None without such a file or on other machines."""
    return resolve_algorithm_config(load_ccl_config()) if exists("ccl.yaml") and has_cubes(machine) else None


def _config(ccl: Any) -> Mapping[str, Any]:
    if isinstance(ccl, Mapping):
        return ccl
    if not isinstance(ccl, (str, Path)):
        raise HostError(f"ccl is a file or a configuration, not {type(ccl).__name__}")
    own = str(ccl) == "ccl.yaml" and not exists(ccl)
    return load_ccl_config(None if own else ccl)


class CclAlgorithm:
    """``config`` is that of ``resolve_algorithm_config``."""

    def __init__(self, config: Mapping[str, Any], machine: HDA, memory: Allocators, trust: bool) -> None:
        self.config, self.machine, self.memory, self.trust = config, machine, memory, trust
        self.floor = floor_of(machine)
        self.name = str(config["algorithm"])
        self.world_size = int(config.get("world_size") or self.floor.sip_count)
        """Ranks of the kernel: SIPs, or PEs where there are more than SIPs."""
        self.installs: tuple[SipInstallPlan, ...] = ()
        self.installed: set[tuple[int, int, int]] = set()
        self._plans: dict[tuple[int, str, str], Plan] = {}

    @property
    def sips(self) -> int:
        """How many SIPs take part; each is one rank of the host."""
        return len(self._install_plans())

    @property
    def participants(self) -> tuple[tuple[int, int], ...]:
        """The (cube, pe) of a device that take part."""
        return self._install_plans()[0].participating_pes

    def _install_plans(self) -> tuple[SipInstallPlan, ...]:
        if not self.installs:
            found = build_install_plans(
                self.world_size, self.name, self.config, self.machine, trust=self.trust
            )
            self.installs = tuple(found)
        return self.installs

    def install(self, seats: Iterable[tuple[int, int, int]] | None = None) -> None:
        """Take room for the rings of all queues (or of those at some (sip, cube, pe)) from the pools of
        their PE, and check that no two overlap. Every PE is installed once, in any order."""
        plans = self._install_plans()
        every = {(p.sip, pe.cube, pe.pe): None for p in plans for pe in p.pe_installs}
        chosen = list(every if seats is None else seats)
        for seat in chosen:
            if seat not in every or seat in self.installed:
                what = "is already installed" if seat in self.installed else f"takes no part in '{self.name}'"
                raise DistributedError(f"the PE (sip, cube, pe) {seat} {what}")
        rings = {seat: self._rings(*seat) for seat in chosen}
        self.installed |= rings.keys()
        self.installs = tuple(
            replace(
                plan,
                pe_installs=tuple(
                    replace(pe, neighbors=rings.get((plan.sip, pe.cube, pe.pe), pe.neighbors))
                    for pe in plan.pe_installs
                ),
            )
            for plan in plans
        )
        check_rings(self.installs)

    def _rings(self, sip: int, cube: int, pe: int) -> tuple[NeighborTableEntry, ...]:
        """The neighbour table of a PE with addresses."""
        plan, allocator = self.installs[sip], self.memory.pe(sip, cube, pe)
        (mine,) = (one for one in plan.pe_installs if (one.cube, one.pe) == (cube, pe))
        return tuple(
            replace(
                entry,
                rx_base_pa=allocator.alloc(
                    plan.buffer_kind, entry.rx_size, f"the queue ring {entry.direction}"
                ).encode(),
            )
            for entry in mine.neighbors
        )

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The kernel for every size so far."""
        return tuple(self._plans.values())

    def launch_options(self, places: set[tuple[int, int]]) -> dict[str, Any]:
        """Return the queues between these PEs of a SIP as options of a launch; none if others take part."""
        return self._options if places == set(self.participants) else {}

    @cached_property
    def _options(self) -> dict[str, Any]:
        first = self._install_plans()[0]
        number = {place: i for i, place in enumerate(first.participating_pes)}
        maps = [
            {n.direction: number[n.peer_cube, n.peer_pe] for n in pe.neighbors if n.peer_sip == first.sip}
            for pe in first.pe_installs
        ]
        wires = from_neighbors(lambda unit, count: maps[unit], len(maps))
        return {
            "topology": wires,
            "n_slots": first.n_slots,
            "slot_size": first.slot_size,
            "buffer_kind": first.buffer_kind,
        }

    @cached_property
    def joint_options(self) -> dict[str, Any]:
        """The queues between the PEs of all SIPs as options of a launch."""
        maps = neighbor_maps(list(self._install_plans()))
        return {**self._options, "topology": from_neighbors(lambda unit, count: maps[unit], len(maps))}

    def rings(self, units: Iterable[str]) -> list[str]:
        """Directions and receive ranges of some PEs (``sip0/cube0/pe0``), as lines."""
        wanted, decode = set(units), self.memory.layout.decode
        return [
            f"{name} {n.direction} <-> sip{n.peer_sip}/cube{n.peer_cube}/pe{n.peer_pe} {n.peer_direction}: "
            f"receives at {n.rx_base_pa:#x} = {decode(n.rx_base_pa)}"
            for plan in self.installs
            for pe in plan.pe_installs
            if (name := f"sip{plan.sip}/cube{pe.cube}/pe{pe.pe}") in wanted
            for n in pe.neighbors
            if n.rx_base_pa is not None
        ]

    def too_small(self, count: int, dtype: str) -> tuple[str, str]:
        """Return which figure leaves senders of so many elements without slots, and what to write instead."""
        slots, size, element = int(self.config["n_slots"]), int(self.config["slot_size"]), itemsize(dtype)
        messages = -(-count // max(1, size // element))
        head = f"all_reduce by '{self.name}' deadlocks with n_slots {slots} and slot_size {size}"
        if slots == 1:
            return f"{head}: a queue of one slot cannot hold a tile that is passed on", "n_slots: 2"
        if messages <= slots:
            return head, "check that every send of the kernel has its receive"
        return (
            f"{head}: a tile of {count * element} bytes is {messages} messages",
            f"n_slots: {messages}, or slot_size: {-(-count // slots) * element}",
        )

    def plan(self, n_elem: int, dtype: str, reduction: str) -> Plan:
        """The kernel for so many elements per participant."""
        key = (n_elem, dtype, reduction)
        if key not in self._plans:
            config = {**self.config, "dtype": dtype, "reduce_op": reduction}
            try:
                plan = kernel_plan(
                    config, self.machine, world_size=self.world_size, n_elem=n_elem, trust=self.trust
                )
                check_memory(plan, self.machine)
            except MegatileError as problem:
                raise DistributedError(
                    f"all_reduce by '{self.name}': {problem.message}",
                    advice=problem.advice or 'mt.host(..., algorithm="auto") takes any type and reduction',
                ) from None
            self._plans[key] = plan
        return self._plans[key]

    def check(self, shards: Sequence[PlacedShard]) -> None:
        """Whether the ranks' tensors lie as the kernel needs them."""
        if self.config.get("validator") is not None and self.world_size == self.sips:
            validate = resolve_validator(self.config["validator"], trust=self.trust)
            try:
                validate(SimpleNamespace(shards=tuple(shards)), self.world_size, spec_of(self.machine))
            except MegatileError as problem:
                raise DistributedError(
                    f"all_reduce by '{self.name}' {problem.message}", advice=problem.advice
                ) from None
            except ValueError as problem:
                raise DistributedError(f"all_reduce by '{self.name}': {problem}") from None
        places = {(s.cube, s.pe) for s in shards}
        if places != set(self.participants) or len(shards) != len(places) * self.sips:
            only = [
                sorted(a - b) for a, b in ((set(self.participants), places), (places, set(self.participants)))
            ]
            where = "; ".join(
                f"{word} (cube, pe) {_few(found)}"
                for word, found in zip(("no shard on", "shards on idle"), only, strict=True)
                if found
            )
            raise DistributedError(
                f"all_reduce by '{self.name}' runs on {len(self.participants)} PEs of {self.sips} SIPs, "
                f"the tensors have {len(shards)} shards{where and f': {where}'}",
                advice="choose num_cubes and num_pes of its DPPolicy accordingly; "
                'mt.host(..., algorithm="auto") takes any tensor',
            )


def _few(places: Sequence[Any]) -> str:
    shown = ", ".join(map(str, places[:4]))
    return f"{shown}, … ({len(places)})" if len(places) > 4 else shown


def check_rings(plans: Sequence[SipInstallPlan]) -> None:
    """All receive ranges of the system that have addresses are disjoint."""
    ranges = sorted(
        (n.rx_base_pa, n.rx_size, f"sip{plan.sip}/cube{pe.cube}/pe{pe.pe} {n.direction}")
        for plan in plans
        for pe in plan.pe_installs
        for n in pe.neighbors
        if n.rx_base_pa is not None
    )
    for (start, size, one), (next_start, _, two) in pairwise(ranges):
        if next_start < start + size:
            raise DistributedError(f"the receive ranges of {one} and {two} overlap at {next_start:#x}")
