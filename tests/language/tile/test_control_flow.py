"""Loops and branches on values known only at run time, against the same Python on NumPy arrays."""

from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np
import pytest

import megatile as mt
import megatile.language as T
from megatile.core.errors import MegatileError
from megatile.ir.parser import parse
from megatile.targets.interpret.errors import RunError

SCHEDULES = ("round-robin", "random", "adversarial")
N = 16
LAUNCH = [mt.ScaleView("device", instance_num=1), mt.ScaleView("block", instance_num=1, is_flatten=True)]
CASES: list[Any] = []


def case(body: Callable[..., None]) -> Callable[..., None]:
    """A body that writes the same as a kernel on tensors and as Python on arrays."""
    CASES.append(pytest.param(body, id=body.__name__))
    return body


@case
def break_keeps_what_was_found(x, out):
    n = T.read_scalar(x[N - 1])
    found = -1
    for i in T.serial(N):
        if x[i] == n:
            found = i
            break
    out[0] = found


@case
def break_keeps_what_was_summed_before_it(x, out):
    n = T.read_scalar(x[N - 1])
    total = 0
    for i in T.serial(N):
        total = total + x[i]
        if total > 3 * n:
            break
    out[0] = total


@case
def what_follows_a_break_is_kept_too(x, out):
    n = T.read_scalar(x[N - 1])
    last = -1
    for i in T.serial(N):
        if x[i] == n:
            break
        last = i
        out[i] = last
    out[14] = last


@case
def continue_under_two_conditions(x, out):
    n = T.read_scalar(x[N - 1])
    for i in T.serial(N):
        if x[i] > 1:
            if x[i] == n:
                continue
            out[i] = 1
        out[i] = out[i] + 10


@case
def continue_carries_variables(x, out):
    n = T.read_scalar(x[N - 1])
    count, skipped = 0, 0
    for i in T.serial(N):
        if x[i] % 2 == 0:
            skipped = skipped + 1
            if x[i] == n:
                skipped = skipped + 100
                continue
            count = count + 10
        count = count + 1
    out[0] = count
    out[1] = skipped


@case
def break_of_the_inner_loop(x, out):
    n = T.read_scalar(x[N - 1])
    for i in T.serial(4):
        for j in T.serial(4):
            if x[i * 4 + j] == n:
                break
            out[i * 4 + j] = 1
        out[i * 4] = out[i * 4] + 5


@case
def while_on_a_tile(x, out):
    n = T.read_scalar(x[N - 1])
    i = 0
    while x[i] != n:
        out[i] = x[i]
        i = i + 1
    out[i] = -1


@case
def while_with_a_bound(x, out):
    n = T.read_scalar(x[N - 1])
    left = n
    while T.bounded(left > 0, 64):
        out[left] = left
        left = left - 1


@case
def while_true(x, out):
    n = T.read_scalar(x[N - 1])
    i = 0
    while True:
        if x[i] == n:
            break
        i = i + 1
        if x[i] == 1:
            continue
        out[i] = i


@case
def while_never(x, out):
    n = T.read_scalar(x[N - 1])
    while n < 0:
        out[0] = 1
    out[1] = n


@case
def while_that_starts_with_a_number(x, out):
    n = T.read_scalar(x[N - 1])
    left = 20
    while left > 0:
        left = left - x[2] - 1
        out[3] = out[3] + 1


@case
def break_of_a_range_of_python(x, out):
    n = T.read_scalar(x[N - 1])
    for i in range(N):
        if x[i] == n:
            break
        out[i] = 7


@case
def return_from_a_loop(x, out):
    n = T.read_scalar(x[N - 1])
    for i in T.serial(N):
        if x[i] == n:
            return
        out[i] = 3
    out[0] = 99


@case
def return_under_two_conditions(x, out):
    n = T.read_scalar(x[N - 1])
    if x[0] >= 0:
        if n > 2:
            return
        out[1] = 1
    out[2] = 2


