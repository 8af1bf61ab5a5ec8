"""Physical addresses: a number that names a device, a cube in it, and a byte of one of its components.

The standard layout has 51 bits:

    [50:47] rack   [46:43] sip   [42:38] cube   [37:0] local offset
    local offset:  bit 37 = 1   HBM window, 37 bits of offset
                   bit 37 = 0   [36:34] unit type   [33:30] pe   [29] ext   [28:0] sub-offset

`PE_RESOURCE_MAP` cuts the sub-offset of a PE into named ranges. Machines that do not fit have a layout of
their own (``AddressLayout.of``): the same fields, as wide as the machine's counts and memories ask for.

    >>> a = PhysAddr.pe_tcm_addr(0, 1, 2, 3, 0x40)
    >>> hex(a.encode()), PhysAddr.decode(a.encode()).component
    ('0x88c0000040', 'tcm')
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from megatile.core.errors import MegatileError
from megatile.core.quantities import format_bytes, whole
from megatile.hda.hda import HDA
from megatile.hda.model import MemoryLayer

MiB = 1 << 20
MAX_ADDRESS_BITS = 64
"""Bits of a physical address."""


class PhysAddrError(MegatileError, ValueError):
    """An address, or a part of one, that does not exist."""


class UnitType(IntEnum):
    """Whose memory an address outside the HBM window is."""

    PE = 0
    MCPU = 1
    SRAM = 2


class PeResourceRange(NamedTuple):
    """Bytes ``start_offset`` up to ``end_offset`` (not included) of a PE's sub-offsets."""

    name: str
    start_offset: int
    end_offset: int

    @property
    def byte_size(self) -> int:
        return self.end_offset - self.start_offset


PE_RESOURCE_MAP: tuple[PeResourceRange, ...] = (
    PeResourceRange("tcm", 0, 256 * MiB),
    PeResourceRange("ipcq", 256 * MiB, 257 * MiB),
    PeResourceRange("scratchpad", 272 * MiB, 288 * MiB),
    PeResourceRange("regfile", 288 * MiB, 289 * MiB),
    PeResourceRange("reserved", 511 * MiB, 512 * MiB),
)
"""What a PE has, and where; what lies in none of these does not exist."""
_RANGES = {r.name: r for r in PE_RESOURCE_MAP}


