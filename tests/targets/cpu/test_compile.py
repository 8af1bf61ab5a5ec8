"""``mt.compile``: results, arguments, errors, and what is kept."""

import ctypes
import math
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import megatile as mt
import megatile.language as T
from megatile.core.cached import CACHE_VARIABLE
from megatile.targets.common.errors import CompileError
from megatile.targets.common.toolchain import Making
from megatile.targets.cpu.generator import PRELUDE
from megatile.targets.interpret.errors import ArgumentError, DeviceAssertionError, OutOfBoundsError, RunError


def gemm(M, N, K, dtype="f32", out="f32", bM=64, bN=64, bK=32, ta=False, tb=False):
    @T.program
    def kernel(
        A: T.Tensor((K, M) if ta else (M, K), dtype), B: T.Tensor((N, K) if tb else (K, N), dtype),
        C: T.Tensor((M, N), out),
    ):  # fmt: skip
        with T.Kernel(block=(T.ceildiv(N, bN), T.ceildiv(M, bM)), threads=128) as (bx, by):
            a = T.alloc((bK, bM) if ta else (bM, bK), dtype, level="l1")
            b = T.alloc((bN, bK) if tb else (bK, bN), dtype, level="l1")
            c = T.alloc((bM, bN), "i32" if dtype[0] in "iu" else "f32", level="l0")
            T.clear(c)
            for k in T.Pipelined(T.ceildiv(K, bK), num_stages=2):
                if ta:
                    T.copy(a, A[k * bK, by * bM])
                else:
                    T.copy(a, A[by * bM, k * bK])
                if tb:
                    T.copy(b, B[bx * bN, k * bK])
                else:
                    T.copy(b, B[k * bK, bx * bN])
                T.gemm(a, b, c, transpose_A=ta, transpose_B=tb)
            T.copy(C[by * bM, bx * bN], c)

    return kernel


def random(shape, dtype, seed=0):
    from megatile.core.dtypes import numpy_dtype

    rng = np.random.default_rng(seed)
    if dtype[0] in "iu":
        return rng.integers(-9 if dtype[0] == "i" else 0, 9, shape).astype(numpy_dtype(dtype))
    return rng.standard_normal(shape).astype(numpy_dtype(dtype))


@pytest.mark.parametrize(
    ("size", "dtype", "out", "tile", "flips"),
    [
        ((130, 70, 45), "f32", "f32", (64, 64, 32), (False, False)),
        ((1, 1, 1), "f32", "f32", (64, 64, 32), (False, False)),
        ((100, 90, 33), "bf16", "bf16", (32, 48, 16), (False, True)),
        ((100, 90, 33), "f16", "f16", (48, 40, 16), (True, False)),
        ((64, 96, 32), "f8e4m3", "f32", (64, 32, 32), (True, True)),
        ((40, 40, 40), "f8e5m2", "f16", (13, 17, 5), (False, False)),
        ((33, 20, 50), "i8", "i32", (16, 16, 16), (False, True)),
    ],
)
def test_gemm_equals_the_interpreter(size, dtype, out, tile, flips) -> None:
    M, N, K = size
    program = gemm(M, N, K, dtype, out, *tile, *flips)
    a = random((K, M) if flips[0] else (M, K), dtype)
    b = random((N, K) if flips[1] else (K, N), dtype, 1)
    wanted, got = random((M, N), out), random((M, N), out)
    mt.run(program, a, b, wanted)
    mt.compile(program, threads=2)(a, b, got)
    bound = {"f16": 2e-3, "bf16": 1.6e-2}.get(out, 1e-5)
    np.testing.assert_allclose(got.astype("f8"), wanted.astype("f8"), rtol=bound, atol=bound)


