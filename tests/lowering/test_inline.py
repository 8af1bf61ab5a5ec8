"""``lowering/inline.py``: a collective of a Program by an algorithm of the collectives library, with the
program's tiles as buffers."""

from __future__ import annotations

import numpy as np
import pytest
from tests.lowering.shared import arrays, checked, program, wanted

import megatile as mt
import megatile.language as T

NAMED = [
    ("allreduce", "ring"), ("allreduce", "ring_bidirectional"), ("allreduce", "tree"),
    ("allreduce", "double_tree"), ("allreduce", "direct"), ("allreduce", "halving_doubling"),
    ("allreduce", "recursive_doubling"), ("allreduce", "bruck"), ("allreduce", "in_network"),
    ("allreduce", "by_dimension"), ("allreduce", "hamilton"), ("allreduce", None),
    ("allgather", "ring"), ("allgather", "direct"), ("allgather", "bruck"), ("allgather", "halving_doubling"),
    ("allgather", None), ("reduce_scatter", "ring"), ("reduce_scatter", "direct"),
    ("reduce_scatter", "halving_doubling"), ("reduce_scatter", "bruck"), ("reduce_scatter", None),
    ("all_to_all", "direct"), ("all_to_all", "pairwise"), ("all_to_all", "bruck"), ("all_to_all", None),
    ("broadcast", "ring"), ("broadcast", "tree"), ("broadcast", "direct"), ("broadcast", "binomial"),
    ("broadcast", "in_network"), ("broadcast", None),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "algorithm"), NAMED)
def test_an_algorithm_with_the_programs_tiles(kind: str, algorithm: str | None) -> None:
    x, y = arrays(kind, 4)
    checked(program(kind, algorithm), x, y, wanted(kind, x, 4), "dgx-h100")


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("algorithm", ["ring", "tree", "halving_doubling", None])
def test_any_number_of_devices(n: int, algorithm: str | None) -> None:
    x, y = arrays("allreduce", n)
    prog = program("allreduce", algorithm, n, "max")
    checked(prog, x, y, wanted("allreduce", x, n, "max"), "dgx-h100")


def test_units_that_nobody_feeds_have_no_source() -> None:
    plan = mt.lower(program("broadcast", "tree"), machine="dgx-h100").plan
    units = np.arange(plan.units)
    sources = [c.source.evaluate({"unit": units, "member": 0 * units}) for c in plan.channels]
    assert sources
    assert all(np.min(source) == -1 and np.max(source) < plan.units for source in sources)


def test_operations_have_transports_of_their_own() -> None:
    """A gather and a reduction by rings of one protocol are two kernels all the same."""

    @T.program
    def kernel(X: T.Tensor((8, 64), "f32"), Y: T.Tensor((8, 64), "f32")):
        with T.Kernel(device=4), T.Scale("device") as r:
            part = T.alloc((2, 64), "f32", level="l2")
            whole = T.alloc((8, 64), "f32", level="l2")
            T.copy(part, X[r * 2, 0])
            T.allgather(whole, part)
            T.reduce_scatter(part, whole)
            T.copy(Y[r * 2, 0], part)

    transports = mt.lower(kernel, machine="dgx-h100").plan.transports
    assert len({t.name for t in transports}) == 2


def test_along_one_axis_of_a_grid() -> None:
    @T.program
    def kernel(X: T.Tensor((6, 8), "f32"), Y: T.Tensor((6, 8), "f32")):
        with T.Kernel(device=(2, 3)), T.Scale("device") as r:
            t = T.alloc((1, 8), "f32", level="l2")
            T.copy(t, X[r, 0])
            T.allreduce(t, axis=1, algorithm="ring")
            T.copy(Y[r, 0], t)

    x, y = np.arange(48, dtype="f4").reshape(6, 8), np.zeros((6, 8), "f4")
    checked(kernel, x, y, np.tile(x.reshape(3, 2, 8).sum(0), (3, 1)), "dgx-h100")


def test_the_text_does_not_grow_with_the_units() -> None:
    sizes = {
        len(str(mt.lower(program("allreduce", "ring", n), machine="h100-cluster").plan).splitlines())
        for n in (4, 8, 32)
    }
    assert len(sizes) == 1
