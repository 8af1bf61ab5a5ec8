"""``language/kernel/context.py``: the ``tl`` argument of a kernel while it is read."""

from __future__ import annotations

import numpy as np
import pytest
from tests.language.kernel import kernels
from tests.language.kernel.reader_cases import run
from tests.language.kernel.shared import numbers

from megatile.language import tl
from megatile.language.kernel.mock import run_kernel_in_mock
from megatile.plan.execute import execute
from megatile.plan.model import PlanError


def test_two_axes_of_program_id():
    plan = tl.read_kernel(kernels.hello_send, [tl.Tensor("t", (4,)), 4], grid=(4, 2))
    x = numbers(8, 4)
    np.testing.assert_array_equal(execute(plan, {"t": x})["t"], np.roll(x, 1, axis=0))
    mock = run_kernel_in_mock(kernels.hello_send, 8, "ring_1d", list(x), (4,), pes_per_cube=4)
    np.testing.assert_array_equal(np.stack(mock), np.roll(x, 1, axis=0))
    # The address is recognised as the unit's own, so no access leaves the unit.
    assert all(r.at is None for s in plan.streams[0].body for r in (getattr(s, "reads", ()) or ()))


def test_addresses_must_be_blocks_of_the_tensor():
    def odd(t_ptr, tl):
        tl.load(t_ptr + 1, (2,))

    with pytest.raises(tl.KernelError, match="not a multiple of the element size"):
        run(odd)

    def outside(t_ptr, tl):
        tl.store(t_ptr, tl.load(t_ptr + tl.program_id(0) * 8 + 4, (4,)))

    with pytest.raises(PlanError, match=r"'t' of extents \(4,\) has no elements 2:6"):
        run(outside, units=1)

    def wrong_type(t_ptr, tl):
        tl.load(t_ptr, (2,), "f32")

    with pytest.raises(tl.KernelError, match="tensor 't' holds f16, not f32"):
        run(wrong_type)


def test_another_units_memory_by_address():
    """Reading a neighbour's part is a get; without a barrier it races with the neighbour's store."""

    def kernel(t_ptr, tl):
        rank = tl.program_id(0)
        other = (rank + 1) % tl.num_programs(0)
        tl.store(t_ptr + rank * 8, tl.load(t_ptr + other * 8, (4,)))

    with pytest.raises(Exception, match=r"race on tile 't'"):
        run(kernel)