def test_symbolic_extents_are_compiled_for_the_shapes_given() -> None:
    n = T.dynamic("n")

    @T.program
    def double(A: T.Tensor((n,), "f32"), B: T.Tensor((n,), "f32")):
        with T.Kernel(block=T.ceildiv(n, 64)) as bx:
            a = T.alloc((64,), "f32")
            T.copy(a, A[bx * 64])
            for i in T.Parallel(64):
                a[i] = a[i] * 2
            T.copy(B[bx * 64], a)

    k = mt.compile(double, threads=2)
    with pytest.raises(CompileError, match="compiled when it is called"):
        _ = k.source
    for length in (1, 64, 1000):
        a = np.arange(length, dtype=np.float32)
        b = np.zeros_like(a)
        k(a, b)
        np.testing.assert_array_equal(b, a * 2)
    assert "double" in k.source


def test_arrays_that_are_not_contiguous_and_torch_tensors() -> None:
    program = gemm(20, 24, 16)
    k = mt.compile(program, threads=1)
    a, b = random((16, 20), "f32").T, random((20, 48), "f32", 1)[:16, ::2]
    c = np.zeros((24, 20), np.float32).T
    k(a, b, c)
    np.testing.assert_allclose(c, a @ b, rtol=1e-5, atol=1e-5)
    torch = pytest.importorskip("torch")
    c = torch.zeros(20, 24)
    k(np.ascontiguousarray(a), torch.from_numpy(b.copy()), c)
    np.testing.assert_allclose(c.numpy(), a @ b, rtol=1e-5, atol=1e-5)


def test_wrong_arguments() -> None:
    k = mt.compile(gemm(8, 8, 8), threads=1)
    a = np.zeros((8, 8), np.float32)
    with pytest.raises(ArgumentError, match=r"takes 3 arrays \(A, B, C\), 2 were given.*outputs are"):
        k(a, a)
    with pytest.raises(ArgumentError, match=r"'B' has shape \(4, 8\)"):
        k(a, a[:4], a)
    with pytest.raises(ArgumentError, match="'C' is f64, the program wants f32"):
        k(a, a, a.astype(np.float64))
    frozen = a.copy()
    frozen.flags.writeable = False
    with pytest.raises(ArgumentError, match="'C' is written, and its array is read-only"):
        k(a, a, frozen)
    with pytest.raises(CompileError, match=r"no target 'gpu'.*cpu"):
        mt.compile(gemm(8, 8, 8), target="gpu")
    with pytest.raises(ArgumentError, match="'A' is f32 with its bytes swapped"):
        k(a.astype(">f4"), a, a)
    with pytest.raises(ArgumentError, match="'A' is object"):
        k(a.astype(object), a, a)
    for wrong in ({"threads": 0}, {"threads": "two"}, {"threads": 10**9}, {"options": "-O1"}):
        with pytest.raises(CompileError, match=f"{next(iter(wrong))}="):
            mt.compile(gemm(8, 8, 8), **wrong)
    with pytest.raises(CompileError, match="is not a tile program"):
        mt.compile(print)


def test_failures_name_the_line() -> None:
    @T.program
    def gather(A: T.Tensor((8,), "f32"), I: T.Tensor((4,), "i32"), B: T.Tensor((4,), "f32")):
        with T.Kernel(block=1):
            for i in T.Parallel(4):
                B[i] = A[I[i]]
            T.device_assert(B[0] < 10.0, "small")
            n = T.read_scalar(I[0], bound=7)
            for k in T.serial(n):
                B[0] = B[0] + 100 // (I[3] - k)

    k = mt.compile(gather, threads=1)
    a, b = np.arange(8, dtype=np.float32), np.zeros(4, np.float32)
    k(a, np.array([0, 1, 2, 7], np.int32), b)
    np.testing.assert_array_equal(b, [0, 1, 2, 7])
    with pytest.raises(OutOfBoundsError, match=r"test_compile.py:\d+: 'A\[8\]' is out of bounds"):
        k(a, np.array([0, 1, 8, 3], np.int32), b)
    with pytest.raises(DeviceAssertionError, match="small"):
        k(a + 10, np.array([0, 1, 2, 3], np.int32), b)
    with pytest.raises(RunError, match="division by zero"):
        k(a, np.array([1, 1, 2, 0], np.int32), b)


