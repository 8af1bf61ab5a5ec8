"""``runtime/host/tl_kernels.py``: ``torch.launch``."""

from __future__ import annotations

import numpy as np
import pytest
from tests.runtime.host.shared import MACHINES, double

import megatile as mt
from megatile.runtime.host.allocators import AllocationError
from megatile.runtime.host.placement import DPPolicy
from megatile.runtime.host.storage import TensorError
from megatile.runtime.host.tl_kernels import LaunchError


def add_row(x, row, out, count, tl):
    """Rows of x are divided over cubes; every PE of a cube has a copy, every cube all of ``row``."""
    cube = tl.program_id(1)
    total = tl.load(x + cube * count * 2, shape=(count,), dtype="f16") + tl.load(
        row, shape=(count,), dtype="f16"
    )
    tl.store(out + cube * count * 2, total)


def by_column(x, count, tl):
    mine = x + tl.program_id(0) * count * 2
    tl.store(mine, tl.load(mine, shape=(count,), dtype="f16") + 1.0)


@pytest.mark.parametrize("name", MACHINES)
def test_a_kernel_runs_where_its_tensors_lie(name: str) -> None:
    with mt.host(name) as torch:
        cubes, pes = min(2, torch.shape.cubes), min(2, torch.shape.pes)
        data = np.arange(cubes * pes * 8, dtype=np.float16).reshape(-1, 8)
        for device in (0, 1):
            torch.accelerator.set_device_index(device)
            x = torch.empty(
                data.shape, dp=DPPolicy("row_wise", "row_wise", num_cubes=cubes, num_pes=pes)
            ).copy_(data)
            launch = torch.launch("double", double, x, 8)
            np.testing.assert_array_equal(x.numpy(), 2 * data)
            assert launch.devices == (device,)
        assert launch.end_ps <= torch.clock_ps
        units = {event.unit for event in torch.trace}
        assert len(units) >= 2 * cubes * pes


def test_copies_and_parts_in_one_kernel(torch) -> None:
    data = np.arange(32, dtype=np.float16).reshape(2, 16)
    counts = {"num_cubes": 2, "num_pes": 4}
    x = torch.empty((2, 16), dp=DPPolicy(cube="row_wise", **counts)).copy_(data)
    row = torch.empty((16,), dp=DPPolicy(**counts)).copy_(np.ones(16))
    out = torch.zeros((2, 16), dp=DPPolicy(cube="row_wise", **counts))
    torch.launch("add_row", add_row, x, row, out, 16)
    np.testing.assert_array_equal(out.numpy(), data + 1)
    np.testing.assert_array_equal(out.contents(), out._data[[3, 7]].reshape(2, 16), "the last copies agree")
    inner = torch.empty((2, 16), dp=DPPolicy(pe="column_wise", **counts)).copy_(data)
    torch.launch("by_column", by_column, inner, 8)
    np.testing.assert_array_equal(inner.numpy(), data + 1)


def test_one_tensor_given_twice_is_one_piece_of_memory(torch) -> None:
    def swap(a, b, tl):
        first = tl.load(a, shape=(4,), dtype="f16")
        tl.store(b, first + 1.0)

    x, y = torch.zeros(4), torch.zeros(4)
    torch.launch("swap", swap, x, y)
    torch.launch("swap", swap, x, x)
    assert (x.tolist(), y.tolist()) == ([1] * 4, [1] * 4)


