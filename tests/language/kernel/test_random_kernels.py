"""Random kernels: what the reader makes of them is what plain Python does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from megatile.core.errors import MegatileError
from megatile.language import tl
from megatile.language.kernel.mock import run_kernel_in_mock
from megatile.plan.check import check
from megatile.plan.execute import execute

ELEMENTS = 4


def kernel(t_ptr, steps, tl):
    """Runs a list of steps; each has its own kind of control flow."""
    rank, world = tl.program_id(0), tl.num_programs(0)
    mine = t_ptr + rank * ELEMENTS * 2
    x = tl.load(mine, (ELEMENTS,))
    last = x
    for kind, number in steps:
        if kind == "branch":
            if rank < number:
                x = x + 1
            elif rank == number:
                x, last = last, x
            else:
                last = x * 2
        elif kind == "shift":
            tl.send(dir="E", src=x)
            got = tl.recv(dir="W", shape=(ELEMENTS,))
            if rank % 2 == number % 2:
                x = got
        elif kind == "ring":
            current = x
            for step in range(number + 1):
                tl.send(dir="W", src=current)
                current = tl.recv(dir="E", shape=(ELEMENTS,))
                if step != rank:
                    x = tl.maximum(x, current)
        elif kind == "count":
            total = 0
            for step in range(rank + number):
                if step % 3 == 1:
                    continue
                total = total + step
            x = x + total % 5
        elif kind == "chain":
            if rank > 0:
                x = x + tl.recv(dir="W", shape=(ELEMENTS,))
            if rank < world - 1:
                tl.send(dir="E", src=x)
        elif kind == "memory":
            tl.store(mine, x)
            for step in range(number):
                tl.store(mine + step % ELEMENTS * 2, tl.load(mine, (1,)) - step)
            x = tl.load(mine, (ELEMENTS,))
        x = tl.clamp(x, -8, 8)
    tl.store(mine, x + last)


KINDS = ("branch", "shift", "ring", "count", "chain", "memory")
STEPS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 3)), min_size=1, max_size=5)


@settings(max_examples=80)
@given(units=st.integers(2, 5), steps=STEPS, slots=st.integers(2, 4), seed=st.integers(0, 99))
def test_plan_and_mock_agree(units, steps, slots, seed):
    x = np.random.default_rng(seed).integers(-3, 4, (units, ELEMENTS)).astype("f2")
    plan = tl.read_kernel(kernel, [tl.Tensor("t", (ELEMENTS,)), steps], world_size=units, n_slots=slots)
    assert len(plan.streams) == 1
    check(plan)
    expected = np.stack(run_kernel_in_mock(kernel, units, "ring_1d", list(x), (steps,)))
    np.testing.assert_array_equal(execute(plan, {"t": x})["t"], expected)


@settings(max_examples=60)
@given(units=st.integers(2, 4), steps=STEPS, slots=st.integers(1, 3))
def test_plan_and_mock_agree_on_deadlocks(units, steps, slots):
    plan = tl.read_kernel(kernel, [tl.Tensor("t", (ELEMENTS,)), steps], world_size=units, n_slots=slots)
    x = list(np.zeros((units, ELEMENTS), "f2"))
    found = []
    for go in (
        lambda: check(plan),
        lambda: run_kernel_in_mock(kernel, units, "ring_1d", x, (steps,), n_slots=slots),
    ):
        try:
            go()
            found.append(None)
        except MegatileError as error:
            found.append(type(error))
    assert found[0] == found[1]


def kept_for_later(t_ptr, rounds, when, tl):
    mine = t_ptr + tl.rank * ELEMENTS * 2
    x = tl.load(mine, (ELEMENTS,))
    tl.send(dir="E", src=x)
    kept = tl.recv(dir="W", shape=(ELEMENTS,))
    for step in range(rounds):
        tl.send(dir="E", src=x)
        got = tl.recv(dir="W", shape=(ELEMENTS,))
        if step % 3 == when:
            x = x + kept
        elif when == 2:
            kept = got
    tl.store(mine, x)


@pytest.mark.parametrize("slots", [1, 2, 3, 6])
@pytest.mark.parametrize(("rounds", "when"), [(1, 0), (2, 0), (5, 0), (5, 1), (3, 2), (5, 2), (5, 9)])
def test_a_message_is_held_where_it_may_be_used_later(rounds, when, slots):
    """Also in a run that does not use it: mock and plan agree on who waits for a slot for ever."""
    arguments = [tl.Tensor("t", (ELEMENTS,)), rounds, when]
    plan = tl.read_kernel(kept_for_later, arguments, world_size=3, n_slots=slots)
    x = list(np.arange(3 * ELEMENTS, dtype="f2").reshape(3, ELEMENTS))
    found = []
    for go in (
        lambda: check(plan),
        lambda: run_kernel_in_mock(kept_for_later, 3, "ring_1d", x, (rounds, when), n_slots=slots),
    ):
        try:
            go()
            found.append(None)
        except MegatileError as error:
            found.append(type(error))
    assert found[0] == found[1]
    if slots == 6:
        assert found == [None, None]
