"""``language/tile/collectives.py``: collectives over the units of the current scale, or with ``scale=``
over those of a region around."""

import numpy as np
import pytest
from tests.language.tile.shared import SCHEDULES, f32, run, zeros

import megatile as mt
import megatile.language as T
from megatile.targets.interpret.errors import DeadlockError, OutOfBoundsError, RunError


def test_partial_becomes_whole() -> None:
    @T.program
    def p(X: T.Tensor((8,), "f32"), Y: T.Tensor((8,), "f32")):
        with T.Kernel(device=4):
            with T.Scale("device") as (r, _):
                x = T.view(X, layout=T.Partial("sum"))
                T.fill(x, r + 1)
                T.allreduce(x)
                y = T.view(Y, layout=T.Partial("max"))
                T.fill(y, r)
                T.reduce_scatter(y, op="max")

    x, y = zeros(8), zeros(8)
    mt.run(p, x, y)
    np.testing.assert_array_equal(x, np.full(8, 10))
    np.testing.assert_array_equal(y, np.full(8, 3))


@pytest.mark.parametrize("op", ["sum", "max", "min"])
@pytest.mark.parametrize("scale", ["device", "block", "warpgroup"])
def test_allreduce_at_every_scale(op: str, scale: str) -> None:
    launch = {"device": 2, "block": 2, "threads": 256}

    @T.program
    def p(X: T.Tensor((8, 4), "f32")):
        with T.Kernel(**launch):
            with T.Scale("device") as (d, _):
                if scale == "device":
                    t = T.alloc((4,), "f32", level="l2")
                    T.copy(t, X[d, :])
                    T.allreduce(t, op=op, algorithm="ring")
                    T.copy(X[d, :], t)
                with T.Scale("block") as (b, _):
                    if scale == "block":
                        u = T.alloc((4,), "f32")
                        T.copy(u, X[2 * d + b, :])
                        T.allreduce(u, op=op)
                        T.copy(X[2 * d + b, :], u)
                    with T.Scale("warpgroup") as (w, _):
                        if scale == "warpgroup":
                            v = T.alloc((4,), "f32")
                            T.copy(v, X[4 * d + 2 * b + w, :])
                            T.allreduce(v, op=op, impl="shared")
                            T.copy(X[4 * d + 2 * b + w, :], v)

    x = f32(8, 4)
    expected = x.copy()
    for pair in range({"device": 1, "block": 2, "warpgroup": 4}[scale]):
        rows = slice(2 * pair, 2 * pair + 2)
        expected[rows] = getattr(x[rows], op)(axis=0)
    mt.run(p, x)
    np.testing.assert_allclose(x, expected, rtol=1e-6)


def test_allreduce_with_a_function_and_tuples() -> None:
    def argmax(left, right):
        (value_a, index_a), (value_b, index_b) = left, right
        return T.max(value_a, value_b), T.if_then_else(value_b > value_a, index_b, index_a)

    @T.program
    def p(X: T.Tensor((4, 3), "f32"), Y: T.Tensor((3,), "f32")):
        with T.Kernel(device=4):
            with T.Scale("device") as (r, _):
                v, i = T.alloc((3,), "f32", level="l2"), T.alloc((3,), "f32", level="l2")
                T.copy(v, X[r, :])
                T.fill(i, r)
                T.allreduce((v, i), fn=argmax)
                if r == 0:
                    T.copy(Y, i)

    x, y = f32(4, 3), zeros(3)
    mt.run(p, x, y)
    np.testing.assert_array_equal(y, x.argmax(axis=0))


def test_allgather_reduce_scatter_all_to_all_broadcast() -> None:
    @T.program
    def p(X: T.Tensor((4, 8), "f32"), G: T.Tensor((4, 32), "f32"), S: T.Tensor((4, 2), "f32"),
          A: T.Tensor((4, 8), "f32"), B: T.Tensor((4, 8), "f32")):  # fmt: skip
        with T.Kernel(device=4):
            with T.Scale("device"):
                x, g, s, a, b = (T.view(t, layout=T.FullRow) for t in (X, G, S, A, B))
                T.allgather(g, x)
                T.reduce_scatter(s, x)
                T.all_to_all(a, x, dim=1)
                T.copy(b, x)
                T.broadcast(b, root=2)

    x = f32(4, 8)
    g, s, a, b = zeros(4, 32), zeros(4, 2), zeros(4, 8), zeros(4, 8)
    mt.run(p, x, g, s, a, b)
    np.testing.assert_array_equal(g, np.tile(x.reshape(-1), (4, 1)))
    np.testing.assert_allclose(s.reshape(-1), x.sum(axis=0), rtol=1e-5)
    np.testing.assert_array_equal(a, x.reshape(4, 4, 2).transpose(1, 0, 2).reshape(4, 8))
    np.testing.assert_array_equal(b, np.tile(x[2], (4, 1)))


