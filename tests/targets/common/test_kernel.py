"""``targets/common/kernel.py``: a program as code that can be called, whichever target it is for."""

import numpy as np
import pytest
from tests.targets.cpu.shared import gemm, random

import megatile as mt
import megatile.language as T
from megatile.targets.common.errors import CompileError
from megatile.targets.interpret.errors import ArgumentError


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
