"""``language/kernel/blocks.py``: blocks of tensors and messages."""

from __future__ import annotations

import numpy as np
import pytest
from tests.language.kernel import kernels
from tests.language.kernel.reader_cases import run

from megatile.cost.price import price
from megatile.language import tl
from megatile.language.kernel.mock import run_kernel_in_mock
from megatile.sim import simulate


def test_a_tile_larger_than_a_slot_is_refused_or_split():
    with pytest.raises(
        tl.KernelError, match=r"a tile of 32 bytes does not fit a slot of 8 bytes.*split=True"
    ):
        run(kernels.hello_send, elements=16, extra=(16,), slot_size=8)
    plan, x, result = run(kernels.hello_send, elements=16, extra=(16,), slot_size=8, split=True, n_slots=4)
    assert plan.channel("ipcq").slot_bytes == 8
    np.testing.assert_array_equal(result, np.roll(x, 1, axis=0))
    with pytest.raises(tl.KernelError, match="not even one element of f16 fits a slot of 1 bytes"):
        run(kernels.hello_send, elements=16, extra=(16,), slot_size=1, split=True)


def test_raw_memory_that_overlaps_is_the_same_memory_or_refused():
    def tail(t_ptr, step, tl):
        mine = t_ptr + tl.program_id(0) * 8 * 2
        tl.store(0x1000, tl.load(mine, (8,)))
        tl.store(0x2000, tl.load(mine, (8,)))
        tl.store(mine, tl.load(0x1000 + step, (4,)))

    _plan, x, result = run(tail, elements=8, extra=(8,))
    np.testing.assert_array_equal(result[:, :4], x[:, 4:])
    mock = run_kernel_in_mock(tail, 3, "ring_1d", list(x.copy()), (8,))
    np.testing.assert_array_equal(np.stack(mock), result)
    for step in (10, 7, -2):  # over the end, between elements, over the begin
        with pytest.raises(tl.KernelError, match=r"overlaps f16\[8\] at 4096"):
            run(tail, elements=8, extra=(step,))

    def turns(t_ptr, tl):
        mine = t_ptr + tl.program_id(0) * 8 * 2
        for i in range(4):
            tl.store(0x1000 + i % 2 * 16, tl.load(mine, (8,)))
            tl.store(mine, tl.load(0x1000 + (i + 1) % 2 * 16, (8,)))

    with pytest.raises(tl.KernelError, match="may overlap"):
        run(turns, elements=8)


def retyped(t_ptr, tl):
    """The same address as f16, as f32, and as f16 again."""
    mine = t_ptr + tl.program_id(0) * 8 * 2
    x = tl.load(mine, (8,))
    for _ in range(2):
        tl.store(0x1000, x)
        a = tl.load(0x1000, (8,))
        tl.store(0x1000, tl.cast(x, "f32"))
        x = a + tl.cast(tl.load(0x1000, (8,), "f32"), "f16")
    tl.store(mine, x)


def test_raw_memory_used_again_with_another_type():
    plan, x, result = run(retyped, elements=8)
    np.testing.assert_array_equal(result, 4 * x)
    mock = run_kernel_in_mock(retyped, 3, "ring_1d", list(x.copy()))
    np.testing.assert_array_equal(np.stack(mock), result)
    times = {e: simulate(plan, machine="ahbm", engine=e).time_ps for e in ("plain", "compiled")}
    bounds = price(plan, "ahbm")
    assert bounds.lower_ps <= times["plain"] == times["compiled"] <= bounds.upper_ps

    def gone(t_ptr, tl):
        x = tl.load(t_ptr + tl.program_id(0) * 16, (8,))
        tl.store(0x1000, x)
        tl.store(0x1004, tl.cast(x, "f32"))
        tl.store(t_ptr + tl.program_id(0) * 16, tl.load(0x1000, (2,)))

    with pytest.raises(tl.KernelError, match=r"f16\[2\] at 4096: what was there has been written over"):
        run(gone, elements=8)

    def on_one_side(t_ptr, tl):
        x = tl.load(t_ptr + tl.program_id(0) * 16, (8,))
        tl.store(0x1000, x)
        if tl.program_id(0) == 0:
            tl.store(0x1000, tl.cast(x, "f32"))

    with pytest.raises(tl.KernelError, match="under a condition memory keeps its type"):
        run(on_one_side, elements=8)
