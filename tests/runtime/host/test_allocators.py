"""``runtime/host/allocators.py``: device memory."""

from __future__ import annotations

import gc
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st
from tests.runtime.host.shared import resolve

import megatile as mt
from megatile.hda import machine
from megatile.hda.addresses import AddressConfig
from megatile.runtime.host.allocators import (
    AllocationError,
    Allocators,
    PEMemAllocator,
    PeMMU,
    VirtualAllocator,
)
from megatile.runtime.host.placement import DPPolicy, PlacementError, deploy_tensor
from megatile.runtime.host.storage import TensorError


def test_memory_comes_back(torch) -> None:
    pool = torch.memory.pe(0, 0, 0).pools["hbm"]
    free = pool.free_bytes
    x = torch.zeros(1 << 20, name="x")
    assert pool.free_bytes < free
    x.free()
    assert pool.free_bytes == free
    for use in (x.numpy, lambda: x[0], lambda: torch.launch("k", print, x)):
        with pytest.raises(TensorError, match="'x' is used after it was freed"):
            use()
    with pytest.raises(AllocationError, match="'x' was already freed"):
        x.free()
    y = torch.zeros(1 << 20)
    assert pool.free_bytes < free
    del y
    gc.collect()
    assert pool.free_bytes == free
    with pytest.raises(
        AllocationError, match=r"hbm of sip0/cube0/pe0: 7 GiB asked for tensor 'big', 6 GiB free"
    ):
        torch.empty(7 << 29, dtype="f16", name="big")
    assert torch.zeros(4).tolist() == [0, 0, 0, 0]


def test_every_machine_has_its_own_pools() -> None:
    with mt.host("dgx-h100", data=False) as torch:
        first = torch.empty(39_000_000_000, dtype="f16")
        assert first.device == "device:0"
        with pytest.raises(AllocationError, match="hbm of sip0: 80 GB asked"):
            torch.empty(40_000_000_000, dtype="f16", name="second")
        torch.accelerator.set_device_index(1)
        assert torch.empty(39_000_000_000, dtype="f16").device == "device:1"
        with pytest.raises(TensorError, match="has no contents"):
            torch.empty(2).numpy()


CONFIG = AddressConfig(2, 16, 8, 48 << 30, 8, 16 << 20, 4 << 20, 32 << 20)


def test_a_tensor_is_placed_whole_or_not_at_all() -> None:
    memory = Allocators(machine("ahbm"))
    free = memory.pe(0, 0, 0).pools["hbm"].free_bytes
    policy = DPPolicy("replicate", "replicate", num_cubes=1, num_pes=2)
    memory.pe(0, 0, 1).alloc_hbm(6 << 30)
    with pytest.raises(AllocationError, match=r"hbm of sip0/cube0/pe1: .* asked for tensor 'x', 0 B free"):
        deploy_tensor("x", (16, 32), "f16", resolve(policy), memory)
    assert memory.pe(0, 0, 0).pools["hbm"].free_bytes == free
    with pytest.raises(PlacementError, match="cannot lie in 'disk'"):
        deploy_tensor("x", (16, 32), "f16", resolve(policy), memory, "disk")
    with pytest.raises(PlacementError, match="hold 1024 bytes"):
        deploy_tensor("x", (16, 33), "f16", resolve(policy), memory)


def test_allocators_give_addresses_that_name_their_unit() -> None:
    a = PEMemAllocator(0, 1, 2, 3, CONFIG)
    hbm, tcm = a.alloc_hbm(100), a.alloc_tcm(100)
    assert str(hbm) == f"sip1/cube2 hbm+{3 * (6 << 30):#x}"
    assert str(tcm) == "sip1/cube2/pe3 tcm+0x400000", "the scheduler's part comes first"
    assert a.reserve_ipcq_tcm(4096) == tcm.component_offset + 128, "rings come from the same pool"
    assert a.reserve_ipcq_hbm(64) > hbm.component_offset
    a.free_hbm(hbm, 100)
    assert a.alloc_hbm(50) == hbm, "what was freed is used again"