def test_what_cannot_be_compiled_is_refused_with_its_line() -> None:
    @T.program
    def kernel(A: T.Tensor((8,), "f4e2m1")):
        with T.Kernel(block=1):
            T.fill(A[0:8], 1)

    with pytest.raises(CompileError, match="'f4e2m1' cannot be compiled yet"):
        mt.compile(kernel)


@pytest.mark.parametrize(
    ("command", "said"),
    [("true", "wrote no output"), ("false", "it said nothing"), ("cc 'x", r"\$CC is not a command"),
     ("{bad}", "cannot be loaded")],
)  # fmt: skip
def test_a_compiler_that_does_not_do(
    command: str, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bad = tmp_path / "bad"
    bad.write_text('#!/bin/sh\nwhile [ $# -gt 0 ]; do [ "$1" = -o ] && echo no > "$2"; shift; done\n')
    bad.chmod(0o755)
    monkeypatch.setenv("MEGATILE_CACHE", str(tmp_path))
    monkeypatch.setenv("CC", command.format(bad=bad))
    with pytest.raises(CompileError, match=said):
        Making("int one(void) { return 1; }").load()
    assert not list(tmp_path.glob("cpu-*")), "what is of no use is not kept"


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setitem(__import__("sys").modules, "ziglang", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(CompileError, match=r"there is no C compiler here .*megatile\[native\]"):
        mt.compile(gemm(7, 7, 7), threads=1)
    monkeypatch.setenv("CC", "nocompiler -x")
    with pytest.raises(CompileError, match="CC names 'nocompiler'"):
        mt.compile(gemm(7, 7, 7), threads=1)


def test_code_is_kept_and_a_damaged_file_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    source = "int answer(void) { return 42; }"
    assert Making(source).load().answer() == 42
    (path,) = tmp_path.iterdir()
    assert Making(source).was_cached
    whole = path.read_bytes()
    path.unlink()  # what is loaded keeps its file
    path.write_bytes(whole[:-40])
    assert not Making(source).was_cached
    monkeypatch.setenv(CACHE_VARIABLE, "/proc/nowhere")
    assert Making("int answer(void) { return 7; }").load().answer() == 7


_FUNCTIONS = {
    "exp": (np.exp, [(-104, 88.7), (-1, 1)]), "exp2": (np.exp2, [(-149, 127.9), (-1, 1)]),
    "log": (np.log, [(1e-44, 1e-38), (0.5, 2), (1e-3, 1e4)]), "log2": (np.log2, [(0.5, 2), (1e-3, 1e9)]),
    "tanh": (np.tanh, [(-12, 12), (-1e-3, 1e-3)]), "erf": (np.vectorize(math.erf), [(-5, 5), (-1e-3, 1e-3)]),
}  # fmt: skip


def test_functions_are_within_two_units_of_the_last_place() -> None:
    loops = "".join(
        f"void t_{f}(const float *x, float *y, long n) "
        f"{{ for (long i = 0; i < n; i += W) st_f32(y + i, v{f}(ld_f32(x + i))); }}\n"
        for f in _FUNCTIONS
    )
    for width in (16, 8):
        library = Making(f"#define W {width}\n{PRELUDE}{loops}").load()
        for name, (meaning, ranges) in _FUNCTIONS.items():
            for low, high in ranges:
                x = np.random.default_rng(1).uniform(low, high, 1 << 13).astype(np.float32)
                x[:3] = low, high, 1.0
                y = np.empty_like(x)
                args = [ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(y.ctypes.data), ctypes.c_long(x.size)]
                getattr(library, f"t_{name}")(*args)
                exact = meaning(x.astype(np.float64))
                error = np.abs(y - exact) / np.spacing(np.abs(exact.astype(np.float32)))
                assert error.max() < 2, f"{name} in {low}..{high}: {error.max()} at {x[error.argmax()]}"


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f8e4m3", "f8e5m2"])
def test_narrow_floats_round_as_numpy_does(dtype: str) -> None:
    from megatile.core.dtypes import numpy_dtype

    @T.program
    def kernel(A: T.Tensor((4096,), "f32"), B: T.Tensor((4096,), dtype), C: T.Tensor((4096,), "f32")):
        with T.Kernel(block=1):
            T.copy(B[0:4096], A[0:4096])
            T.copy(C[0:4096], B[0:4096])

    rng = np.random.default_rng(0)
    a = rng.integers(0, 2**32, 4096, dtype=np.uint32).view(np.float32)
    a[::2] = (10 ** rng.uniform(-9, 6, 2048) * rng.choice([-1, 1], 2048)).astype(np.float32)
    b, c = np.zeros(4096, numpy_dtype(dtype)), np.zeros(4096, np.float32)
    mt.compile(kernel, threads=1)(a, b, c)
    with np.errstate(all="ignore"):
        wanted = a.astype(numpy_dtype(dtype)).astype(np.float32)
    np.testing.assert_array_equal(c, wanted)


def test_profile_and_source() -> None:
    k = mt.compile(gemm(64, 64, 64), threads=2)
    x = np.ones((64, 64), np.float32)
    out = np.zeros_like(x)
    profile = k.profile(x, x, out, repeat=2)
    assert profile.seconds > 0
    assert [name.split()[0] for name in profile.phases] == ["pack", "block_1"]
    assert sum(profile.phases.values()) <= profile.seconds
    assert "T.gemm(a, b, c, transpose_A=ta, transpose_B=tb)" in k.source
    assert "2 threads" in repr(k)


def test_sanitizers_find_nothing(tmp_path) -> None:
    """A program with tails, gathers, atomics and reductions under the undefined-behaviour sanitizer."""

    @T.program
    def kernel(
        A: T.Tensor((37, 29), "f32"),
        I: T.Tensor((29,), "i32"),
        B: T.Tensor((37, 29), "bf16"),
        S: T.Tensor((37,), "f32"),
    ):
        with T.Kernel(block=T.ceildiv(37, 8)) as bx:
            a = T.alloc((8, 29), "f32")
            s = T.alloc((8,), "f32")
            T.copy(a, A[bx * 8, 0])
            T.reduce_sum(a, s, dim=1)
            for i, j in T.Parallel(8, 29):
                if bx * 8 + i < 37:
                    T.atomic_add(S[bx * 8 + i], T.exp(a[i, I[j]]) + s[i])
            T.copy(B[bx * 8, 0], a)

    a = np.random.default_rng(0).standard_normal((37, 29)).astype(np.float32)
    index = np.arange(29, dtype=np.int32)[::-1].copy()
    results = []
    for options in ((), ("-fsanitize=undefined", "-fsanitize-undefined-trap-on-error")):
        b, s = np.zeros((37, 29), ml_dtypes.bfloat16), np.zeros(37, np.float32)
        mt.compile(kernel, threads=2, options=options)(a, index, b, s)
        results.append(s)
        np.testing.assert_array_equal(b, a.astype(ml_dtypes.bfloat16))
    np.testing.assert_allclose(results[0], results[1], rtol=1e-6)
    np.testing.assert_allclose(results[0], np.exp(a).sum(1) + 29 * a.sum(1), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_a_variable_may_be_called_stop(target: str) -> None:
    """Loops of elementwise code have names of their own for their ends."""

    @T.program
    def kernel(X: T.Tensor((8,), "i32"), Y: T.Tensor((8,), "i32")):
        with T.Kernel(block=1, threads=32):
            for i in T.Parallel(8):
                stop = X[i]
                for j in T.serial(3):
                    T.atomic_add(Y[i], stop + j)

    x, y = np.arange(8, dtype="i4"), np.zeros(8, "i4")
    mt.compile(kernel, target=target)(x, y)
    np.testing.assert_array_equal(y, 3 * x + 3)
