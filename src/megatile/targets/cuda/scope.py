"""Where code on the device stands: the team of threads that runs it, its memory, what it must wait for."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from megatile.core.expr import Expr
from megatile.hda import machine
from megatile.ir import nodes as n
from megatile.ir.expr import Load
from megatile.ir.launch import Launch
from megatile.ir.program import Program
from megatile.ir.signals import dispatched
from megatile.lowering.swizzle import reached, swizzled
from megatile.targets.common.allocation import Allocation, Storage, rounded, tiles
from megatile.targets.common.elements import NARROW, Value
from megatile.targets.common.errors import CompileError
from megatile.targets.common.scope import Peer, Scope
from megatile.targets.cuda.fragments import Fragments, staged
from megatile.targets.cuda.layouts import WARP, SharedLayout, Team
from megatile.targets.cuda.mbarriers import Mbarrier, mbarriers

OLDEST = "hgx-a100"
"""The machine with the oldest devices that kernels are written for (sm_80)."""
_UNNAMED = {"warp": 32, "thread": 1}


def shared_limit() -> int:
    """Bytes of shared memory that a block may have."""
    return machine(OLDEST).memory("shared").available


def threads(launch: Launch, instance: int) -> int:
    """Threads of a CUDA block whose unit is at depth ``instance``; 128 where the program does not say."""
    named = [s for s in launch.scales if s.named or s.count > 1]
    each = _UNNAMED.get(named[-1].name, 128) if named else 128
    return each * math.prod(s.count for s in launch.scales[instance:])


@dataclass
class Hazards:
    """What the threads of a team have read and written since they last met."""

    read: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)
    copying: bool = False
    """Whether copies in the background may be under way, which nobody has waited for."""

    def meets(self, touched: Iterable[tuple[str, bool]]) -> bool:
        return any(name in self.written or (writes and name in self.read) for name, writes in touched)

    def add(self, touched: Iterable[tuple[str, bool]]) -> None:
        for name, writes in touched:
            (self.written if writes else self.read).add(name)

    def join(self, other: Hazards) -> None:
        self.read |= other.read
        self.written |= other.written
        self.copying |= other.copying

    def copy(self) -> Hazards:
        return Hazards(set(self.read), set(self.written), self.copying)


class DeviceAllocation(Allocation):
    """Tiles in registers, in shared memory, in a thread's own memory, or (of the launch) in global memory."""

    def __init__(self, program: Program):
        self._fragments: Fragments | None = None
        allocs = {a.name: a for a in tiles(program.body)}
        found = list(staged(program, allocs))
        self.versions = {c.to.source: plan.loop.stages for plan in found for c in plan.copies}
        """Of tiles that are filled ahead: how many there are."""
        self.staged = {id(plan.loop): plan for plan in found}
        self.reached = reached(program)
        self._swizzled: set[str] | None = None
        self.sizes: dict[int, int] = {}
        """Bytes of shared memory of each dispatched region, by its place in the program."""
        started = list(dispatched(program.body, program.launch))
        self.regions = {tile.name: id(region) for region in started for tile in tiles(region.body)}
        """The dispatched region of every tile."""
        self.together = {id(r) for r in started if any(map(_waits, n.own_statements(r.body)))}
        """The regions whose blocks wait for each other."""
        self.started = started
        self._mbarriers: dict[str, Mbarrier] | None = None
        super().__init__(program)

    def team_size(self, depth: int) -> int:
        """Threads of a unit at a depth inside the instances, whichever they are."""
        return threads(self.launch, depth)

    @property
    def fragments(self) -> Fragments:
        if self._fragments is None:
            self._fragments = Fragments(self.program, self.names, self.team_size)
        return self._fragments

    @property
    def mbarriers(self) -> dict[str, Mbarrier]:
        """Flags in shared memory that are mbarriers."""
        if self._mbarriers is None:
            instance = self.launch.depth(self.launch.dispatch)
            plain = {x.base for x in self.names.values()} - {
                x.base for x in self.names.values() if x.binding.owner or x.reshaped is not None
            }
            depths = {name: self.names[name].owner_depth for name in plain if self.names[name].copies == 1}
            self._mbarriers = {}
            for region in self.started:
                depth = min(self.launch.depth(region.scale), instance)
                self._mbarriers |= mbarriers(self.program, region, depths, depth)
        return self._mbarriers

    def arrivals(self, flag: str) -> int:
        """Return how many arrivals end a phase of an mbarrier."""
        one = self.mbarriers[flag]
        size = self.team_size(one.depth)
        return one.signallers * (size if one.by_threads else max(1, size // WARP))

    @property
    def swizzled(self) -> set[str]:
        """Tiles in shared memory whose rows are swizzled."""
        if self._swizzled is None:
            self._swizzled = {name for name in swizzled(self.program) if self.names[name].copies == 1}
        return self._swizzled

    def tile(self, storage: Storage, name: str, place: str) -> str:
        """The declaration of a tile in memory, which is used like a pointer to its first element."""
        kind = storage.c_type
        if storage.home == "instance" and storage.name in self.swizzled:
            return f"const Swizzled<{kind}, {storage.shape[-1]}> {name} = {{({kind} *)({place}), 0}};"
        return f"{kind} *const {name} = ({kind} *)({place});"

    def _tile(self, alloc: n.Alloc, instance: int | None, free: bool) -> None:
        name = self.names[alloc.name]
        inside = instance is not None and name.owner_depth >= instance
        if inside and name.owner_depth == instance and alloc.name in self.reached:
            inside = self.regions[alloc.name] not in self.together
        low = instance if inside and instance is not None else 0
        above = tuple(s.name for s in self.launch.scales[low : name.owner_depth])
        made = Storage(alloc.name, alloc.dtype, alloc.shape, name.copies, "instance", above)
        if inside and alloc.name in self.fragments.layouts:
            made.home, made.above, made.wide = "registers", (), alloc.dtype in NARROW
        elif inside and self.team_size(name.owner_depth) == 1 and alloc.name not in self.reached:
            made.home, made.above = "local", ()
        elif inside:
            if alloc.name in self.mbarriers:
                made.dtype = "i64"
            region = self.regions[alloc.name]
            made.offset = self.sizes.get(region, 0)
            size = rounded(made.bytes(self.launch), 128)
            self.sizes[region] = made.offset + size * self.versions.get(alloc.name, 1)
        else:
            made.home, made.offset = "launch", self.launch_bytes
            self.launch_bytes += rounded(made.bytes(self.launch), 128)
        self.table[alloc.name] = made


def _waits(node: n.Node) -> bool:
    """Whether units that do this wait for others, or reach into their tiles."""
    if isinstance(node, n.Copy):
        return node.dst is not None or node.src is not None
    return isinstance(node, (n.Barrier, n.Collective, n.Signal, n.Wait))


@dataclass
class DeviceScope(Scope):
    """Code of a team of threads (``team`` None: of the host)."""

    gen: Any
    team: Team | None = None
    hazards: Hazards = field(default_factory=Hazards)
    owned: dict[str, str] = field(default_factory=dict)
    """Inside a loop over elements: the register of each tile that is held so."""
    rank: str = "0"

    @property
    def crew(self) -> Team:
        """The team; code of the host cannot do what asks for it."""
        if self.team is None:
            raise CompileError(
                "the host would need an element of a tensor here, which is on the device",
                advice="decide inside the blocks, or give the number as an argument of the Python function",
            )
        return self.team

    def finish_copies(self) -> None:
        """Every thread waits for its copies in the background."""
        if self.hazards.copying:
            self.text.add("cp_async_wait_all();")
            self.hazards.copying = False

    def sync(self) -> None:
        """The threads of the team meet; what they wrote is there for all of them."""
        self.finish_copies()
        if self.crew.sync:
            self.text.add(self.crew.sync)
        self.hazards = Hazards()

    def layout(self, name: str) -> SharedLayout | None:
        storage = self.gen.storages.table[self.gen.storages.names[name].base]
        return self.gen.storages.fragments.layouts[name] if storage.home == "registers" else None

    def element(
        self, name: str, index: tuple[Expr, ...], peer: Peer | None = None
    ) -> tuple[Storage, str, str | None]:
        if name in self.owned:
            return self.gen.storages.table[name], f"&{self.gen.name(name)}[{self.owned[name]}]", None
        _ = self.crew
        return super().element(name, index, peer)

    def load(self, expr: Load) -> Value:
        _ = self.crew
        return super().load(expr)
