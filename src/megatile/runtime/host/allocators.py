"""Device memory: pools of bytes per unit, virtual ranges, and the page tables that join them.

Tensors and the rings of queues come from the same pools, so they cannot overlap:

    memory = Allocators(machine)
    a = memory.pe(0, 0, 3)           # the PEMemAllocator of sip 0, cube 0, pe 3
    pa = a.alloc_hbm(4096)
    a.free_hbm(pa, 4096)
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from functools import partialmethod

from megatile.core.errors import MegatileError
from megatile.core.quantities import format_bytes, whole
from megatile.hda import HDA
from megatile.hda.addresses import STANDARD, AddressConfig, AddressLayout, DeviceShape, PhysAddr

ALIGNMENT = 64
"""Bytes that allocations are rounded up to."""


class AllocationError(MegatileError, RuntimeError):
    """Memory that is not there, or is given back wrongly."""


class Pool:
    """Bytes ``start`` up to ``stop`` of one memory: first fit, neighbours that are free are joined."""

    def __init__(self, name: str, size: int, start: int = 0) -> None:
        self.name, self.size, self.start = name, size, start
        self._free: list[tuple[int, int]] = [(start, start + size)] if size else []
        self.taken: dict[int, tuple[int, str]] = {}
        """By first byte: the bytes taken, and for what."""

    @property
    def free_bytes(self) -> int:
        return sum(stop - start for start, stop in self._free)

    def take(self, nbytes: int, what: str) -> int:
        """Take a range and return its first byte."""
        if whole(nbytes) is None or nbytes < 0:
            raise AllocationError(f"{nbytes!r} bytes cannot be allocated")
        room = -(-max(nbytes, 1) // ALIGNMENT) * ALIGNMENT
        for i, (start, stop) in enumerate(self._free):
            if stop - start >= room:
                self._free[i : i + 1] = [(start + room, stop)] if stop - start > room else []
                self.taken[start] = (nbytes, what)
                return start
        raise AllocationError(
            f"{self.name}: {format_bytes(nbytes)} asked for {what}, {format_bytes(self.free_bytes)} free of "
            f"{format_bytes(self.size)}",
            advice="free tensors, spread them over more PEs, or use a smaller one",
        )

    def give_back(self, start: int, nbytes: int) -> None:
        """Free a range, which must be one that was taken."""
        if start not in self.taken:
            raise AllocationError(
                f"{self.name}: nothing is allocated at {start:#x}", advice="it may already be freed"
            )
        size, what = self.taken[start]
        if size != nbytes:
            raise AllocationError(f"{self.name}: {what} at {start:#x} has {size} bytes, not {nbytes}")
        del self.taken[start]
        room = -(-max(nbytes, 1) // ALIGNMENT) * ALIGNMENT
        at = bisect_right(self._free, (start, 0))
        self._free.insert(at, (start, start + room))
        for i in (at, at - 1):
            if 0 <= i < len(self._free) - 1 and self._free[i][1] == self._free[i + 1][0]:
                self._free[i : i + 2] = [(self._free[i][0], self._free[i + 1][1])]


class PEMemAllocator:
    """The memory of one PE: its slice of HBM, its TCM, and its cube's SRAM.

    ``pools`` are those that it shares with others; a pool that is missing is its own.
    """

    def __init__(
        self,
        rack_id: int,
        sip_id: int,
        cube_id: int,
        pe_id: int,
        cfg: AddressConfig,
        *,
        layout: AddressLayout = STANDARD,
        pools: dict[str, Pool] | None = None,
        hbm_cube: int | None = None,
    ) -> None:
        self.rack_id, self.sip_id, self.cube_id, self.pe_id, self.cfg = rack_id, sip_id, cube_id, pe_id, cfg
        self.layout = layout
        self.hbm_cube = cube_id if hbm_cube is None else hbm_cube
        """The cube under whose number the HBM is addressed; 0 where it belongs to the whole device."""
        name = f"sip{(rack_id << layout.sip) + sip_id}/cube{cube_id}"
        usable = cfg.tcm_bytes_per_pe - cfg.tcm_scheduler_reserved_bytes
        own = {
            # The scheduler's part lies at the beginning.
            "tcm": lambda: Pool(f"tcm of {name}/pe{pe_id}", usable, cfg.tcm_scheduler_reserved_bytes),
            "hbm": lambda: Pool(f"hbm of {name}/pe{pe_id}", cfg.hbm_slice_bytes, pe_id * cfg.hbm_slice_bytes),
            "sram": lambda: Pool(f"sram of {name}", cfg.sram_bytes_per_cube),
        }
        given = pools or {}
        self.pools = {kind: given.get(kind) or make() for kind, make in own.items()}

    def alloc(self, kind: str, nbytes: int, what: str = "a tensor") -> PhysAddr:
        """Allocate bytes of ``hbm``, ``tcm`` or ``sram``."""
        if kind not in self.pools:
            raise AllocationError(f"a PE has no memory '{kind}'", advice=f"there are {', '.join(self.pools)}")
        return self.address(kind, self.pools[kind].take(nbytes, what))

    def address(self, kind: str, offset: int) -> PhysAddr:
        if kind == "hbm":
            return PhysAddr.hbm_addr(self.rack_id, self.sip_id, self.hbm_cube, offset, layout=self.layout)
        where = (self.rack_id, self.sip_id, self.cube_id)
        if kind == "sram":
            return PhysAddr.cube_sram_addr(*where, offset, layout=self.layout)
        return PhysAddr.pe_tcm_addr(*where, self.pe_id, offset, layout=self.layout)

    def free(self, pa: PhysAddr, nbytes: int) -> None:
        self.pools[pa.component].give_back(pa.component_offset, nbytes)

    def _free(self, kind: str, pa: PhysAddr, nbytes: int) -> None:
        if pa.component != kind:
            raise AllocationError(f"{pa} is not in {kind}")
        self.free(pa, nbytes)

    def _reserve(self, kind: str, total_bytes: int) -> int:
        """Room for queue rings; its offset in the memory. The cube's SRAM is one pool for all its PEs."""
        return self.pools[kind].take(total_bytes, "queue rings")

    alloc_hbm, alloc_tcm = partialmethod(alloc, "hbm"), partialmethod(alloc, "tcm")
    free_hbm, free_tcm = partialmethod(_free, "hbm"), partialmethod(_free, "tcm")
    reserve_ipcq_hbm, reserve_ipcq_tcm = partialmethod(_reserve, "hbm"), partialmethod(_reserve, "tcm")
    reserve_ipcq_sram = partialmethod(_reserve, "sram")


