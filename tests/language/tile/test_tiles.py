"""``language/tile/tiles.py``: handles of tensors, tiles and views, and regions of them."""

import numpy as np
import pytest
from tests.language.tile.shared import f32, zeros

import megatile as mt
import megatile.language as T
from megatile.language.tile.errors import ProgramError


def test_symbolic_extents() -> None:
    M, N = T.dynamic("M"), T.dynamic("N")

    @T.program
    def p(X: T.Tensor((M, N), "f32"), Y: T.Tensor((N, M), "f32")):
        with T.Kernel(block=(T.ceildiv(N, 4), T.ceildiv(M, 4))) as (bx, by):
            x, y = T.alloc((4, 4), "f32"), T.alloc((4, 4), "f32")
            T.copy(x, X[by * 4, bx * 4])
            for i, j in T.Parallel(4, 4):
                y[j, i] = x[i, j]
            T.copy(Y[bx * 4, by * 4], y)

    for m, n in ((8, 4), (7, 9)):
        x, y = f32(m, n), zeros(n, m)
        mt.run(p, x, y)
        np.testing.assert_array_equal(y, x.T)
    with pytest.raises(ProgramError, match="'M' is 3 in an earlier argument and 5 in 'Y'"):
        mt.run(p, f32(3, 4), zeros(4, 5))


def test_edges() -> None:
    @T.program
    def p(X: T.Tensor((5, 7), "f32"), Y: T.Tensor((5, 7), "f32"), Z: T.Tensor((8, 8), "f32")):
        with T.Kernel(block=(2, 2)) as (bx, by):
            t = T.alloc((4, 4), "f32")
            T.copy(t, X[by * 4, bx * 4])
            T.copy(Y[by * 4, bx * 4], t)
            T.copy(Z[by * 4, bx * 4], t)

    x, y, z = f32(5, 7), zeros(5, 7), np.ones((8, 8), np.float32)
    mt.run(p, x, y, z)
    np.testing.assert_array_equal(y, x)
    np.testing.assert_array_equal(z, np.pad(x, ((0, 3), (0, 1))))


@T.program
def every_second(
    A: T.Tensor((8, 16), "f32"), B: T.Tensor((4, 4), "f32"), C: T.Tensor((8,), "f32"), scale: T.float32
):
    with T.Kernel(block=1, threads=32):
        t = T.alloc_shared((4, 4), "f32")
        T.copy(t, A[::2, 1:16:4])
        T.copy(B, t)
        last = T.alloc_shared((8, 4), "f32")
        products = T.alloc_fragment((8,), "f32")
        T.copy(last, A[:, -4:])
        T.reduce_prod(last, products, dim=1)
        for i in T.Parallel(8):
            C[i] = T.round(products[i] * scale) + A[-1, -1]


def run(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    mt.run(every_second, a, b, c, 8.5)


def compiled(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    mt.compile(every_second, target="cpu")(a, b, c, 8.5)


def executed(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    found = mt.execute(every_second, a, b, c, 8.5, machine="dgx-h100")
    b[...], c[...] = found["B"], found["C"]


@pytest.mark.parametrize("how", [run, compiled, executed])
def test_steps_ends_and_numbers_mean_what_numpy_means(how) -> None:  # type: ignore[no-untyped-def]
    a = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)
    b, c = np.zeros((4, 4), np.float32), np.zeros(8, np.float32)
    how(a, b, c)
    np.testing.assert_array_equal(b, a[::2, 1:16:4])
    np.testing.assert_allclose(c, np.round(np.prod(a[:, -4:], 1) * np.float32(8.5)) + a[-1, -1], rtol=1e-6)


def test_a_step_may_stand_at_the_destination_and_leave_a_rest() -> None:
    @T.program
    def spread(A: T.Tensor((3,), "f32"), B: T.Tensor((8,), "f32")):
        with T.Kernel(block=1, threads=32):
            T.copy(B[1:8:3], A[:])

    a, b = np.arange(1, 4, dtype=np.float32), np.zeros(8, np.float32)
    mt.run(spread, a, b)
    np.testing.assert_array_equal(b, [0, 1, 0, 0, 2, 0, 0, 3])


def test_steps_with_other_extents_are_refused() -> None:
    @T.program
    def wrong(A: T.Tensor((8,), "f32"), B: T.Tensor((8,), "f32")):
        with T.Kernel(block=1, threads=32):
            T.copy(B[::3], A[::2])

    with pytest.raises(ProgramError, match=r"'B' \(3\) and 'A' \(4\) have different shapes"):
        wrong.build("dgx-h100")


def test_a_tensor_of_an_annotation_has_no_elements() -> None:
    tensor = T.Tensor((4,), "f32")
    with pytest.raises(ProgramError, match="has elements only inside a kernel that takes it"):
        tensor[0]
    with pytest.raises(ProgramError, match="has elements only inside a kernel that takes it"):
        tensor[0] = 1.0
