"""Policies, shards and the memory behind them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, strategies as st

from megatile.hda import machine
from megatile.hda.addresses import AddressConfig
from megatile.runtime.host.allocators import (
    AllocationError,
    Allocators,
    PEMemAllocator,
    PeMMU,
    VirtualAllocator,
)
from megatile.runtime.host.placement import (
    DPPolicy,
    PlacementError,
    ShardSpec,
    deploy_tensor,
    resolve_dp_policy,
    tiled_column_major,
    tiled_row_major,
)

CONFIG = AddressConfig(2, 16, 8, 48 << 30, 8, 16 << 20, 4 << 20, 32 << 20)
POLICIES = ("replicate", "row_wise", "column_wise")


def resolve(policy: DPPolicy, shape=(16, 32), sip: int = 0):
    return resolve_dp_policy(policy, shape=shape, itemsize=2, num_pe=8, num_cubes=16, target_sip=sip)


@pytest.mark.parametrize("word", ["sip", "num_sips"])
def test_policies_stay_inside_a_device(word: str) -> None:
    with pytest.raises(TypeError):
        DPPolicy(**{word: 1})
    with pytest.raises(TypeError):
        resolve_dp_policy(DPPolicy(), shape=(1,), itemsize=2, num_pe=1, target_sip=0, num_sips=2)


def test_wrong_policies_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown policy 'rowwise' for cube"):
        DPPolicy(cube="rowwise")
    with pytest.raises(PlacementError, match="num_pes cannot be 0"):
        DPPolicy(num_pes=0)
    with pytest.raises(PlacementError, match="the device has 16 of 8"):
        resolve(DPPolicy(num_cubes=17))


def test_shards_have_no_flat_number() -> None:
    with pytest.raises(AttributeError):
        _ = resolve(DPPolicy())[0].pe_index
    with pytest.raises(TypeError):
        ShardSpec(sip=0, cube=0, pe=0, offset_bytes=0, nbytes=1, pe_index=0)


def test_two_devices_differ_only_in_the_device() -> None:
    policy = DPPolicy("row_wise", "column_wise", num_cubes=4)
    assert [replace(s, sip=1) for s in resolve(policy)] == list(resolve(policy, sip=1))


def test_the_cube_comes_first() -> None:
    shards = resolve(DPPolicy("row_wise", "row_wise", num_cubes=2, num_pes=2))
    assert [(s.cube, s.pe, s.slices[0].start) for s in shards] == [
        (0, 0, 0),
        (0, 1, 4),
        (1, 0, 8),
        (1, 1, 12),
    ]
    assert [s.offset_bytes for s in shards] == [0, 256, 512, 768]


@given(
    st.sampled_from(POLICIES),
    st.sampled_from(POLICIES),
    st.integers(1, 16),
    st.integers(1, 8),
    st.tuples(st.integers(0, 20), st.integers(0, 20)),
)
def test_every_element_is_where_the_shards_say(cube, pe, cubes, pes, shape) -> None:
    """Whatever the sizes: packed and put together again it is the same; distinct shards tile the range."""
    policy = DPPolicy(cube, pe, num_cubes=cubes, num_pes=pes)
    shards = resolve(policy, shape)
    assert len(shards) == cubes * pes
    handle = deploy_tensor("t", shape, "f16", shards, Allocators(machine("ahbm")))
    data = np.arange(shape[0] * shape[1], dtype=np.float16).reshape(shape)
    np.testing.assert_array_equal(handle.unpack(handle.pack(data)), data)
    distinct = sorted({(s.offset_bytes, s.nbytes) for s in shards if s.nbytes})
    end = 0
    for offset, nbytes in distinct:
        assert offset == end
        end += nbytes
    assert end == data.nbytes == handle.nbytes


@pytest.mark.parametrize(("tiles", "second"), [(tiled_column_major, (0, 128)), (tiled_row_major, (256, 0))])
def test_tiles_are_dealt_out_in_turn(tiles, second) -> None:
    shards = tiles((1024, 512), 2, 8, 256, 128)
    assert [s.pe for s in shards] == [i % 8 for i in range(16)]
    assert (shards[1].slices[0].start, shards[1].slices[1].start) == second
    count = np.zeros((1024, 512), int)
    for s in shards:
        count[s.slices] += 1
    assert (count == 1).all()
    assert sum(s.nbytes for s in tiles((1000, 500), 2, 8, 256, 128)) == 1000 * 500 * 2
    with pytest.raises(PlacementError, match="need a matrix"):
        tiles((8,), 2, 8, 1, 1)


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