class VirtualAllocator:
    """Virtual ranges, in whole pages."""

    def __init__(self, va_base: int = 1 << 32, va_size: int = 1 << 46, page_size: int = 4096) -> None:
        if whole(page_size) is None or page_size < 1 or page_size & (page_size - 1):
            raise AllocationError(f"a page of {page_size} bytes is not a power of two")
        self.va_base, self.va_size, self.page_size = va_base, va_size, page_size
        self._pool = Pool("virtual addresses", va_size, va_base)

    def alloc(self, nbytes: int, what: str = "a tensor") -> int:
        return self._pool.take(self._pages(nbytes), what)

    def free(self, va: int, nbytes: int) -> None:
        self._pool.give_back(va, self._pages(nbytes))

    def _pages(self, nbytes: int) -> int:
        return -(-max(nbytes, 1) // self.page_size) * self.page_size


@dataclass
class PeMMU:
    """The page table of one PE, as ranges: virtual bytes and where they lie.

    A shard begins where it must, not at a page, so a mapping has the granularity of bytes; its messages on
    the control path count pages of ``page_size``.
    """

    page_size: int = 4096
    _ranges: list[tuple[int, int, PhysAddr, str]] = field(default_factory=list)

    def map(self, va: int, nbytes: int, pa: PhysAddr, what: str = "") -> int:
        """Map a range; the number of pages that the message names."""
        at = bisect_right(self._ranges, va, key=lambda r: r[0])
        for start, size, _, name in self._ranges[max(0, at - 1) : at + 1]:
            if start < va + nbytes and va < start + size:
                raise AllocationError(
                    f"virtual addresses of {what or 'a range'} at {va:#x} are already mapped to {name}"
                )
        self._ranges.insert(at, (va, nbytes, pa, what))
        return -(-nbytes // self.page_size)

    def unmap(self, va: int) -> None:
        at = bisect_right(self._ranges, va, key=lambda r: r[0]) - 1
        if at < 0 or self._ranges[at][0] != va:
            raise AllocationError(f"nothing is mapped at {va:#x}")
        del self._ranges[at]

    def translate(self, va: int, nbytes: int = 1) -> PhysAddr:
        """Return where a virtual range lies; one that is not mapped whole is an error that names what is
        near."""
        at = bisect_right(self._ranges, va, key=lambda r: r[0]) - 1
        if at >= 0:
            start, size, pa, what = self._ranges[at]
            if va + nbytes <= start + size:
                return PhysAddr(pa.rack_id, pa.sip_id, pa.cube_id, pa.local_offset + va - start, pa.layout)
            near = f"; {what or 'the range before'} ends at {start + size:#x}"
        else:
            near = ""
        raise AllocationError(f"page fault: {nbytes} bytes at {va:#x} are not mapped{near}")


class Allocators:
    """All allocators of a machine, made when they are first asked for. Keys are (sip, cube, pe)."""

    def __init__(self, hda: HDA) -> None:
        self.shape = DeviceShape.of(hda)
        self.layout = AddressLayout.of(hda)
        self.cfg = AddressConfig.of(hda)
        self.virtual = VirtualAllocator(page_size=hda.memory(self.shape.hbm).page or 4096)
        self._pes: dict[tuple[int, int, int], PEMemAllocator] = {}
        self._mmus: dict[tuple[int, int, int], PeMMU] = {}
        self._pools: dict[tuple[str, int, int], Pool] = {}

    def __getitem__(self, key: tuple[int, int, int]) -> PEMemAllocator:
        return self.pe(*key)

    def pe(self, sip: int, cube: int, pe: int) -> PEMemAllocator:
        key = (sip, cube, pe)
        if key not in self._pes:
            shape = self.shape
            if not (0 <= sip < shape.devices and 0 <= cube < shape.cubes and 0 <= pe < shape.pes):
                raise AllocationError(
                    f"there is no PE {key}",
                    advice=f"there are {shape.devices} devices of {shape.cubes} cubes of {shape.pes} PEs",
                )
            rack, local = divmod(sip, 1 << self.layout.sip)
            shared = {"sram": self._shared("sram", sip, cube, self.cfg.sram_bytes_per_cube)}
            home = 0 if shape.hbm_of == "device" else cube
            if shape.hbm_of != "pe":
                shared["hbm"] = self._shared("hbm", sip, home, self.cfg.hbm_bytes_per_cube)
            self._pes[key] = PEMemAllocator(
                rack, local, cube, pe, self.cfg, layout=self.layout, pools=shared, hbm_cube=home
            )
        return self._pes[key]

    def _shared(self, kind: str, sip: int, cube: int, size: int) -> Pool:
        key = (kind, sip, cube)
        if key not in self._pools:
            where = f"sip{sip}" if kind == "hbm" and self.shape.hbm_of == "device" else f"sip{sip}/cube{cube}"
            self._pools[key] = Pool(f"{kind} of {where}", size)
        return self._pools[key]

    def mmu(self, sip: int, cube: int, pe: int) -> PeMMU:
        return self._mmus.setdefault((sip, cube, pe), PeMMU(self.virtual.page_size))