def test_collectives_of_uneven_shards() -> None:
    @T.program
    def p(X: T.Tensor((5, 3), "f32"), Y: T.Tensor((5, 3), "f32"), Z: T.Tensor((5, 3), "f32")):
        with T.Kernel(device=4), T.Scale("device"):
            whole = T.view(Y, layout=T.Replica)
            T.allgather(whole, T.view(X, layout=T.FullRow))
            T.reduce_scatter(T.view(Z, layout=T.FullRow), whole)

    x, y, z = f32(5, 3), zeros(5, 3), zeros(5, 3)
    mt.run(p, x, y, z)
    np.testing.assert_array_equal(y, x)
    np.testing.assert_allclose(z, 4 * x)


def test_allgather_of_a_view() -> None:
    @T.program
    def p(X: T.Tensor((8,), "f32"), Y: T.Tensor((2,), "f32")):
        with T.Kernel(block=1, threads=256):
            t = T.alloc((8,), "f32", level="l1")
            with T.Scale("warpgroup") as (w, _):
                mine = T.view(t, layout=T.Shard(0))
                T.copy(mine, X[0])
                whole = T.allgather(mine)
                Y[w] = whole[7 - 7 * w]

    x, y = f32(8), zeros(2)
    mt.run(p, x, y)
    np.testing.assert_array_equal(y, x[[7, 0]])


def test_collectives_along_an_axis() -> None:
    @T.program
    def p(X: T.Tensor((8,), "f32"), Y: T.Tensor((8,), "f32")):
        with T.Kernel(device=(2, 4)):
            with T.Scale("device") as r:
                x, y = r.coords
                t, u = T.alloc((1,), "f32", level="l2"), T.alloc((1,), "f32", level="l2")
                T.copy(t, X[r : r + 1])
                T.copy(u, t)
                T.allreduce(t, axis=0)
                T.broadcast(u, root=1, axis=1)
                T.barrier(axis=1)
                T.copy(X[r : r + 1], t)
                T.copy(Y[r : r + 1], u)

    x, y = f32(8), zeros(8)
    start = x.copy().reshape(4, 2)
    mt.run(p, x, y)
    np.testing.assert_allclose(x.reshape(4, 2), np.repeat(start.sum(axis=1, keepdims=True), 2, axis=1))
    np.testing.assert_array_equal(y.reshape(4, 2), np.tile(start[1], (4, 1)))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_collective_on_both_sides_of_a_branch_is_one_collective(schedule: str) -> None:
    def both(r, n, t):
        other = T.alloc((1, 8), "f32", level="l2")
        T.copy(other, t)
        if r < 2:
            T.allreduce(t)
        else:
            T.allreduce(other)
            T.copy(t, other)

    expected = np.arange(32, dtype=np.float32).reshape(4, 8).sum(axis=0)
    np.testing.assert_array_equal(run(both, schedule=schedule), np.tile(expected, (4, 1)))


def test_two_collectives_do_not_meet() -> None:
    def different(r, n, t):
        if r < 2:
            T.allreduce(t)
        else:
            T.allreduce(t, op="max")

    message = r"device 0 is at T.allreduce \(line \d+\), device 2 at T.allreduce .*: units that meet"
    with pytest.raises(DeadlockError, match=message):
        run(different)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_tiles_that_are_reduced_in_opposite_order(schedule: str) -> None:
    def crossed(r, n, t):
        a, b = T.alloc((1, 8), "f32", level="l2"), T.alloc((1, 8), "f32", level="l2")
        T.copy(a, t)
        T.copy(b, t)
        if r < 2:
            T.allreduce(a)
            T.allreduce(b)
        else:
            T.allreduce(b)
            T.allreduce(a)

    first = crossed.__code__.co_firstlineno + 5
    lines = [rf"\(\S*test_collectives.py:{first + i}\)" for i in (0, 1, 3, 4)]
    message = (
        r"opposite order: device 0 comes to '(\w+)' {}, then '(\w+)' {}; "
        r"device 2 comes to '\2' {}, then '\1' {}"
    ).format(*lines)
    with pytest.raises(DeadlockError, match=message):
        run(crossed, schedule=schedule)


def test_counts_of_an_uneven_all_to_all() -> None:
    def too_many(r, n, t):
        counts = T.alloc((4,), "i32", level="l2")
        x, out = T.alloc((8, 1), "f32", level="l2"), T.alloc((5, 1), "f32", level="l2")
        T.fill(x, 1)
        for i in T.Parallel(4):
            counts[i] = 2
        T.all_to_all(out, x, counts)

    def negative(r, n, t):
        counts = T.alloc((4,), "i32", level="l2")
        T.fill(counts, -1)
        T.all_to_all(t, t, counts)

    with pytest.raises(OutOfBoundsError, match="8 elements for 'out', which has 5 in dim"):
        run(too_many)
    with pytest.raises(RunError, match=r"counts \[-1, -1, -1, -1\]"):
        run(negative)