def test_kernels_that_cannot_be_launched(torch) -> None:
    x = torch.zeros(8, name="x")
    with pytest.raises(LaunchError, match="has no tensor"):
        torch.launch("none", double, 8)
    with pytest.raises(LaunchError, match="on 1 PEs of device 0, 'b' on 2 of device 0"):
        torch.launch("two", add_row, x, torch.zeros(8, name="b", dp=DPPolicy(num_cubes=1, num_pes=2)), x, 8)
    with pytest.raises(TensorError, match="uneven"):
        torch.launch("odd", double, torch.zeros((3, 4), dp=DPPolicy("row_wise", num_cubes=2, num_pes=1)), 8)
    with pytest.raises(LaunchError, match="kernel 'type': tensor 'wide' holds f32, not f16"):
        torch.launch("type", double, torch.zeros(8, dtype="f32", name="wide"), 8)
    text = r"shared.py:\d+: kernel 'beyond': tensor 'x' .* has no elements 0:9.*is mapped at 0x100000000 to"
    for torch.engine.data in (False, True):
        with pytest.raises(LaunchError, match=text):
            torch.launch("beyond", double, x, 9)
    torch.launch("good", double, x, 8)


def test_what_is_not_a_block_of_a_tensor_is_reported_with_its_name_and_address(torch) -> None:
    def skewed(t1, other, tl):
        tl.store(t1, tl.load(t1 + 2, shape=(6,), dtype="f16"))

    x = torch.zeros((4, 4), name="t1", dp=DPPolicy(num_cubes=1, num_pes=1))
    with pytest.raises(LaunchError) as error:
        torch.launch("skewed", skewed, x, torch.zeros(4, name="t0", dp=DPPolicy(num_cubes=1, num_pes=1)))
    said = str(error.value)
    block = "6 elements at <t1 + 2> are not a block of tensor 't1' (4, 4); 't1' is mapped at 0x100000000 to"
    assert f"kernel 'skewed': {block}" in said
    assert "is the first to reach for it, at 0x100000002" in said
    assert "'t0'" not in said


def shifted(x, count, offset, tl):
    mine = x + (tl.program_id(0) + tl.program_id(1) * tl.num_programs(0)) * 64
    tl.store(mine, tl.load(mine + offset, shape=(count,), dtype="f16"))


def one_too_far(x, tl):
    me = tl.program_id(0) + tl.program_id(1) * tl.num_programs(0)
    if me == 5:
        tl.store(x + me * 64 + 2, tl.load(x + me * 64, shape=(32,), dtype="f16"))


@pytest.mark.parametrize(("machine", "first", "sixth"), [
    ("ahbm", "sip0/cube0/pe0", "sip0/cube2/pe1"), ("dgx-h100", "gpu0/gpc0/tpc0/sm0", "gpu0/gpc2/tpc0/sm1"),
])  # fmt: skip
def test_an_access_outside_names_tensor_unit_and_address(machine: str, first: str, sixth: str) -> None:
    base = 0x100000000
    cases = [(shifted, (33, 0), first, 0), (shifted, (32, -2), first, -2), (shifted, (32, 4096), first, 4096),
             (one_too_far, (), sixth, 5 * 64 + 2)]  # fmt: skip
    for kernel, args, unit, offset in cases:
        with mt.host(machine) as torch:
            x = torch.zeros((8, 32), name="w", dp=DPPolicy("row_wise", "row_wise", num_cubes=4, num_pes=2))
            said = f"tensor 'w'.*mapped at 0x100000000 to.*; {unit} is the first .*, at {base + offset:#x}"
            with pytest.raises(LaunchError, match=said):
                torch.launch("k", kernel, x, *args)
            x.zero_()


def large(x, count, tl):
    tl.store(x, tl.load(x, shape=(count,), dtype="f16") * 2.0)


def test_scratch_must_fit_beside_what_is_allocated(torch) -> None:
    size = (3 << 20) - 64  # two tiles of nearly 6 MiB fill 12 MiB
    x = torch.zeros(size)
    torch.launch("large", large, x, size)
    torch.memory.pe(0, 0, 0).alloc_tcm(1024)
    with pytest.raises(AllocationError, match=r"tcm of sip0/cube0/pe0: .* for scratch of kernel 'large'"):
        torch.launch("large", large, x, size)
    with pytest.raises(LaunchError, match="memory 'tcm' of machine 'ahbm' has"):
        torch.launch("larger", large, torch.zeros(2 * size), 2 * size)
