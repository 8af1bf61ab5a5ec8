"""What several files of tests/lowering share."""

from typing import Any

import numpy as np

import megatile as mt
import megatile.language as T
from megatile.core.expr import unit
from megatile.ir.parser import parse
from megatile.lowering.explain import figures
from megatile.plan import model as pm
from megatile.plan.build import PlanBuilder


def scaled(index: str, n: int = 2048):
    """Every block doubles a tile of a matrix that it reads in place."""

    @T.program
    def program(X: T.Tensor((n, n), "f32"), Y: T.Tensor((n, n), "f32")):
        with T.Kernel(block=(n // 64, n // 64), threads=256) as (bx, by):
            y = T.alloc((64, 64), "f32")
            if index == "columns":
                for j, i in T.Parallel(64, 64):
                    y[i, j] = X[by * 64 + i, bx * 64 + j] * 2.0
            else:
                for i, j in T.Parallel(64, 64):
                    y[i, j] = X[by * 64 + i, bx * 64 + j] * 2.0
            T.copy(Y[by * 64, bx * 64], y)

    return program


ROWS, COLUMNS = 16, 6


def program(
    kind: str,
    algorithm: str | None = None,
    devices: int = 4,
    op: str = "sum",
    root: int = 1,
    impl: Any = None,
) -> Any:
    """Every device's rows of X, put through a collective, are its rows of Y."""
    n = devices
    large = n if kind in ("reduce_scatter",) else 1
    out = {"allgather": n * ROWS, "reduce_scatter": ROWS}.get(kind, ROWS)

    @T.program
    def kernel(X: T.Tensor((n * ROWS * large, COLUMNS), "f32"), Y: T.Tensor((n * out, COLUMNS), "f32")):
        with T.Kernel(device=n), T.Scale("device"):
            x, y = T.view(X, layout=T.FullRow), T.view(Y, layout=T.FullRow)
            a = T.alloc((ROWS * large, COLUMNS), "f32", level="l2")
            b = T.alloc((out, COLUMNS), "f32", level="l2")
            T.copy(a, x)
            if kind == "allreduce":
                T.allreduce(a, op=op, algorithm=algorithm, impl=impl)
                T.copy(b, a)
            elif kind == "broadcast":
                T.broadcast(a, root=root, algorithm=algorithm)
                T.copy(b, a)
            elif kind == "allgather":
                T.allgather(b, a, algorithm=algorithm)
            elif kind == "reduce_scatter":
                T.reduce_scatter(b, a, op=op, algorithm=algorithm)
            else:
                T.all_to_all(b, a, algorithm=algorithm)
            T.copy(y, b)

    return kernel


def wanted(kind: str, x: np.ndarray, n: int, op: str = "sum", root: int = 1) -> np.ndarray:
    parts = x.reshape(n, -1, COLUMNS)
    total = {"sum": parts.sum(0), "max": parts.max(0)}[op]
    if kind == "allreduce":
        return np.concatenate([total] * n)
    if kind == "broadcast":
        return np.concatenate([parts[root]] * n)
    if kind == "allgather":
        return np.concatenate([x] * n)
    if kind == "reduce_scatter":
        return total
    return parts.reshape(n, n, -1, COLUMNS).swapaxes(0, 1).reshape(-1, COLUMNS)


def arrays(kind: str, n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(n)
    rows = n * ROWS * (n if kind == "reduce_scatter" else 1)
    x = rng.integers(-9, 9, (rows, COLUMNS)).astype("f4")
    return x, np.zeros_like(wanted(kind, x, n))


def checked(prog: Any, x: np.ndarray, y: np.ndarray, expected: np.ndarray, machine: Any) -> Any:
    """The program's result by its Plan in time is what is expected, and what the interpreter gives."""
    lowered = mt.lower(prog, x, y, machine=machine)
    mt.check(lowered)
    result = mt.simulate(lowered, x, y)
    np.testing.assert_array_equal(result.outputs["Y"], expected)
    mt.run(prog, x, y, machine=machine)
    np.testing.assert_array_equal(y, expected)
    return lowered, result


def judged(prog: Any, arrays: list[np.ndarray], machine: str = "dgx-h100") -> Any:
    """The lowered program, after its Plan was checked and gave what the interpreter gives."""
    wanted = [a.copy() for a in arrays]
    mt.run(prog, *wanted, machine=machine)
    lowered = mt.lower(prog, *arrays, machine=machine)
    mt.check(lowered)
    for got in (mt.execute(lowered, *arrays), mt.simulate(lowered, *arrays).outputs):
        for param, before, after in zip(lowered.program.params, arrays, wanted, strict=True):
            np.testing.assert_allclose(got.get(param.name, before), after, rtol=1e-5, atol=1e-5)
    return lowered


def counters(lowered: Any) -> dict[str, int]:
    return {f.name: f.members for f in lowered.plan.flags}


def gemm(impl=None, copy=None, reduce=None, M=64, N=64, K=64):
    @T.program
    def kernel(A: T.Tensor((M, K), "f16"), B: T.Tensor((K, N), "f16"), R: T.Tensor((M,), "f32")):
        with T.Kernel(block=1, threads=128):
            a = T.alloc((M, K), "f16", level="l1")
            b = T.alloc((K, N), "f16", level="l1")
            c = T.alloc((M, N), "f32")
            r = T.alloc((M,), "f32")
            T.clear(c)
            T.copy(a, A, impl=copy)
            T.copy(b, B, impl=copy)
            T.gemm(a, b, c, impl=impl)
            T.reduce_sum(c, r, dim=1, impl=reduce)
            T.copy(R, r)

    return kernel


def text_after(lowered: Any, name: str) -> list[str]:
    """The statements after a pass, without indentation and comments; the text parses back."""
    step = next(step for step in lowered.steps if step.name == name)
    assert parse(str(step)) == step.program
    return [line.strip().partition("  # ")[0] for line in str(step).splitlines()]


@T.program
def pipelined(A: T.Tensor((64, 96), "f16"), B: T.Tensor((96, 64), "f16"), C: T.Tensor((64, 64), "f32")):
    with T.Kernel(block=1, threads=256):
        a = T.alloc((64, 32), "f16", level="l1")
        b = T.alloc((32, 64), "f16", level="l1")
        c = T.alloc((64, 64), "f32")
        T.clear(c)
        for k in T.Pipelined(3, num_stages=2):
            T.copy(a, A[0, k * 32])
            T.copy(b, B[k * 32, 0])
            T.gemm(a, b, c)
        with T.Scale("warpgroup"):
            T.copy(T.view(c, layout=T.Replica), T.view(c, layout=T.Replica))
        T.copy(C[0, 0], c)


def tiled_gemm(
    M: int, N: int, K: int, bM: int = 64, bN: int = 64, bK: int = 32, stages: int = 3, dtype: str = "f16",
    result: str = "f32",
):  # fmt: skip
    @T.program
    def kernel(A: T.Tensor((M, K), dtype), B: T.Tensor((K, N), dtype), C: T.Tensor((M, N), result)):
        with T.Kernel(block=(T.ceildiv(N, bN), T.ceildiv(M, bM)), threads=128) as (bx, by):
            a = T.alloc((bM, bK), dtype, level="l1")
            b = T.alloc((bK, bN), dtype, level="l1")
            c = T.alloc((bM, bN), "f32", level="l0")
            T.clear(c)
            for k in T.Pipelined(T.ceildiv(K, bK), num_stages=stages):
                T.copy(a, A[by * bM, k * bK])
                T.copy(b, B[k * bK, bx * bN])
                T.gemm(a, b, c)
            T.copy(C[by * bM, bx * bN], c)

    return kernel


def products_done(program: object, machine: str | mt.HDA) -> int:
    done = figures(mt.lower(program, machine=machine)).flops
    return done.get("tensor", 0) or done["vector"]


WAFER = mt.machine("cerebras-wse2", width=16, height=16)


ROUNDS, BYTES = 8, 4 * 64 * 4


def reads(cores: int, which):
    """Every core adds up blocks of X, ``which(core, round)``, and writes its own block of Y."""

    @T.program
    def kernel(X: T.Tensor((cores * 4, 64), "f32"), Y: T.Tensor((cores * 4, 64), "f32")):
        with T.Kernel(block=cores, threads=1) as b:
            x = T.alloc((4, 64), "f32", level="l1")
            y = T.alloc((4, 64), "f32", level="l1")
            T.clear(y)
            for i in T.serial(ROUNDS):
                T.copy(x, X[which(b, i) * 4, 0])
                for r, c in T.Parallel(4, 64):
                    y[r, c] += x[r, c]
            T.copy(Y[b * 4, 0], y)

    return kernel


def own(b, i):
    return b


def spread_plan(**options) -> pm.Plan:
    b = PlanBuilder("k", scale="wafer", units=1)
    core = b.level("core", scale="core", grid=4, parent="wafer")
    x = b.tile("x", (8, 4), "f32", memory="sram", role="input", **{"over": core, "block": (2, 4)} | options)
    t = b.tile("t", (2, 4), "f32", memory="sram", level=core)
    with b.stream(level=core):
        b.copy(t, x[2 * (3 - unit) : 2 * (3 - unit) + 2, 0:4])
    return b.finish()
