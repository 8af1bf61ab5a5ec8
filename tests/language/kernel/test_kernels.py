"""``tl`` kernels: read into a Plan and executed, run in the mock, and plain NumPy all agree."""

from __future__ import annotations

import numpy as np
import pytest
from tests.language.kernel import kernels
from tests.language.kernel.shared import numbers

from megatile.core.expr import member, unit
from megatile.language import tl
from megatile.language.kernel.directions import counted
from megatile.language.kernel.mock import run_kernel_in_mock
from megatile.plan.check import check
from megatile.plan.execute import execute
from megatile.plan.model import Plan, statements


def sum_everywhere(x):
    return np.broadcast_to(x.sum(axis=0), x.shape)


def hypercube(units):
    return counted(max(1, units.bit_length() - 1), unit ^ (1 << member))


KERNELS = {
    "hello_send": (
        kernels.hello_send,
        lambda n: (),
        "ring_1d",
        (1, 2, 5, 8),
        lambda x: np.roll(x, 1, axis=0),
    ),
    "naive_ring": (kernels.naive_ring, lambda n: (n,), "ring_1d", (1, 2, 3, 8), sum_everywhere),
    "async_ring": (kernels.async_ring, lambda n: (n,), "ring_1d", (2, 5), sum_everywhere),
    "chunked_ring": (kernels.chunked_ring, lambda n: (n,), "ring_1d", (2, 4, 8), sum_everywhere),
    "two_way_ring": (kernels.two_way_ring, lambda n: (n,), "ring_1d", (2, 5), sum_everywhere),
    "tree": (kernels.tree, lambda n: (n,), "tree_binary", (1, 2, 7, 12), sum_everywhere),
    "mesh": (kernels.mesh, lambda n: (int(n**0.5),), "mesh_2d_no_wrap", (4, 9, 16), sum_everywhere),
    "halving_doubling": (
        kernels.halving_doubling,
        lambda n: (n.bit_length() - 1,),
        hypercube,
        (2, 4, 8),
        sum_everywhere,
    ),
    "copy_to_destination": (
        kernels.copy_to_destination,
        lambda n: (0xC0FFEE0000,),
        "ring_1d",
        (2, 4),
        lambda x: np.roll(x, 1, axis=0),
    ),
    "from_anywhere": (
        kernels.from_anywhere,
        lambda n: (),
        "ring_1d",
        (3, 4),
        lambda x: np.roll(x, 1, axis=0) + np.roll(x, -1, axis=0),
    ),
}
CASES = [(name, n) for name, entry in KERNELS.items() for n in entry[3]]
ELEMENTS = 16


def read(name, units, **options):
    kernel, extra, topology, _, _ = KERNELS[name]
    wires = topology(units) if callable(topology) else topology
    arguments = [tl.Tensor("t", (ELEMENTS,)), ELEMENTS, *extra(units)]
    return tl.read_kernel(kernel, arguments, world_size=units, topology=wires, **options)


@pytest.mark.parametrize(("name", "units"), CASES)
def test_plan_mock_and_numpy_agree(name, units):
    kernel, extra, topology, _, meaning = KERNELS[name]
    x = numbers(units, ELEMENTS)
    expected = meaning(x)
    plan = read(name, units)
    check(plan)
    np.testing.assert_array_equal(execute(plan, {"t": x})["t"], expected)
    wires = topology(units) if callable(topology) else topology
    mock = run_kernel_in_mock(kernel, units, wires, list(x), (ELEMENTS, *extra(units)))
    np.testing.assert_array_equal(np.stack(mock), expected)
    assert Plan.from_text(str(plan)) == plan


@pytest.mark.parametrize("name", ["hello_send", "naive_ring", "tree"])
def test_size_of_a_plan_does_not_depend_on_the_number_of_units(name):
    small, large = read(name, 8), read(name, 4096)
    assert len(small.streams) == len(large.streams) == 1
    count = [sum(1 for _ in statements(p.streams[0].body)) for p in (small, large)]
    assert count[0] == count[1]


def test_mesh_and_halving_doubling_are_one_class_of_constant_length():
    for name, sizes in (("mesh", (9, 64)), ("halving_doubling", (4, 8))):
        plans = [read(name, n) for n in sizes]
        assert [len(p.streams) for p in plans] == [1, 1]
        assert len({sum(1 for _ in statements(p.streams[0].body)) for p in plans}) == 1


def test_scratch_that_is_used_again_does_not_leak():
    """A tile read late keeps its value although the same line made newer ones meanwhile."""

    def kernel(t_ptr, tl):
        x = tl.load(t_ptr + tl.program_id(0) * 4, (2,))
        first = second = x
        for step in range(5):
            first, second = x + step, first
        tl.store(t_ptr + tl.program_id(0) * 4, first * 10 + second)

    plan = tl.read_kernel(kernel, [tl.Tensor("t", (2,))], world_size=2, topology="none")
    x = numbers(2, 2)
    np.testing.assert_array_equal(execute(plan, {"t": x})["t"], (x + 4) * 10 + x + 3)
