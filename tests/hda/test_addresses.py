"""Physical addresses: fields, ranges, factories, and the layouts of all shipped machines."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from megatile.hda import machine, machine_names
from megatile.hda.addresses import (
    PE_RESOURCE_MAP,
    AddressConfig,
    AddressLayout,
    DeviceShape,
    PhysAddr,
    PhysAddrError,
    UnitType,
)

CONFIG = AddressConfig(2, 16, 8, 48 << 30, 8, 16 << 20, 4 << 20, 32 << 20)


def test_fields_stand_where_the_page_says() -> None:
    address = PhysAddr.hbm_addr(3, 5, 17, 0x1234).encode()
    assert address >> 47 == 3
    assert address >> 43 & 15 == 5
    assert address >> 38 & 31 == 17
    assert address & ((1 << 38) - 1) == 1 << 37 | 0x1234
    tcm = PhysAddr.pe_tcm_addr(0, 0, 0, 9, 64).encode()
    assert (tcm >> 34 & 7, tcm >> 30 & 15, tcm >> 29 & 1, tcm & ((1 << 29) - 1)) == (0, 9, 0, 64)
    assert PhysAddr.cube_sram_addr(0, 0, 0, 7).encode() >> 34 & 7 == UnitType.SRAM


FACTORIES = {
    "hbm": lambda w, pe, o: PhysAddr.hbm_addr(*w, o),
    "tcm": lambda w, pe, o: PhysAddr.pe_tcm_addr(*w, pe, o % (1 << 28)),
    "ipcq": lambda w, pe, o: PhysAddr.pe_ipcq_addr(*w, pe, o % (1 << 20)),
    "scratchpad": lambda w, pe, o: PhysAddr.pe_scratchpad_addr(*w, pe, o % (1 << 24)),
    "regfile": lambda w, pe, o: PhysAddr.pe_regfile_addr(*w, pe, o % (1 << 20)),
    "sram": lambda w, pe, o: PhysAddr.cube_sram_addr(*w, o % (1 << 29)),
}


@given(
    st.sampled_from(sorted(FACTORIES)),
    st.tuples(st.integers(0, 15), st.integers(0, 15), st.integers(0, 31)),
    st.integers(0, 15),
    st.integers(0, (1 << 37) - 1),
)
def test_decode_is_the_inverse_of_encode_and_names_the_component(kind, where, pe, offset) -> None:
    address = FACTORIES[kind](where, pe, offset)
    found = PhysAddr.decode(address.encode())
    assert found == address
    assert found.component == kind
    assert (found.rack_id, found.sip_id, found.cube_id) == where
    assert found.pe_id == (pe if kind not in ("hbm", "sram") else None)
    assert found.kind == {"hbm": "hbm", "sram": "cube_sram"}.get(kind, "pe_resource")
    assert FACTORIES[kind](where, pe, found.component_offset) == address


@given(st.integers(0, (1 << 51) - 1))
def test_every_number_is_an_address_or_refused(number: int) -> None:
    try:
        assert PhysAddr.decode(number).encode() == number
    except PhysAddrError:
        assert not number >> 37 & 1


def test_ranges_of_a_pe_are_disjoint_and_fit() -> None:
    assert {"tcm", "ipcq", "scratchpad", "regfile", "reserved"} <= {r.name for r in PE_RESOURCE_MAP}
    for one, two in pairwise(sorted(PE_RESOURCE_MAP, key=lambda r: r.start_offset)):
        assert one.end_offset <= two.start_offset
    assert all(r.byte_size == r.end_offset - r.start_offset > 0 for r in PE_RESOURCE_MAP)
    assert max(r.end_offset for r in PE_RESOURCE_MAP) <= 1 << 29


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PhysAddr.decode(1 << 51), "addr must be a 51-bit value"),
        (lambda: PhysAddr.decode(-1), "addr must be a 51-bit value"),
        (lambda: PhysAddr.decode(1.0), "addr must be a 51-bit value"),
        (lambda: PhysAddr.hbm_addr(16, 0, 0, 0), "rack_id 16"),
        (lambda: PhysAddr.hbm_addr(0, 16, 0, 0), "sip_id 16"),
        (lambda: PhysAddr.hbm_addr(0, 0, 32, 0), "cube_id 32"),
        (lambda: PhysAddr.hbm_addr(0, 0, 0, 1 << 37), "hbm_offset"),
        (lambda: PhysAddr.pe_tcm_addr(0, 0, 0, 16, 0), "pe_id 16"),
        (lambda: PhysAddr.pe_tcm_addr(0, 0, 0, 0, 1 << 28), "tcm_offset"),
        (lambda: PhysAddr.pe_ipcq_addr(0, 0, 0, 0, 1 << 20), "ipcq_offset"),
        (lambda: PhysAddr.pe_hbm_addr(0, 0, 0, 1, 10, 10), "pe_local_hbm_offset 10"),
        (lambda: PhysAddr.cube_sram_addr(0, 0, 0, 1 << 29), "sram_offset"),
        (lambda: PhysAddr.decode(300 << 20), "none of its ranges"),
        (lambda: PhysAddr.decode(7 << 34), "unit type 7"),
    ],
)
def test_what_is_out_of_range_is_refused(make, message: str) -> None:
    with pytest.raises(PhysAddrError, match=message):
        make()


def test_a_slice_of_hbm_belongs_to_its_pe() -> None:
    slice_bytes = CONFIG.hbm_slice_bytes
    assert slice_bytes == 6 << 30
    address = PhysAddr.pe_hbm_addr(0, 1, 2, 3, 100, slice_bytes)
    assert address.component_offset == 3 * slice_bytes + 100


@pytest.mark.parametrize("name", machine_names())
def test_every_machine_has_a_layout(name: str) -> None:
    hda = machine(name)
    shape, layout = DeviceShape.of(hda), AddressLayout.of(hda)
    assert layout.bits <= 64
    assert shape.devices * shape.cubes * shape.pes == hda.level(shape.pe_scale).total
    last = PhysAddr.pe_tcm_addr(
        (shape.devices - 1) >> layout.sip,
        (shape.devices - 1) % (1 << layout.sip),
        shape.cubes - 1,
        shape.pes - 1,
        shape.l1_bytes - 1,
        layout=layout,
    )
    assert layout.decode(last.encode()) == last
    assert AddressConfig.of(hda).cubes_per_sip == shape.cubes


def test_the_simulated_accelerator_has_the_standard_layout_up_to_256_devices() -> None:
    assert AddressLayout.of(machine("ahbm")) == AddressLayout()
    assert AddressLayout.of(machine("ahbm", sips=256)) == AddressLayout()
    assert AddressLayout.of(machine("ahbm", sips=512)).rack == 5


def test_what_needs_too_many_bits_is_refused() -> None:
    with pytest.raises(PhysAddrError, match="bits"):
        AddressLayout.of(machine("ahbm", sips=1 << 20, pe_per_corner=64))


def test_the_memory_that_a_cube_shares_is_named() -> None:
    assert (DeviceShape.of(machine("ahbm")).sram, DeviceShape.of(machine("ahbm")).sram_bytes) == (
        "sram",
        1 << 25,
    )
    assert {name for name in machine_names() if DeviceShape.of(machine(name)).sram} == {"ahbm"}
