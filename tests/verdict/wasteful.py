"""Pairs of kernels of which one moves or computes more than it need, and its twin."""

import megatile.language as T
from megatile.language import tl


def expanded(by_phase, M=512, N=2048, K=2048):
    """Weights of 8 bits: a phase writes them out as f16, or each block converts what it loads."""
    rows = K // (M // 128)

    @T.program
    def product(
        X: T.Tensor((M, K), "f16"),
        Q: T.Tensor((K, N), "i8"),
        W: T.Tensor((K, N), "f16"),
        Y: T.Tensor((M, N), "f16"),
    ):
        with T.Kernel(block=(N // 128, M // 128), threads=256) as (bx, by):
            if by_phase:
                with T.Scale("block"):
                    q = T.alloc((64, 128), "i8", level="l1")
                    w = T.alloc((64, 128), "f16")
                    for k in T.Pipelined(rows // 64, num_stages=2):
                        T.copy(q, Q[by * rows + k * 64, bx * 128])
                        for i, j in T.Parallel(64, 128):
                            w[i, j] = T.cast(q[i, j], "f16") * 0.5
                        T.copy(W[by * rows + k * 64, bx * 128], w)
            with T.Scale("block"):
                x, b = T.alloc((128, 64), "f16", level="l1"), T.alloc((64, 128), "f16", level="l1")
                p, c = T.alloc((64, 128), "i8", level="l1"), T.alloc((128, 128), "f32")
                T.clear(c)
                for k in T.Pipelined(K // 64, num_stages=3):
                    T.copy(x, X[by * 128, k * 64])
                    if by_phase:
                        T.copy(b, W[k * 64, bx * 128])
                    else:
                        T.copy(p, Q[k * 64, bx * 128])
                        for i, j in T.Parallel(64, 128):
                            b[i, j] = T.cast(p[i, j], "f16") * 0.5
                    T.gemm(x, b, c)
                T.copy(Y[by * 128, bx * 128], c)

    return product


def column_sums(each_row, R=8192, C=1024, rows=64):
    """Sums of columns: an atomic for each row, or for each block."""

    @T.program
    def summed(X: T.Tensor((R, C), "f16"), Y: T.Tensor((C,), "f32")):
        with T.Kernel(block=R // rows, threads=256) as b:
            x, y = T.alloc((C,), "f16"), T.alloc((C,), "f32")
            T.clear(y)
            for i in T.Pipelined(rows, num_stages=2):
                T.copy(x, X[b * rows + i, 0:C])
                for j in T.Parallel(C):
                    y[j] = (0.0 if each_row else y[j]) + x[j] * x[j]
                if each_row:
                    T.atomic_add(Y[0:C], y)
            if not each_row:
                T.atomic_add(Y[0:C], y)

    return summed


def added_elements(each_step, R=4096, C=4096, rows=512):
    """Sums of columns by atomics of elements: in every step of a loop, or once."""

    @T.program
    def summed(X: T.Tensor((R, C), "bf16"), Y: T.Tensor((C,), "f32")):
        with T.Kernel(block=(C // 128, R // rows), threads=128) as (bx, by):
            x, y = T.alloc((16, 128), "bf16", level="l1"), T.alloc((128,), "f32")
            T.clear(y)
            for k in T.Pipelined(rows // 16, num_stages=2):
                T.copy(x, X[by * rows + k * 16, bx * 128])
                T.reduce_sum(x, y, dim=0, clear=each_step)
                if each_step:
                    for j in T.Parallel(128):
                        T.atomic_add(Y[bx * 128 + j], y[j])
            if not each_step:
                for j in T.Parallel(128):
                    T.atomic_add(Y[bx * 128 + j], y[j])

    return summed


def turned(by_hand, M=1024, K=512, depth=64, stages=3):
    """A product with transposed weights: turned element by element, or by the tensor engine."""

    @T.program
    def product(A: T.Tensor((M, K), "f16"), B: T.Tensor((M, K), "f16"), C: T.Tensor((M, M), "f16")):
        with T.Kernel(block=(M // 64, M // 64), threads=128) as (bx, by):
            a, b = T.alloc((64, depth), "f16", level="l1"), T.alloc((64, depth), "f16", level="l1")
            t, c = T.alloc((depth, 64), "f16", level="l1"), T.alloc((64, 64), "f32")
            T.clear(c)
            for k in T.Pipelined(K // depth, num_stages=stages):
                T.copy(a, A[by * 64, k * depth])
                T.copy(b, B[bx * 64, k * depth])
                if by_hand:
                    for i, j in T.Parallel(depth, 64):
                        t[i, j] = b[j, i]
                    T.gemm(a, t, c)
                else:
                    T.gemm(a, b, c, transpose_B=True)
            T.copy(C[by * 64, bx * 64], c)

    return product


def normalised(in_phases, R=12288, C=2048):
    """Rows less their mean: two phases that load the rows each, or one."""

    @T.program
    def less_mean(X: T.Tensor((R, C), "f16"), M: T.Tensor((R,), "f32"), Y: T.Tensor((R, C), "f16")):
        with T.Kernel(block=R // 4, threads=128) as b:
            with T.Scale("block"):
                x, m = T.alloc((4, C), "f32"), T.alloc((4,), "f32")
                T.copy(x, X[b * 4, 0])
                T.reduce_sum(x, m, dim=1)
                if in_phases:
                    T.copy(M[b * 4], m)
                else:
                    for i, j in T.Parallel(4, C):
                        x[i, j] = x[i, j] - m[i] * 0.001
                    T.copy(Y[b * 4, 0], x)
            if in_phases:
                with T.Scale("block"):
                    z, s = T.alloc((4, C), "f32"), T.alloc((4,), "f32")
                    T.copy(z, X[b * 4, 0])
                    T.copy(s, M[b * 4])
                    for i, j in T.Parallel(4, C):
                        z[i, j] = z[i, j] - s[i] * 0.001
                    T.copy(Y[b * 4, 0], z)

    return less_mean


def largest(again, rows=4096, n=2048, count=8):
    """The largest elements of each row: the row is loaded for each of them, or once."""

    @T.program
    def chosen(X: T.Tensor((rows, n), "f32"), Y: T.Tensor((rows, count), "f32")):
        with T.Kernel(block=rows // 2, threads=128) as b:
            x, m, y = T.alloc((2, n), "f32"), T.alloc((2,), "f32"), T.alloc((2, count), "f32")
            T.fill(m, 1e30)
            if not again:
                T.copy(x, X[b * 2, 0])
            for q in T.serial(count):
                if again:
                    T.copy(x, X[b * 2, 0])
                for i, j in T.Parallel(2, n):
                    x[i, j] = T.if_then_else(x[i, j] < m[i], x[i, j], -1e30)
                T.reduce_max(x, m, dim=1)
                for i in T.Parallel(2):
                    y[i, q] = m[i]
            T.copy(Y[b * 2, 0], y)

    return chosen


def long_cache(parts, sequences=8, length=8192, dim=128):
    """One token against a long cache: a block for each sequence, or for parts of it."""
    each = length // parts

    @T.program
    def decoded(
        Q: T.Tensor((sequences, 16, dim), "f16"),
        K: T.Tensor((sequences, length, dim), "f16"),
        O: T.Tensor((sequences, 16, dim), "f32"),
    ):
        with T.Kernel(block=(parts, sequences), threads=128) as (p, b):
            q, k = T.alloc((16, dim), "f16", level="l1"), T.alloc((64, dim), "f16", level="l1")
            s, w, o = T.alloc((16, 64), "f32"), T.alloc((16, 64), "f16"), T.alloc((16, dim), "f32")
            T.copy(q, Q[b, 0:16, 0:dim])
            T.clear(o)
            for j in T.Pipelined(each // 64, num_stages=3):
                T.copy(k, K[b, p * each + j * 64, 0])
                T.gemm(q, k, s, transpose_B=True, clear_accum=True)
                T.copy(w, s)
                T.gemm(w, k, o)
            T.atomic_add(O[b, 0:16, 0:dim], o)

    return decoded


def running_sums(one_by_one, rows=1056, n=128):
    """Sums of all elements up to each: in a serial loop, or by `T.cumsum`."""

    @T.program
    def summed(X: T.Tensor((rows, n), "f32"), Y: T.Tensor((rows, n), "f32")):
        with T.Kernel(block=rows // 8, threads=128) as b:
            x = T.alloc((8, n), "f32")
            T.copy(x, X[b * 8, 0])
            if one_by_one:
                for j in T.serial(n - 1):
                    for i in T.Parallel(8):
                        x[i, j + 1] = x[i, j + 1] + x[i, j]
            else:
                T.cumsum(x, dim=1)
            T.copy(Y[b * 8, 0], x)

    return summed


def shifted(parts, n=4096, units=8):
    """A `tl` kernel that passes its elements on in small messages."""
    each = n // parts

    def kernel(x_ptr, y_ptr, tl):
        first = tl.program_id(0) * n * 2
        for c in range(parts):
            tl.send(dir="E", src=tl.load(x_ptr + first + c * each * 2, shape=(each,), dtype="f16"))
            tl.store(y_ptr + first + c * each * 2, tl.recv(dir="W", shape=(each,), dtype="f16"))

    return tl.read_kernel(
        kernel, [tl.Tensor("x", (n,)), tl.Tensor("y", (n,))], world_size=units, topology="ring_1d"
    )


def one_field(of_records, n=1 << 20):
    """One of four fields: in records of four, or in an array of its own."""

    @T.program
    def roots(P: T.Tensor((n, 4) if of_records else (4, n), "f32"), Y: T.Tensor((n,), "f32")):
        with T.Kernel(block=n // 1024, threads=128) as b:
            y = T.alloc((1024,), "f32")
            if of_records:
                p = T.alloc((1024, 4), "f32")
                T.copy(p, P[b * 1024, 0])
                for i in T.Parallel(1024):
                    y[i] = T.sqrt(p[i, 0])
            else:
                T.copy(y, P[0, b * 1024 : b * 1024 + 1024])
                for i in T.Parallel(1024):
                    y[i] = T.sqrt(y[i])
            T.copy(Y[b * 1024], y)

    return roots


def in_steps(phases, R=8192, C=2048):
    """Elementwise steps as phases that go over the rows in other orders, or as one."""
    tensor = T.Tensor((R, C), "f32")

    @T.program
    def computed(X: tensor, A: tensor, B: tensor, Y: tensor):
        with T.Kernel(block=R // 4, threads=128) as b:

            def phase(to, source, row, factor):
                with T.Scale("block"):
                    x = T.alloc((4, C), "f32")
                    T.copy(x, source[row * 4, 0])
                    for i, j in T.Parallel(4, C):
                        x[i, j] = x[i, j] * factor
                    T.copy(to[row * 4, 0], x)

            if phases:
                phase(A, X, b, 2.0)
                phase(B, A, R // 4 - 1 - b, 3.0)
                phase(Y, B, b, 5.0)
            else:
                phase(Y, X, b, 30.0)

    return computed


def fetched(again, n=512, steps=16):
    """A `tl` kernel whose units take the weights of unit 0 in every step, or once."""

    def kernel(w_ptr, x_ptr, tl):
        weight = tl.load(w_ptr, shape=(n,), dtype="f16")
        for s in range(steps):
            if again:
                weight = tl.load(w_ptr, shape=(n,), dtype="f16")
            here = x_ptr + (tl.program_id(0) * steps + s) * n * 2
            tl.store(here, tl.load(here, shape=(n,), dtype="f16") * weight)

    tensors = [tl.Tensor("w", (n,)), tl.Tensor("x", (n * steps,))]
    return tl.read_kernel(kernel, tensors, world_size=16, topology="ring_1d", machine="cerebras-wse2")


def squared(in_turn, batch=6, n=512):
    """The square of every matrix times it again: matrix after matrix, or blocks for all of them at once."""

    @T.program
    def cubes(
        X: T.Tensor((batch, n, n), "f16"),
        Y: T.Tensor((batch, n, n), "f16"),
        Z: T.Tensor((batch, n, n), "f16"),
    ):
        def product(left, right, out, g, bx, by):
            a = T.alloc((128, 64), "f16", level="l1")
            b = T.alloc((64, 128), "f16", level="l1")
            c = T.alloc((128, 128), "f32", level="l0")
            T.clear(c)
            for k in T.Pipelined(n // 64, num_stages=3):
                T.copy(a, left[g, by * 128, k * 64])
                T.copy(b, right[g, k * 64, bx * 128])
                T.gemm(a, b, c)
            T.copy(out[g, by * 128, bx * 128], c)

        grid = (n // 128, n // 128) if in_turn else (n // 128, n // 128, batch)
        with T.Kernel(block=grid, threads=256) as (bx, by, *rest):
            if in_turn:
                for g in T.serial(batch):
                    with T.Scale("block"):
                        product(X, X, Y, g, bx, by)
                    with T.Scale("block"):
                        product(Y, X, Z, g, bx, by)
            else:
                with T.Scale("block"):
                    product(X, X, Y, rest[0], bx, by)
                with T.Scale("block"):
                    product(Y, X, Z, rest[0], bx, by)

    return cubes


PAIRS = {
    "matrices in turn": ("serial loop", squared(True), squared(False), "dgx-h100"),
    "weights expanded by a phase": ("intermediate tensor", expanded(True), expanded(False), "dgx-h100"),
    "an atomic for each row": ("repeated atomics", column_sums(True), column_sums(False), "mi300x-8"),
    "atomics of elements in each step": (
        "repeated atomics",
        added_elements(True),
        added_elements(False),
        "hgx-a100",
    ),
    "turned element by element": ("transposed by hand", turned(True), turned(False), "hgx-a100"),
    "rows loaded by two phases": ("round trip", normalised(True), normalised(False), "hgx-a100"),
    "a row for each maximum": ("repeated loads", largest(True), largest(False), "mi300x-8"),
    "one field of records": ("unused bytes", one_field(True), one_field(False), "hgx-a100"),
    "three phases": ("intermediate tensor", in_steps(True), in_steps(False), "hgx-a100"),
    "tl: weights from unit 0": ("repeated loads", fetched(True), fetched(False), "cerebras-wse2"),
    "running sums one by one": ("serial loop", running_sums(True), running_sums(False), "dgx-h100"),
    "tl: 64 small messages": ("small messages", shifted(64), shifted(1), "ahbm"),
    "a block for a long cache": ("too few blocks", long_cache(1), long_cache(16), "dgx-h100"),
}
"""By the waste: the finding it should lead to, the slow program, its twin, and the machine."""
