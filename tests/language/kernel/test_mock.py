"""``language/kernel/mock.py``: run a ``tl`` kernel with no plan and no machine."""

from __future__ import annotations

import numpy as np
import pytest
from tests.language.kernel import kernels
from tests.language.kernel.reader_cases import both, run

from megatile.language import tl
from megatile.language.kernel.mock import run_kernel_in_mock
from megatile.plan.execute import execute
from megatile.plan.model import PlanError
from megatile.plan.races import RaceError


def test_deadlock_in_plan_and_mock():
    def kernel(t_ptr, tl):
        tl.recv(dir="W", shape=(4,))

    error = both(kernel, tl.IpcqDeadlock, units=3)
    assert "unit 0 waits for a message on ipcq.W from unit 2 at " in str(error)
    assert "each waits for the next: 0 -> 2 -> 1 -> 0" in str(error)


def test_a_deadlock_of_some():
    def kernel(t_ptr, tl):
        if tl.rank == 0:
            tl.send(dir="E", src=tl.load(t_ptr, (4,)))
        else:
            tl.recv(dir="W", shape=(4,))

    assert "unit 2 waits for a message on ipcq.W from unit 1" in str(both(kernel, tl.IpcqDeadlock))


def test_deadlock_for_want_of_slots():
    error = both(kernels.naive_ring, tl.IpcqDeadlock, extra=(4, 4), n_slots=1)
    assert "waits for a free slot of ipcq.W of unit 1" in str(error)

    def flood(t_ptr, tl):
        for _ in range(3):
            tl.send(dir="E", src=tl.load(0, (4,)))

    error = both(flood, tl.IpcqDeadlock, n_slots=2)
    # head 2: two messages sent, no credit is back
    assert "unit 0          ->ipcq.W    unit 1             2    0" in str(error)
    assert len(error.graph.cycle()) == 4
    assert error.graph.dot().startswith("digraph")


def test_tiles_that_are_kept_hold_their_slots():
    def keeps(t_ptr, count, tl):
        mine = t_ptr + tl.rank * 8
        x = tl.load(mine, (4,))
        kept = []
        for _ in range(count):
            tl.send(dir="E", src=x)
            kept.append(tl.recv(dir="W", shape=(4,)))
        for tile in kept:
            x = x + tile
        tl.store(mine, x)

    inputs = list(np.ones((3, 4), "f2"))
    assert (np.stack(run_kernel_in_mock(keeps, 3, "ring_1d", inputs, (4,))) == 5).all()
    error = both(keeps, tl.IpcqDeadlock, units=3, extra=(5,))
    assert "waits for a free slot of ipcq.W" in str(error)
    run_kernel_in_mock(keeps, 3, "ring_1d", inputs, (5,), n_slots=None)


def test_messages_that_nobody_receives():
    def kernel(t_ptr, tl):
        tl.send(dir="E", src=tl.load(t_ptr + tl.rank * 8, (4,)))

    for go in (run, lambda k: run_kernel_in_mock(k, 3, "ring_1d", list(np.zeros((3, 4), "f2")))):
        with pytest.raises(
            PlanError, match=r"mock.py:\d+: 1 message from unit 2 is never received on ipcq.W of unit 0"
        ):
            go(kernel)


def test_sizes_that_differ():
    def kernel(t_ptr, tl):
        tl.send(dir="E", src=tl.load(t_ptr + tl.rank * 8, (4,)))
        tl.recv(dir="W", shape=(2,))

    for go in (run, lambda k: run_kernel_in_mock(k, 3, "ring_1d", list(np.zeros((3, 4), "f2")))):
        with pytest.raises(PlanError, match=r"unit \d expects 4 bytes, the message has 8"):
            go(kernel)


def test_a_race_is_found_by_plan_and_mock():
    def kernel(t_ptr, tl):
        mine = t_ptr + tl.rank * 8
        other = t_ptr + (tl.rank + 1) % tl.world_size * 8
        tl.store(other, tl.load(mine, (4,)))

    for go in (run, lambda k: run_kernel_in_mock(k, 3, "ring_1d", list(np.zeros((3, 4), "f2")))):
        with pytest.raises(RaceError, match="race on tile 't' of owner"):
            go(kernel)


def test_wrong_use_names_the_line_in_the_mock_too():
    def shapes(t_ptr, tl):
        a, b = tl.load(t_ptr + tl.rank * 8, (4,)), tl.zeros((3,), "f16")
        tl.store(t_ptr, a + b)

    def outside(t_ptr, tl):
        tl.load(t_ptr + tl.rank * 8, (64,))

    def another_type(t_ptr, tl):
        tl.load(t_ptr + tl.rank * 8, (2,), "f32")

    def too_large(t_ptr, tl):
        tl.send(dir="E", src=tl.load(t_ptr + tl.rank * 8, (4,)))

    def scalar(t_ptr, tl):
        tl.read_scalar(tl.full((1,), 7, "i32"), bound=3)

    both(shapes, tl.KernelError)
    both(another_type, tl.KernelError)
    both(too_large, tl.KernelError, slot_size=4)
    for kernel, error, text in (
        (outside, PlanError, r"'t' of extents \(4,\) has no elements 0:64"),
        (scalar, PlanError, r"read_scalar gave 7, outside 0\.\.3"),
    ):
        for go in (run, lambda k: run_kernel_in_mock(k, 3, "ring_1d", list(np.zeros((3, 4), "f2")))):
            with pytest.raises(error, match=rf"(?s)mock.py:\d+: {text}"):
                go(kernel)


def test_messages_in_pieces_in_the_mock():
    x = np.arange(48, dtype="f2").reshape(3, 16)
    options = {"slot_size": 8, "split": True}
    outputs = run_kernel_in_mock(kernels.hello_send, 3, "ring_1d", list(x), (16,), n_slots=4, **options)
    np.testing.assert_array_equal(np.stack(outputs), np.roll(x, 1, axis=0))
    both(kernels.hello_send, tl.IpcqDeadlock, 3, elements=16, extra=(16,), n_slots=2, **options)


def test_mock_refuses_wrong_inputs():
    with pytest.raises(tl.KernelError, match="1 inputs for 2 ranks"):
        run_kernel_in_mock(kernels.hello_send, 2, "ring_1d", [np.zeros(4, "f2")], (4,))
    with pytest.raises(tl.KernelError, match="one shape and dtype"):
        run_kernel_in_mock(kernels.hello_send, 2, "ring_1d", [np.zeros(4, "f2"), np.zeros(5, "f2")], (4,))


def test_own_neighbors_of_an_algorithm_module():
    class Module:
        @staticmethod
        def neighbors(rank, world_size):
            return {"E": (rank + 2) % world_size, "W": (rank - 2) % world_size}

    x = np.arange(20).reshape(5, 4).astype("f2")
    mock = run_kernel_in_mock(kernels.hello_send, 5, "none", list(x), (4,), algo_module=Module)
    np.testing.assert_array_equal(np.stack(mock), np.roll(x, 2, axis=0))
    plan = tl.read_kernel(
        kernels.hello_send, [tl.Tensor("t", (4,)), 4], world_size=5, neighbors=Module.neighbors
    )
    np.testing.assert_array_equal(execute(plan, {"t": x})["t"], np.roll(x, 2, axis=0))
