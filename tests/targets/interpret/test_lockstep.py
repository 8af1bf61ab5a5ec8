"""Units in lockstep do what units one by one do: data, errors, and nothing left behind."""

import random
import warnings
from typing import Any

import numpy as np
import pytest
from tests.language.tile.language_examples import NAMES, load

import megatile as mt
import megatile.language as T
from megatile.core.errors import MegatileError
from megatile.language.tile.errors import ProgramWarning
from megatile.targets.interpret import independent, lockstep

OUTCOMES: list[bool] = []


@pytest.fixture(autouse=True)
def _watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even few units run in lockstep, and each attempt is noted."""
    OUTCOMES.clear()
    run = lockstep.Lockstep.run

    def noted(self: Any) -> bool:
        OUTCOMES.append(run(self))
        return OUTCOMES[-1]

    monkeypatch.setattr(lockstep.Lockstep, "run", noted)
    monkeypatch.setattr(independent, "MIN_UNITS_AT_ONCE", 2)


def both(monkeypatch: pytest.MonkeyPatch, program: Any, *arrays: np.ndarray, **options: Any) -> Any:
    """Arrays after a run in lockstep and after one unit by unit, or the two errors."""
    results = []
    for fewest in (2, 1 << 40):
        monkeypatch.setattr(independent, "MIN_UNITS_AT_ONCE", fewest)
        own = [a.copy() for a in arrays]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ProgramWarning)
                mt.run(program, *own, **options)
            results.append(own)
        except MegatileError as error:
            results.append((type(error), str(error)))
    return results


@pytest.mark.parametrize("name", NAMES)
def test_examples(name: str) -> None:
    """Every example compares its result with NumPy itself; no attempt in lockstep is given up."""
    load(name).main()
    assert all(OUTCOMES)


def random_kernel(seed: int) -> Any:
    """A launch of blocks with tiles of random sizes, and statements drawn at random."""
    rng = random.Random(seed)
    gx, gy = rng.randint(1, 5), rng.randint(1, 4)
    m, n, k = (rng.choice([1, 2, 3, 5, 8]) for _ in range(3))
    M, N = gy * m - rng.randint(0, m - 1), gx * n - rng.randint(0, n - 1)  # the last tiles may be cut
    steps = [rng.randrange(8) for _ in range(rng.randint(2, 6))]
    dtype = rng.choice(["f32", "f16"])
    wide = rng.random() < 0.5

    @T.program
    def kernel(
        A: T.Tensor((M, 4 * k), dtype), B: T.Tensor((4 * k, N), dtype), S: T.Tensor((gy, gx), "f32"),
        C: T.Tensor((M, N), "f32"),
    ):  # fmt: skip
        with T.Kernel(block=(gx, gy), threads=32) as (bx, by):
            a, b = T.alloc((m, k), dtype), T.alloc((k, n), dtype)
            c = T.alloc((m, n), "f32" if wide else dtype)
            row = T.alloc((m,), "f32")
            T.fill(c, 0.25 * bx)
            T.fill(row, by + 1)
            base = by * m
            for step in steps:
                if step == 0:
                    for q in T.serial(4):
                        T.copy(a, A[base, q * k])
                        T.copy(b, B[q * k, bx * n])
                        T.gemm(a, b, c)
                elif step == 1:
                    for i, j in T.Parallel(m, n):
                        c[i, j] = T.tanh(c[i, j]) + row[i] * 0.5 - bx
                elif step == 2:
                    T.reduce_max(c, row, dim=1)
                elif step == 3:
                    T.cumsum(c, dim=0, reverse=True)
                elif step == 4:
                    for j, i in T.Parallel(n, m):
                        c[i, j] = T.if_then_else(i > j, c[i, j], row[i])
                elif step == 5:
                    T.copy(c[0:1, 0:n], c[m - 1 : m, 0:n])
                elif step == 6:
                    scale = S[by, bx]
                    for i in T.Parallel(m):
                        row[i] = row[i] * scale
                else:
                    T.clear(c)
                    T.copy(c, C[by * m, bx * n])
            for j in T.Parallel(n):
                c[m - 1, j] = c[m - 1, j] + 1
            S[by, bx] = row[0] + S[by, bx]
            T.copy(C[by * m, bx * n], c)

    data = np.random.default_rng(seed)
    numpy = {"f32": np.float32, "f16": np.float16}[dtype]
    shapes = [((M, 4 * k), numpy), ((4 * k, N), numpy), ((gy, gx), np.float32), ((M, N), np.float32)]
    return kernel, [data.uniform(-1, 1, shape).astype(kind) for shape, kind in shapes]


@pytest.mark.parametrize("batch", range(6))
def test_random_launches(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(batch * 10, batch * 10 + 10):
        program, arrays = random_kernel(seed)
        together, alone = both(monkeypatch, program, *arrays)
        for left, right in zip(together, alone, strict=True):
            np.testing.assert_allclose(left, right, rtol=3e-3, atol=1e-3, err_msg=f"seed {seed}")
    assert all(OUTCOMES)
    assert len(OUTCOMES) > 5


def random_accesses(seed: int, mistake: bool) -> Any:
    """Blocks with indices of their own, guarded loads and slices over the edge; or one index too far."""
    rng = random.Random(seed)
    blocks, wide, shift = rng.randint(2, 9), rng.randint(3, 6), rng.randint(0, 2)
    steps = [rng.randrange(6) for _ in range(rng.randint(1, 4))]
    far = 3 if mistake else 0

    @T.program
    def kernel(
        I: T.Tensor((blocks, wide), "i32"), X: T.Tensor((blocks, wide), "f32"),
        Y: T.Tensor((blocks, wide), "f32"),
    ):  # fmt: skip
        with T.Kernel(block=blocks, threads=32) as b:
            t, u = T.alloc((wide + 2,), "f32"), T.alloc((wide,), "f32")
            for j in T.Parallel(wide):
                t[j + b % (shift + 1)] = X[b, j]  # elements of its own in every block
            for j in T.Parallel(wide):
                u[j] = t[I[b, j] * 0 + j + b % (shift + 1) + far]
            for step in steps:
                if step == 0:
                    for j in T.Parallel(wide):
                        u[j] = u[j] + T.if_then_else(j + b < wide, X[b, j + b], 0.5)
                elif step == 1:
                    for j in T.Parallel(wide):
                        u[j] = u[j] * T.if_then_else(j < 1 or X[b, j - 1] > 0.5, 2.0, 3.0)
                elif step == 2:
                    T.copy(u, X[b, 1 : 1 + wide])  # which is padded
                elif step == 3:
                    for j in T.Parallel(wide):
                        u[j] = u[j] - X[b, I[b, j]]
                elif step == 4:
                    s = T.if_then_else(b > 0, X[b - 1, 0], 0.25)
                    for j in T.Parallel(wide):
                        u[j] = u[j] + s
                else:
                    for j in T.Parallel(wide):
                        u[j] = T.max(t[j + b % (shift + 1)], 0.0)
            for j in T.Parallel(wide):
                Y[b, j] = u[j]

    data = np.random.default_rng(seed)
    numbers = data.integers(0, wide, (blocks, wide)).astype(np.int32)
    return kernel, [numbers, *(data.uniform(-1, 1, (blocks, wide)).astype(np.float32) for _ in range(2))]


@pytest.mark.parametrize("mistake", [False, True])
def test_units_with_indices_of_their_own(mistake: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a mistake lets an attempt be given up; it is then told by one unit."""
    for seed in range(40):
        program, arrays = random_accesses(seed, mistake)
        together, alone = both(monkeypatch, program, *arrays)
        if mistake:
            assert together == alone
            assert issubclass(together[0], MegatileError)
        else:
            for left, right in zip(together, alone, strict=True):
                np.testing.assert_array_equal(left, right, err_msg=f"seed {seed}")
    assert len(OUTCOMES) == 40
    assert not any(OUTCOMES) if mistake else all(OUTCOMES)


