"""The collective kernel that a ``ccl.yaml`` chooses, on this machine: its PEs, its queues, its plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from megatile.collectives.install import NeighborTableEntry, SipInstallPlan, build_install_plans
from megatile.collectives.kernel_plans import kernel_plan
from megatile.collectives.mappers import resolve_validator
from megatile.collectives.topologies import floor_of
from megatile.core.errors import MegatileError
from megatile.hda import HDA
from megatile.plan.model import Plan
from megatile.runtime.host.allocators import Memory
from megatile.runtime.host.placement import PlacedShard
from megatile.runtime.host.workers import DistributedError


class CclAlgorithm:
    """``config`` is that of ``resolve_algorithm_config``."""

    def __init__(self, config: Mapping[str, Any], machine: HDA, memory: Memory, trust: bool) -> None:
        self.config, self.machine, self.memory, self.trust = dict(config), machine, memory, trust
        self.floor = floor_of(machine)
        self.name = str(config["algorithm"])
        self.world_size = int(config.get("world_size") or self.floor.sip_count)
        self.installs: tuple[SipInstallPlan, ...] = ()
        self._plans: dict[tuple[int, str, str], Plan] = {}

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

    def install(self) -> None:
        """Take room for every queue's ring from the pools of its PE, and check that no two overlap."""
        plans = [self._with_rings(plan) for plan in self._install_plans()]
        check_rings(plans)
        self.installs = tuple(plans)

    def _with_rings(self, plan: SipInstallPlan) -> SipInstallPlan:
        installs = []
        for pe in plan.pe_installs:
            allocator, entries = self.memory.pe(plan.sip, pe.cube, pe.pe), []
            for entry in pe.neighbors:
                pa = allocator.alloc(plan.buffer_kind, entry.rx_size, f"the queue ring {entry.direction}")
                entries.append(replace(entry, rx_base_pa=pa.encode()))
            installs.append(replace(pe, neighbors=tuple(entries)))
        return replace(plan, pe_installs=tuple(installs))

    def plan(self, n_elem: int, dtype: str, reduction: str) -> Plan:
        """The kernel for so many elements per participant."""
        key = (n_elem, dtype, reduction)
        if key not in self._plans:
            config = {**self.config, "dtype": dtype, "reduce_op": reduction}
            try:
                self._plans[key] = kernel_plan(
                    config, self.machine, world_size=self.world_size, n_elem=n_elem, trust=self.trust
                )
            except MegatileError as problem:
                raise DistributedError(
                    f"all_reduce by '{self.name}': {problem.message}",
                    advice=problem.advice or 'mt.host(..., algorithm="auto") takes any type and reduction',
                ) from None
        return self._plans[key]

    def check(self, shards: Sequence[PlacedShard]) -> None:
        """Whether the ranks' tensors lie as the kernel needs them."""
        try:
            resolve_validator(self.config["validator"], trust=self.trust)(shards, self.world_size, self.floor)
        except MegatileError as problem:
            raise DistributedError(
                f"all_reduce by '{self.name}' {problem.message}", advice=problem.advice
            ) from None
        places = {(s.cube, s.pe) for s in shards}
        if places != set(self.participants):
            raise DistributedError(
                f"all_reduce by '{self.name}' runs on (cube, pe) {_few(self.participants)}, "
                f"the tensor lies on {_few(sorted(places))}",
                advice="choose num_cubes and num_pes of its DPPolicy accordingly",
            )


def _few(places: Sequence[Any]) -> str:
    shown = ", ".join(map(str, places[:4]))
    return f"{shown}, … ({len(places)})" if len(places) > 4 else shown


def check_rings(plans: Sequence[SipInstallPlan]) -> None:
    """All receive ranges of the system are disjoint."""
    ranges: list[tuple[int, int, str]] = []
    for plan in plans:
        for pe in plan.pe_installs:
            ranges += [
                (_base(n), n.rx_size, f"sip{plan.sip}/cube{pe.cube}/pe{pe.pe} {n.direction}")
                for n in pe.neighbors
            ]
    for (start, size, one), (next_start, _, two) in pairwise(sorted(ranges)):
        if next_start < start + size:
            raise DistributedError(f"the receive ranges of {one} and {two} overlap at {next_start:#x}")


def _base(entry: NeighborTableEntry) -> int:
    if entry.rx_base_pa is None:
        raise DistributedError(f"the receive range {entry.direction} has no address")
    return entry.rx_base_pa
