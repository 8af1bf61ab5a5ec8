"""Policies, shards and the memory behind them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st
from tests.runtime.host.shared import resolve

from megatile.hda import machine
from megatile.runtime.host.allocators import (
    Allocators,
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

POLICIES = ("replicate", "row_wise", "column_wise")


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