def test_large_launches_go_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lockstep, "CHUNK_BYTES", 200)
    for seed in range(60, 70):
        program, arrays = random_kernel(seed)
        together, alone = both(monkeypatch, program, *arrays)
        for left, right in zip(together, alone, strict=True):
            np.testing.assert_allclose(left, right, rtol=3e-3, atol=1e-3, err_msg=f"seed {seed}")
    assert all(OUTCOMES)


def wrong(which: str) -> Any:
    @T.program
    def kernel(A: T.Tensor((32,), "f32"), B: T.Tensor((32,), "f32")):
        with T.Kernel(block=4, threads=32) as b:
            t = T.alloc((8,), "f32")
            if which == "unwritten":
                T.copy(t[0:4], A[b * 8])
            else:
                T.copy(t, A[b * 8])
            if which == "overlap":
                T.copy(B[b * 7], t)
            elif which == "same":
                T.copy(B[0], t)
            elif which == "reads-what-another-writes":
                T.copy(A[(b * 8 + 8) % 32], t)
            elif which == "element":
                for i in T.Parallel(8):
                    B[b + i] = t[i]
            elif which == "outside":
                for i in T.Parallel(8):
                    B[b * 8 + i + 1] = t[i]
            elif which == "slice":
                T.copy(B[b * 8 : b * 8 + 8], A[b * 8 + 1 : b * 8 + 9])
            else:
                T.copy(B[b * 8], t)

    return kernel


