"""``targets/interpret/collectives.py``: collectives, by what they mean."""

import numpy as np
from tests.targets.interpret.shared import f32, fails

import megatile.language as T
from megatile.targets.interpret.errors import PartialError, RunError


def test_allreduce_of_uneven_shards() -> None:
    @T.program
    def p(X: T.Tensor((5, 3), "f32")):
        with T.Kernel(device=4), T.Scale("device"):
            T.allreduce(T.view(X, layout=T.FullRow))

    fails(
        RunError,
        r"T.allreduce: device 2 has the shape \(1, 3\), device 0 has \(2, 3\).*pad the uneven shards",
        p,
        f32(5, 3),
        line="T.allreduce(T.view(X",
    )


def test_allgather_of_too_few_parts() -> None:
    @T.program
    def p(X: T.Tensor((5,), "f32"), Y: T.Tensor((6,), "f32")):
        with T.Kernel(device=4), T.Scale("device"):
            T.allgather(T.view(Y, layout=T.Replica), T.view(X, layout=T.FullRow))

    fails(
        RunError,
        r"T.allgather: the parts make \(5,\), the result has \(6,\) on device 0",
        p,
        f32(5),
        f32(6),
        line="T.allgather(",
    )


def test_broadcast_from_a_root_that_is_not_there() -> None:
    @T.program
    def p(X: T.Tensor((4,), "f32")):
        with T.Kernel(device=4), T.Scale("device"):
            T.broadcast(T.view(X, layout=T.FullRow), root=4)

    fails(RunError, "T.broadcast: root 4 of 4 units.*from 0 to 3", p, f32(4), line="T.broadcast(")


def test_all_to_all_of_a_length_known_late() -> None:
    @T.program
    def p(X: T.Tensor((6,), "f32"), N: T.Tensor((1,), "i32")):
        with T.Kernel(device=4), T.Scale("device"):
            a, b = T.alloc((8,), "f32", level="l2"), T.alloc((8,), "f32", level="l2")
            T.clear(a)
            n = T.read_scalar(T.view(N, layout=T.Replica)[0], bound=8)
            T.all_to_all(b[0:n], a[0:n])

    fails(
        RunError,
        "T.all_to_all: 6 elements of dimension 0 do not divide over 4 units",
        p,
        f32(6),
        np.array([6], np.int32),
        line="T.all_to_all(",
    )


def test_different_roots() -> None:
    @T.program
    def p(X: T.Tensor((8,), "f32")):
        with T.Kernel(device=2), T.Scale("device") as (r, n):
            x = T.alloc((4,), "f32", level="l2")
            T.clear(x)
            T.broadcast(x, root=r)

    fails(RunError, r"T.broadcast: units name different roots \[0, 1\]", p, f32(8), line="T.broadcast(")


def test_partial_terms_reduced_elsewhere() -> None:
    @T.program
    def p(X: T.Tensor((8,), "f32"), Y: T.Tensor((8,), "f32")):
        with T.Kernel(device=2), T.Scale("device") as (r, n):
            x, y = T.view(X, layout=T.Partial("sum")), T.view(Y, layout=T.FullRow)
            T.fill(x, r + 1)
            T.reduce_scatter(y, x)

    fails(
        PartialError,
        "'X' still holds partial terms at the end.*its sum went into another tile: keep the terms in a tile",
        p,
        f32(8),
        f32(8),
        line="T.view(X",
    )