@case
def values_returned_under_a_condition(x, out):
    n = T.read_scalar(x[N - 1])

    def sign(value):
        if value > 3:
            return 1
        if value < 2:
            return -1
        return 0

    for i in T.serial(N):
        out[i] = sign(x[i])


@case
def value_set_in_a_loop_and_read_after_it(x, out):
    n = T.read_scalar(x[N - 1])
    last = 0
    for i in T.serial(n):
        last = i * 2
    out[0] = last


@case
def loop_variables_used_again(x, out):
    n = T.read_scalar(x[N - 1])
    for i in T.serial(4):
        out[i] = x[i]
    for j in T.serial(2):
        for i in T.serial(4):
            out[i + 4 * j] = out[i + 4 * j] + i
        for i in T.serial(2):
            out[i] = out[i] + 1
    if n > 2:
        for i in T.serial(4):
            out[i] = out[i] + 2
    else:
        for i in T.serial(3):
            out[i] = out[i] + 5
    for i in T.serial(4):
        out[i + 8] = i


class Python:
    """The words of ``T`` that the bodies use, for plain Python."""

    serial = staticmethod(range)
    read_scalar = staticmethod(int)
    bounded = staticmethod(lambda condition, most: condition)


@pytest.mark.parametrize("body", CASES)
def test_a_kernel_does_what_python_does(body: Callable[..., None]) -> None:
    plain = FunctionType(body.__code__, {**body.__globals__, "T": Python})
    body.__annotations__ = {"x": T.Tensor((N,), "i32"), "out": T.Tensor((N,), "i32")}
    program = T.program(body)
    for n in range(1, 6):
        x = np.random.default_rng(n).integers(0, 7, N).astype(np.int32)
        x[-1] = n
        expected, out = np.zeros(N, np.int32), np.zeros(N, np.int32)
        plain(x, expected)
        with mt.machine("dgx-h100").instantiate(LAUNCH):
            mt.run(program, x, out)
        np.testing.assert_array_equal(out, expected, f"n = {n}")
        text = str(program.build())
        assert str(parse(text)) == text


def test_units_wait_for_each_other_in_a_while() -> None:
    """A turn of a ``while`` lets others go first, whatever the schedule."""

    @T.program
    def kernel(lock: T.Tensor((1,), "i32"), total: T.Tensor((1,), "i32")):
        with T.Kernel(block=6, threads=32):
            while T.atomic_cas(lock[0], 0, 1) != 0:
                pass
            total[0] = total[0] + 1
            T.atomic_exchange(lock[0], 0)

    for schedule in SCHEDULES:
        lock, total = np.zeros(1, np.int32), np.zeros(1, np.int32)
        mt.run(kernel, lock, total, schedule=schedule, seed=3)
        assert (lock[0], total[0]) == (0, 6), schedule


def test_a_while_may_take_as_many_turns_as_its_bound() -> None:
    @T.program
    def kernel(x: T.Tensor((1,), "i32")):
        with T.Kernel(block=1):
            while T.bounded(x[0] > 0, 7):
                x[0] = x[0] - 1

    for run in (mt.run, lambda kernel, x: mt.compile(kernel)(x)):
        x = np.full(1, 7, np.int32)
        run(kernel, x)
        assert x[0] == 0
        with pytest.raises(MegatileError, match="has not ended after 7 turns"):
            run(kernel, np.full(1, 8, np.int32))
    assert mt.execute(kernel, np.full(1, 7, np.int32), machine="dgx-h100")["x"][0] == 0


def test_a_while_that_never_ends_is_an_error_of_the_run() -> None:
    @T.program
    def kernel(x: T.Tensor((1,), "i32")):
        with T.Kernel(block=1):
            while T.bounded(x[0] == 0, 50):
                T.print("again", unit=1)

    with pytest.raises(RunError, match="(?s)'while' has not ended after 50 turns.*T.bounded"):
        mt.run(kernel, np.zeros(1, np.int32))