@pytest.mark.parametrize(
    "which",
    ["overlap", "same", "reads-what-another-writes", "element", "outside", "slice", "unwritten"],
)
def test_mistakes_are_reported_by_the_units_one_by_one(which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = [np.arange(32, dtype=np.float32), np.zeros(32, np.float32)]
    strict = which == "slice"
    together, alone = both(monkeypatch, wrong(which), *arrays, strict_bounds=strict)
    assert together == alone
    assert issubclass(together[0], MegatileError)
    assert OUTCOMES == [False]


def test_what_was_written_is_put_back_before_units_run_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place, so that doing half of it twice would show."""

    @T.program
    def kernel(A: T.Tensor((32,), "f32")):
        with T.Kernel(block=4, threads=32) as b:
            for i in T.Parallel(8):
                A[b * 8 + i] = A[b * 8 + i] * 2
            for k in T.serial(2):
                T.copy(A[b * 8 : b * 8 + 8 + 8 * k * (b // 3)], A[b * 8 : b * 8 + 8 + 8 * k * (b // 3)])

    (together,), (alone,) = both(monkeypatch, kernel, np.arange(32, dtype=np.float32))
    np.testing.assert_array_equal(together, alone)
    np.testing.assert_array_equal(together, 2 * np.arange(32))


def test_units_that_talk_do_not_run_in_lockstep() -> None:
    @T.program
    def kernel(A: T.Tensor((8,), "f32")):
        with T.Kernel(block=8, threads=32) as b:
            T.atomic_add(A[0], 1.0)

    a = np.zeros(8, np.float32)
    mt.run(kernel, a)
    assert a[0] == 8
    assert OUTCOMES == []


def test_a_loop_around_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the loop counts is known inside, where blocks run at once."""

    @T.program
    def steps(X: T.Tensor((2, 64), "f32")):
        with T.Kernel(block=4, threads=32) as b:
            for s in T.serial(3):
                with T.Scale("block"):
                    x = T.alloc((1, 16), "f32")
                    T.copy(x, X[s % 2 : s % 2 + 1, b * 16 : b * 16 + 16])
                    for i, j in T.Parallel(1, 16):
                        x[i, j] = x[i, j] * 2.0 + s
                    T.copy(X[(s + 1) % 2 : (s + 1) % 2 + 1, b * 16 : b * 16 + 16], x)

    at_once, one_by_one = both(monkeypatch, steps, np.ones((2, 64), np.float32))
    np.testing.assert_array_equal(at_once, one_by_one)
    assert at_once[0][1, 0] == ((1 * 2 + 0) * 2 + 1) * 2 + 2
    assert all(OUTCOMES)
