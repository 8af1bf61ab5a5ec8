"""``targets/interpret/run.py``: ``mt.run``."""

import warnings
from typing import Any

import numpy as np
import pytest
from tests.targets.interpret.shared import f32, fails

import megatile as mt
import megatile.language as T
from megatile.core.limits import TimeBudgetExceeded, time_limit
from megatile.language.tile.errors import ProgramWarning
from megatile.targets.interpret.errors import PartialError, ReplicaMismatchError


def test_replicas_that_differ_at_the_end() -> None:
    @T.program
    def p(X: T.Tensor((4,), "f32")):
        with T.Kernel(device=4):
            with T.Scale("device") as (r, _):
                x = T.view(X, layout=T.Replica)
                T.fill(x, r)

    fails(
        ReplicaMismatchError,
        "copies of 'X' differ at the end: device 1, 2, 3 from device 0.*T.allreduce on the view",
        p,
        f32(4),
        line="x = T.view(X, layout=T.Replica)",
    )


def test_partial_at_the_end() -> None:
    @T.program
    def p(X: T.Tensor((4,), "f32")):
        with T.Kernel(device=4):
            with T.Scale("device") as (r, _):
                x = T.view(X, layout=T.Partial("sum"))
                T.fill(x, r)

    fails(
        PartialError, "'X' still holds partial terms at the end.*T.allreduce or T.reduce_scatter", p, f32(4)
    )


def _counted(counter: int) -> Any:
    @T.program
    def tickets(X: T.Tensor((6, 8), "f32"), Y: T.Tensor((6, 8), "f32"), ticket: T.Tensor((2,), "i32")):
        with T.Kernel(block=4, threads=32):
            with T.Scale("block"):
                t = T.alloc((1, 8), "f32")
                while True:
                    row = T.atomic_add(ticket[0], 1, return_prev=True)
                    if row >= 6:
                        break
                    T.copy(t, X[row, 0])
            with T.Scale("block"):
                u = T.alloc((1, 8), "f32")
                while True:
                    row = T.atomic_add(ticket[counter], 1, return_prev=True)
                    if row >= 6:
                        break
                    T.copy(u, X[row, 0])
                    T.copy(Y[row, 0], u)

    return tickets


def test_a_result_that_no_statement_has_written_is_noted() -> None:
    """A spent counter: the second loop finds no rows."""
    x, y = np.ones((6, 8), "f4"), np.zeros((6, 8), "f4")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mt.run(_counted(1), x, y, np.zeros(2, "i4"))
    assert (y == 1).all()
    with pytest.warns(ProgramWarning, match="'Y' is as it was before: no statement that writes it has run"):
        mt.run(_counted(0), x, y, np.zeros(2, "i4"))


@pytest.mark.parametrize("record", [False, True])  # blocks at once, and one by one
def test_a_listener_hears_how_many_blocks_are_done(record):
    @T.program
    def filled(X: T.Tensor((64,), "f32")):
        with T.Kernel(block=32, threads=32) as b:
            x = T.alloc((2,), "f32")
            T.fill(x, 1.0)
            T.copy(X[b * 2], x)

    heard = []
    mt.run(filled, np.zeros(64, "f4"), record=record, progress=lambda *said: heard.append(said))
    assert heard[-1] == (("running filled", 32, 32) if record else ("running filled", 0, 1))


@pytest.mark.parametrize("alone", [False, True])
def test_a_loop_of_any_length_ends_when_its_time_is_over(alone: bool) -> None:
    @T.program
    def long(X: T.Tensor((8,), "f32")):
        with T.Kernel(block=8, threads=4) as b:
            x = T.alloc((1,), "f32")
            T.clear(x)
            for _ in T.serial(2**40):
                if not alone:
                    x[0] = x[0] + 1.0
            T.copy(X[b], x)

    with time_limit(0.05), pytest.raises(TimeBudgetExceeded, match="program 'long' has not ended within"):
        mt.run(long, f32(8))