@dataclass(frozen=True)
class AddressLayout:
    """How wide the fields are; the widths of the parts of ``local`` add up to at most its own."""

    rack: int = 4
    sip: int = 4
    cube: int = 5
    local: int = 38
    pe: int = 4
    sub: int = 29

    @property
    def bits(self) -> int:
        return self.rack + self.sip + self.cube + self.local

    @property
    def window(self) -> int:
        """The bit that says HBM."""
        return 1 << (self.local - 1)

    @staticmethod
    def of(hda: HDA) -> AddressLayout:
        """Return the standard layout if the machine fits it, else one of its own; more than 64 bits are
        refused."""
        shape = DeviceShape.of(hda)
        racks, sips = -(-shape.devices // 16), min(16, shape.devices)
        memory = _bits(shape.hbm_bytes)
        if shape.l1_bytes > _RANGES["tcm"].byte_size:
            raise PhysAddrError(
                f"machine '{hda.name}': {format_bytes(shape.l1_bytes)} of '{shape.l1}' do not fit the range "
                f"of {format_bytes(_RANGES['tcm'].byte_size)} that a PE has for it"
            )
        standard = AddressLayout()
        own = AddressLayout(
            _bits(racks),
            _bits(sips),
            _bits(shape.cubes),
            1 + max(memory, 33 + _bits(shape.pes)),
            _bits(shape.pes),
        )
        pairs = [(getattr(own, n), getattr(standard, n)) for n in ("rack", "sip", "cube", "local", "pe")]
        if all(needed <= there for needed, there in pairs):
            return standard
        if own.bits > MAX_ADDRESS_BITS:
            raise PhysAddrError(
                f"addresses of machine '{hda.name}' need {own.bits} bits (rack {own.rack}, device {own.sip}, "
                f"cube {own.cube}, local {own.local}), more than {MAX_ADDRESS_BITS}"
            )
        return own

    def decode(self, addr: int) -> PhysAddr:
        """Return the parts of an address."""
        number = whole(addr)
        if number is None or not 0 <= number < 1 << self.bits:
            raise PhysAddrError(f"addr must be a {self.bits}-bit value")
        local = number & ((1 << self.local) - 1)
        rest = number >> self.local
        cube, rest = rest & ((1 << self.cube) - 1), rest >> self.cube
        sip, rack = rest & ((1 << self.sip) - 1), rest >> self.sip
        found = PhysAddr(rack, sip, cube, local, self)
        found.component  # noqa: B018  (raises where there is nothing)
        return found


STANDARD = AddressLayout()


@dataclass(frozen=True)
class PhysAddr:
    """One address. The factories give one from what it names; ``decode(encode())`` is the same again."""

    rack_id: int
    sip_id: int
    cube_id: int
    local_offset: int
    layout: AddressLayout = field(default=STANDARD, repr=False)

    def __post_init__(self) -> None:
        for name, width in (
            ("rack_id", "rack"),
            ("sip_id", "sip"),
            ("cube_id", "cube"),
            ("local_offset", "local"),
        ):
            _check(name, getattr(self, name), 1 << getattr(self.layout, width))

    def encode(self) -> int:
        layout = self.layout
        high = (self.rack_id << layout.sip | self.sip_id) << layout.cube | self.cube_id
        return high << layout.local | self.local_offset

    @staticmethod
    def decode(addr: int) -> PhysAddr:
        """Return the parts of an address of the standard layout."""
        return STANDARD.decode(addr)

    # what it names

    @property
    def is_hbm(self) -> bool:
        return bool(self.local_offset & self.layout.window)

    @property
    def unit_type(self) -> UnitType | None:
        """None for HBM."""
        if self.is_hbm:
            return None
        number = self.local_offset >> (self.layout.local - 4)
        if number not in UnitType.__members__.values():
            raise PhysAddrError(f"unit type {number} does not exist")
        return UnitType(number)

    @property
    def pe_id(self) -> int | None:
        """The PE whose own memory this is."""
        if self.unit_type is not UnitType.PE:
            return None
        return self.local_offset >> (self.layout.sub + 1) & ((1 << self.layout.pe) - 1)

    @property
    def sub_offset(self) -> int:
        return self.local_offset & ((1 << self.layout.sub) - 1)

    @property
    def kind(self) -> str:
        """``hbm``, ``pe_resource``, ``cube_sram`` or ``mcpu``."""
        return {None: "hbm", UnitType.PE: "pe_resource", UnitType.SRAM: "cube_sram", UnitType.MCPU: "mcpu"}[
            self.unit_type
        ]

    @property
    def component(self) -> str:
        """The memory or register file: ``hbm``, ``sram``, or a name of `PE_RESOURCE_MAP`."""
        return self._where()[0]

    @property
    def component_offset(self) -> int:
        return self._where()[1]

    def _where(self) -> tuple[str, int]:
        if self.is_hbm:
            return "hbm", self.local_offset & (self.layout.window - 1)
        if self.unit_type is not UnitType.PE:
            return ("sram" if self.unit_type is UnitType.SRAM else "mcpu"), self.sub_offset
        for name, start, end in PE_RESOURCE_MAP:
            if start <= self.sub_offset < end:
                return name, self.sub_offset - start
        raise PhysAddrError(f"sub_offset {self.sub_offset:#x} of a PE is in none of its ranges")

    def __str__(self) -> str:
        pe = "" if self.pe_id is None else f"/pe{self.pe_id}"
        sip = (self.rack_id << self.layout.sip) + self.sip_id
        return f"sip{sip}/cube{self.cube_id}{pe} {self.component}+{self.component_offset:#x}"

    # factories

    @staticmethod
    def hbm_addr(
        rack_id: int, sip_id: int, cube_id: int, hbm_offset: int, *, layout: AddressLayout = STANDARD
    ) -> PhysAddr:
        """Return a byte of a cube's HBM."""
        _check("hbm_offset", hbm_offset, layout.window)
        return PhysAddr(rack_id, sip_id, cube_id, layout.window | hbm_offset, layout)

    @staticmethod
    def pe_hbm_addr(
        rack_id: int,
        sip_id: int,
        cube_id: int,
        pe_id: int,
        pe_local_hbm_offset: int,
        slice_size_bytes: int,
        *,
        layout: AddressLayout = STANDARD,
    ) -> PhysAddr:
        """Return a byte of the slice of HBM that belongs to a PE."""
        _check("pe_id", pe_id, 1 << layout.pe)
        _check("pe_local_hbm_offset", pe_local_hbm_offset, slice_size_bytes)
        offset = pe_id * slice_size_bytes + pe_local_hbm_offset
        return PhysAddr.hbm_addr(rack_id, sip_id, cube_id, offset, layout=layout)

    @staticmethod
    def _pe_addr(
        name: str, rack_id: int, sip_id: int, cube_id: int, pe_id: int, offset: int, layout: AddressLayout
    ) -> PhysAddr:
        there = _RANGES[name]
        _check("pe_id", pe_id, 1 << layout.pe)
        _check(f"{name}_offset", offset, there.byte_size)
        local = pe_id << (layout.sub + 1) | there.start_offset + offset
        return PhysAddr(rack_id, sip_id, cube_id, local, layout)

    @staticmethod
    def pe_tcm_addr(
        rack_id: int,
        sip_id: int,
        cube_id: int,
        pe_id: int,
        tcm_offset: int,
        *,
        layout: AddressLayout = STANDARD,
    ) -> PhysAddr:
        return PhysAddr._pe_addr("tcm", rack_id, sip_id, cube_id, pe_id, tcm_offset, layout)

    @staticmethod
    def pe_ipcq_addr(
        rack_id: int,
        sip_id: int,
        cube_id: int,
        pe_id: int,
        ipcq_offset: int,
        *,
        layout: AddressLayout = STANDARD,
    ) -> PhysAddr:
        """Return a register of a PE's queues."""
        return PhysAddr._pe_addr("ipcq", rack_id, sip_id, cube_id, pe_id, ipcq_offset, layout)

    @staticmethod
    def pe_scratchpad_addr(
        rack_id: int, sip_id: int, cube_id: int, pe_id: int, offset: int, *, layout: AddressLayout = STANDARD
    ) -> PhysAddr:
        return PhysAddr._pe_addr("scratchpad", rack_id, sip_id, cube_id, pe_id, offset, layout)

    @staticmethod
    def pe_regfile_addr(
        rack_id: int, sip_id: int, cube_id: int, pe_id: int, offset: int, *, layout: AddressLayout = STANDARD
    ) -> PhysAddr:
        return PhysAddr._pe_addr("regfile", rack_id, sip_id, cube_id, pe_id, offset, layout)

    @staticmethod
    def cube_sram_addr(
        rack_id: int, sip_id: int, cube_id: int, sram_offset: int, *, layout: AddressLayout = STANDARD
    ) -> PhysAddr:
        """Return a byte of the SRAM that the PEs of a cube share."""
        _check("sram_offset", sram_offset, 1 << layout.sub)
        local = UnitType.SRAM << (layout.local - 4) | sram_offset
        return PhysAddr(rack_id, sip_id, cube_id, local, layout)


def _check(name: str, value: int, limit: int) -> None:
    number = whole(value)
    if number is None or not 0 <= number < limit:
        raise PhysAddrError(f"{name} {value!r} is out of range", advice=f"use 0 to {limit - 1}")


def _bits(count: int) -> int:
    """Return how many bits number so many things."""
    return max(0, count - 1).bit_length()


@dataclass(frozen=True)
class DeviceShape:
    """A machine as the host sees it: devices (ranks) of cubes of PEs, and the names of their memories.

    A machine without levels of these names has others at their place: the device is the scale called so, a PE
    is the unit that runs kernels (``block``), and a cube is the level between the two, if there is one.
    """

    devices: int
    cubes: int
    pes: int
    pe_scale: str
    hbm: str
    hbm_bytes: int
    """Bytes that one unit of its level has."""
    hbm_of: str
    """Who has one: every ``pe`` (or a slice of its cube's), every ``cube``, or the ``device``."""
    l1: str
    l1_bytes: int
    l1_reserved: int
    sram: str | None
    sram_bytes: int

    @staticmethod
    def of(hda: HDA) -> DeviceShape:
        device = hda.level("device")
        pe = hda.level(hda.scale("block").level if _has_scale(hda, "block") else hda.levels[0].name)
        between = [lv for lv in hda.levels if pe.position < lv.position < device.position]
        cubes = between[-1].total // device.total if between else 1
        pes = pe.total // device.total // cubes
        main, near = hda.memory("l2"), hda.memory("l1")
        inside = hda.level(main.level).total // device.total
        sram = next((m for m in hda.memories if _shared_by_cube(hda, m, main, near, cubes)), None)
        return DeviceShape(
            device.total,
            cubes,
            pes,
            pe.name,
            main.name,
            main.size,
            "pe"
            if inside == cubes * pes or main.slices == pes
            else "cube"
            if inside == cubes > 1
            else "device",
            near.name,
            near.size,
            near.reserved,
            sram.name if sram else None,
            sram.size if sram else 0,
        )


def _has_scale(hda: HDA, name: str) -> bool:
    try:
        return not hda.scale(name).implied
    except MegatileError:
        return False


def _shared_by_cube(hda: HDA, layer: MemoryLayer, main: MemoryLayer, near: MemoryLayer, cubes: int) -> bool:
    there = hda.level(layer.level).total // hda.level("device").total
    return layer not in (main, near) and not layer.cache and there == cubes and cubes > 1


@dataclass(frozen=True)
class AddressConfig:
    """The sizes that allocators work with."""

    sip_count: int
    cubes_per_sip: int
    pes_per_cube: int
    hbm_bytes_per_cube: int
    hbm_slices_per_cube: int
    tcm_bytes_per_pe: int
    tcm_scheduler_reserved_bytes: int
    sram_bytes_per_cube: int

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if whole(value) is None or value < (0 if "bytes" in name else 1):
                raise PhysAddrError(f"{name} cannot be {value!r}")
        if self.tcm_scheduler_reserved_bytes > self.tcm_bytes_per_pe:
            raise PhysAddrError("more TCM is reserved than a PE has")

    @staticmethod
    def of(hda: HDA) -> AddressConfig:
        """Return those of a machine. HBM that all cubes of a device share is given to its first cube
        whole."""
        shape = DeviceShape.of(hda)
        slices = shape.pes if shape.hbm_of == "pe" else 1
        return AddressConfig(
            shape.devices,
            shape.cubes,
            shape.pes,
            shape.hbm_bytes,
            slices,
            shape.l1_bytes,
            shape.l1_reserved,
            shape.sram_bytes,
        )

    @property
    def hbm_slice_bytes(self) -> int:
        return self.hbm_bytes_per_cube // self.hbm_slices_per_cube