def test_memory_that_is_not_there_or_given_back_wrongly() -> None:
    a = PEMemAllocator(0, 0, 0, 0, CONFIG)
    with pytest.raises(AllocationError, match=r"hbm of sip0/cube0/pe0: 7 GiB asked .* 6 GiB free"):
        a.alloc_hbm(7 << 30)
    with pytest.raises(AllocationError, match="12 MiB free of 12 MiB"):
        a.alloc_tcm((12 << 20) + 1)
    pa = a.alloc_tcm(64)
    with pytest.raises(AllocationError, match="has 64 bytes, not 65"):
        a.free_tcm(pa, 65)
    with pytest.raises(AllocationError, match="is not in hbm"):
        a.free_hbm(pa, 64)
    a.free_tcm(pa, 64)
    with pytest.raises(AllocationError, match="nothing is allocated"):
        a.free_tcm(pa, 64)


@given(st.lists(st.integers(0, 300), max_size=30), st.randoms(use_true_random=False))
def test_pools_never_give_a_byte_twice(sizes, random) -> None:
    a = PEMemAllocator(0, 0, 0, 0, replace(CONFIG, tcm_bytes_per_pe=4096, tcm_scheduler_reserved_bytes=0))
    held = []
    for size in sizes:
        with suppress(AllocationError):
            held.append((a.alloc_tcm(size), size))
        if held and random.random() < 0.5:
            a.free_tcm(*held.pop(random.randrange(len(held))))
    ranges = sorted((pa.component_offset, pa.component_offset + n) for pa, n in held)
    assert all(end <= start for (_, end), (start, _) in pairwise(ranges))
    for pa, n in held:
        a.free_tcm(pa, n)
    assert a.alloc_tcm(4096).component_offset == 0, "all of it is one range again"


def test_cubes_share_their_sram_and_gpus_their_hbm() -> None:
    memory = Allocators(machine("ahbm"))
    one, two = (memory.pe(0, 0, pe).alloc("sram", 100) for pe in (0, 1))
    assert two.component_offset == one.component_offset + 128
    assert memory.pe(0, 1, 0).alloc("sram", 100).component_offset == one.component_offset
    gpu = Allocators(machine("dgx-h100"))
    first, second = gpu.pe(1, 0, 0).alloc_hbm(64), gpu.pe(1, 5, 21).alloc_hbm(64)
    assert (first.cube_id, second.cube_id) == (0, 0)
    assert second.component_offset == first.component_offset + 64
    with pytest.raises(AllocationError, match="there is no PE"):
        gpu.pe(8, 0, 0)


def test_virtual_ranges_and_page_tables() -> None:
    virtual = VirtualAllocator(va_base=4096, va_size=8192, page_size=4096)
    first = virtual.alloc(10)
    assert (first, virtual.alloc(4096)) == (4096, 8192)
    with pytest.raises(AllocationError, match="virtual addresses"):
        virtual.alloc(1)
    virtual.free(first, 10)
    assert virtual.alloc(1) == first
    with pytest.raises(AllocationError, match="not a power of two"):
        VirtualAllocator(page_size=3)
    pa = PEMemAllocator(0, 0, 0, 0, CONFIG).alloc_hbm(100)
    mmu = PeMMU()
    assert mmu.map(first, 100, pa, "tensor 'x'") == 1
    assert mmu.translate(first + 10, 90).component_offset == pa.component_offset + 10
    with pytest.raises(AllocationError, match=r"page fault: 91 bytes .* tensor 'x' ends"):
        mmu.translate(first + 10, 91)
    with pytest.raises(AllocationError, match="page fault"):
        mmu.translate(0)
    with pytest.raises(AllocationError, match="already mapped to tensor 'x'"):
        mmu.map(first + 50, 100, pa)
    mmu.unmap(first)
    with pytest.raises(AllocationError, match="nothing is mapped"):
        mmu.unmap(first)
