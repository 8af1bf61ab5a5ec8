"""``targets/interpret/independent.py``: which launches can run in lockstep, read off the text of their
body."""

from typing import Any

import numpy as np
import pytest

import megatile as mt
import megatile.language as T
from megatile.ir import nodes as n
from megatile.targets.interpret.errors import DataRaceError, OutOfBoundsError
from megatile.targets.interpret.independent import can_batch
from megatile.targets.interpret.places import Places

N = 1000


def sums() -> Any:
    @T.program
    def p(A: T.Tensor((N,), "f32"), B: T.Tensor((N,), "f32")):
        with T.Kernel(block=4, threads=256) as b:
            with T.Scale("thread") as (t, n):
                i = b * n + t
                if i < N:
                    B[i] = A[i] * 2.0 + 1.0

    return p


def loops() -> Any:
    @T.program
    def p(A: T.Tensor((N,), "f32"), B: T.Tensor((N,), "f32")):
        with T.Kernel(block=4, threads=250) as b:
            with T.Scale("thread") as (t, n):
                total = A[b * n + t]
                for k in T.serial(3):
                    total = total + T.cast(k, "f32") * A[b * n + t]
                if t % 2 == 0:
                    scale = 2.0
                else:
                    scale = 3.0
                B[b * n + t] = total * scale

    return p


def histogram() -> Any:
    @T.program
    def p(A: T.Tensor((N,), "f32"), B: T.Tensor((N,), "f32")):
        with T.Kernel(block=4, threads=250) as b:
            with T.Scale("thread") as (t, n):
                T.atomic_add(B[T.cast(T.abs(A[b * n + t]) * 3.0, "i32")], 1.0)

    return p


@pytest.mark.parametrize("make", [sums, loops, histogram])
def test_the_same_as_one_by_one(make: Any) -> None:
    program = make()
    built = program.build()
    region = next(m for m in n.walk(built.body) if isinstance(m, n.ScaleRegion) and m.scale == "thread")
    depth = built.launch.depth("block")
    assert can_batch(region, depth, Places(built).names, built.launch)
    a = np.random.default_rng(0).standard_normal(N).astype(np.float32)
    results = []
    for record in (False, True):  # recorded runs take unit by unit
        b = np.zeros(N, np.float32)
        mt.run(program, a, b, record=record)
        results.append(b)
    np.testing.assert_array_equal(results[0], results[1])
    assert results[0].any()


def racing(body: Any) -> Any:
    @T.program
    def p(X: T.Tensor((64,), "f32")):
        with T.Kernel(block=1, threads=32):
            with T.Scale("thread") as (t, _):
                body(X, t)

    return p


def one_for_all(X: Any, t: Any) -> None:
    X[t // 2] = 1.0


def neighbours(X: Any, t: Any) -> None:
    X[t + 1] = X[t] + 1.0


def two_statements(X: Any, t: Any) -> None:
    X[t] = 1.0
    X[31 - t] = 2.0


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (one_for_all, r"data race: several units of scale 'thread' write 'X\[0\]'"),
        (neighbours, r"data race: thread 1 reads an element of 'X' that thread 0 writes"),
        (two_statements, r"data race: thread \d+ also writes an element of 'X' that thread \d+ writes"),
    ],
)
def test_races_are_found(body: Any, message: str) -> None:
    with pytest.raises(DataRaceError, match=message) as caught:
        mt.run(racing(body), np.zeros(64, np.float32))
    assert "X[" in str(caught.value)
    with pytest.raises(DataRaceError, match="data race on 'X': .* by .*thread"):
        mt.run(racing(body), np.zeros(64, np.float32), record=True)


def test_bounds_are_checked() -> None:
    def outside(X: Any, t: Any) -> None:
        X[t * 3] = 0.0

    with pytest.raises(OutOfBoundsError, match=r"'X\[66\]' is out of bounds") as caught:
        mt.run(racing(outside), np.zeros(64, np.float32))
    assert "X[t * 3] = 0.0" in str(caught.value)


def test_units_with_tiles_of_their_own_run_one_by_one() -> None:
    @T.program
    def p(X: T.Tensor((64,), "f32")):
        with T.Kernel(block=1, threads=64):
            with T.Scale("thread") as (t, _):
                mine = T.alloc((1,), "f32")
                mine[0] = T.cast(t, "f32")
                X[t] = mine[0] * 2.0

    x = np.zeros(64, np.float32)
    mt.run(p, x)
    np.testing.assert_array_equal(x, 2 * np.arange(64))


def test_a_division_behind_a_condition_is_made_by_those_that_meet_it() -> None:
    @T.program
    def p(X: T.Tensor((4, 2), "f32")):
        with T.Kernel(block=4) as b:
            x = T.alloc((1, 2), "f32", level="l0")
            T.fill(x, 5.0)
            if b > 0 and 8 // b > 2:
                T.fill(x, 1.0)
            T.copy(X[b, 0], x)

    x = np.zeros((4, 2), np.float32)
    mt.run(p, x)
    assert x[:, 0].tolist() == [5, 1, 1, 5]
