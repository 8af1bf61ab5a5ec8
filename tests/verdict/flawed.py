"""Pairs of kernels: one with a single flaw, and its twin without it.

Each was written as the textbook kernel first; then one thing was made worse in the source.
"""

import megatile.language as T


def gemm(M, N, K, bM=128, bN=128, bK=64, stages=3, threads=128, dtype="f16", panel=0, accumulate="f32"):
    @T.program
    def product(A: T.Tensor((M, K), dtype), B: T.Tensor((K, N), dtype), C: T.Tensor((M, N), dtype)):
        with T.Kernel(block=(T.ceildiv(N, bN), T.ceildiv(M, bM)), threads=threads) as (bx, by):
            a = T.alloc((bM, bK), dtype, level="l1")
            b = T.alloc((bK, bN), dtype, level="l1")
            c = T.alloc((bM, bN), accumulate, level="l0")
            if panel:
                T.use_swizzle(panel)
            T.clear(c)
            for k in T.Pipelined(T.ceildiv(K, bK), num_stages=stages):
                T.copy(a, A[by * bM, k * bK])
                T.copy(b, B[k * bK, bx * bN])
                T.gemm(a, b, c)
            T.copy(C[by * bM, bx * bN], c)

    return product


def plain_gemm(grouped=False, stages=3):
    """A product with its sizes as numbers, so that nobody can make it again with others: 28 672 columns do
    not fit the cache."""

    @T.program
    def product(
        A: T.Tensor((2048, 1024), "f16"), B: T.Tensor((1024, 28672), "f16"), C: T.Tensor((2048, 28672), "f16")
    ):
        with T.Kernel(block=(112, 16), threads=256) as (x, y):
            a = T.alloc((128, 64), "f16", level="l1")
            b = T.alloc((64, 256), "f16", level="l1")
            c = T.alloc((128, 256), "f32", level="l0")
            bx, by = x, y
            if grouped:  # Triton's grouped order: eight rows at a time
                number = y * 112 + x
                by = number // 896 * 8 + number % 8
                bx = number % 896 // 8
            T.clear(c)
            for k in T.Pipelined(16, num_stages=stages):
                T.copy(a, A[by * 128, k * 64])
                T.copy(b, B[k * 64, bx * 256])
                T.gemm(a, b, c)
            T.copy(C[by * 128, bx * 256], c)

    return product


def transpose(padded=False, n=4096):
    pitch = 65 if padded else 64

    @T.program
    def turned(X: T.Tensor((n, n), "f32"), Y: T.Tensor((n, n), "f32")):
        with T.Kernel(block=(n // 64, n // 64), threads=256) as (bx, by):
            tile = T.alloc((64, pitch), "f32", level="l1")
            out = T.alloc((64, 64), "f32", level="l0")
            T.copy(tile[0:64, 0:64], X[by * 64, bx * 64])
            for i, j in T.Parallel(64, 64):
                out[i, j] = tile[j, i]
            T.copy(Y[bx * 64, by * 64], out)

    return turned


def column_sums(width=8, n=4096):
    """Every block sums a strip of columns; strips of two columns waste the sectors of device memory."""

    @T.program
    def sums(X: T.Tensor((n, n), "f32"), Y: T.Tensor((n,), "f32")):
        with T.Kernel(block=n // width, threads=256) as bx:
            part = T.alloc((256, width), "f32")
            total = T.alloc((width,), "f32")
            T.clear(total)
            for k in T.Pipelined(n // 256, num_stages=2):
                T.copy(part, X[k * 256, bx * width])
                T.reduce_sum(part, total, dim=0, clear=False)
            T.copy(Y[bx * width], total)

    return sums


def scaled(columns=False, n=2048):
    """A matrix doubled in place of its tensor; lanes along a column take a sector each."""

    @T.program
    def doubled(X: T.Tensor((n, n), "f32"), Y: T.Tensor((n, n), "f32")):
        with T.Kernel(block=(n // 64, n // 64), threads=256) as (bx, by):
            y = T.alloc((64, 64), "f32")
            if columns:
                for j, i in T.Parallel(64, 64):
                    y[i, j] = X[by * 64 + i, bx * 64 + j] * 2.0
            else:
                T.copy(y, X[by * 64, bx * 64])
                for i, j in T.Parallel(64, 64):
                    y[i, j] = y[i, j] * 2.0
            T.copy(Y[by * 64, bx * 64], y)

    return doubled


def transposed(tile=True, n=2048, b=64):
    """A transpose straight between tensors in memory, or by a tile in shared memory."""

    @T.program
    def turned(X: T.Tensor((n, n), "f32"), Y: T.Tensor((n, n), "f32")):
        with T.Kernel(block=(n // b, n // b), threads=256) as (bx, by):
            if tile:
                x, y = T.alloc((b, b + 1), "f32", level="l1"), T.alloc((b, b + 1), "f32", level="l1")
                T.copy(x[:, 0:b], X[by * b : by * b + b, bx * b : bx * b + b])
                for i, j in T.Parallel(b, b):
                    y[j, i] = x[i, j]
                T.copy(Y[bx * b : bx * b + b, by * b : by * b + b], y[:, 0:b])
            else:
                for i, j in T.Parallel(b, b):
                    Y[bx * b + j, by * b + i] = X[by * b + i, bx * b + j]

    return turned


def atomic_total(each=True, n=1 << 20):
    """A sum to which every element is added, or every block's part."""

    @T.program
    def total(X: T.Tensor((n,), "f32"), Y: T.Tensor((1,), "f32")):
        with T.Kernel(block=n // 4096, threads=256) as b:
            x, s = T.alloc((4096,), "f32"), T.alloc((1,), "f32")
            T.copy(x, X[b * 4096])
            if each:
                for i in T.Parallel(4096):
                    T.atomic_add(Y[0], x[i])
            else:
                T.reduce_sum(x, s, dim=0)
                T.atomic_add(Y[0], s[0])

    return total


def softmax(passes=3, rows=2048, n=8192, step=1024):
    """Rows that are loaded for their maximum, for their sum and for the result; or once, into a tile."""

    @T.program
    def normalised(X: T.Tensor((rows, n), "f32"), Y: T.Tensor((rows, n), "f32")):
        with T.Kernel(block=rows, threads=256) as b:
            m, s = T.alloc((1,), "f32"), T.alloc((1,), "f32")
            if passes == 1:
                x = T.alloc((1, n), "f32")
                T.copy(x, X[b, 0])
                T.reduce_max(x, m, dim=1)
                for i, j in T.Parallel(1, n):
                    x[i, j] = T.exp(x[i, j] - m[i])
                T.reduce_sum(x, s, dim=1)
                for i, j in T.Parallel(1, n):
                    x[i, j] = x[i, j] / s[i]
                T.copy(Y[b, 0], x)
            else:
                x = T.alloc((1, step), "f32")
                T.fill(m, -T.infinity("f32"))
                T.clear(s)
                for k in T.Pipelined(n // step, num_stages=4):
                    T.copy(x, X[b, k * step])
                    T.reduce_max(x, m, dim=1, clear=False)
                for k in T.serial(n // step):
                    T.copy(x, X[b, k * step])
                    for i, j in T.Parallel(1, step):
                        x[i, j] = T.exp(x[i, j] - m[i])
                    T.reduce_sum(x, s, dim=1, clear=False)
                for k in T.serial(n // step):
                    T.copy(x, X[b, k * step])
                    for i, j in T.Parallel(1, step):
                        x[i, j] = T.exp(x[i, j] - m[i]) / s[i]
                    T.copy(Y[b, k * step], x)

    return normalised


def squares(fused=False, rows=4096, n=4096):
    """x² + 1, by way of device memory or not."""

    @T.program
    def plus(X: T.Tensor((rows, n), "f32"), W: T.Tensor((rows, n), "f32"), Y: T.Tensor((rows, n), "f32")):
        with T.Kernel(block=rows, threads=256) as b:
            x = T.alloc((1, n), "f32")
            T.copy(x, X[b, 0])
            for i, j in T.Parallel(1, n):
                x[i, j] = x[i, j] * x[i, j]
            if not fused:
                T.copy(W[b, 0], x)
                T.copy(x, W[b, 0])
            for i, j in T.Parallel(1, n):
                x[i, j] = x[i, j] + 1.0
            T.copy(Y[b, 0], x)

    return plus


def accumulated(in_tile=False, M=1024, N=1024, K=1024):
    """A product whose result every step loads and stores, or keeps."""

    @T.program
    def product(A: T.Tensor((M, K), "f16"), B: T.Tensor((K, N), "f16"), C: T.Tensor((M, N), "f32")):
        with T.Kernel(block=(N // 64, M // 64), threads=128) as (bx, by):
            a, b = T.alloc((64, 64), "f16", level="l1"), T.alloc((64, 64), "f16", level="l1")
            c = T.alloc((64, 64), "f32", level="l0")
            if in_tile:
                T.copy(c, C[by * 64, bx * 64])
            for k in T.serial(K // 64):
                if not in_tile:
                    T.copy(c, C[by * 64, bx * 64])
                T.copy(a, A[by * 64, k * 64])
                T.copy(b, B[k * 64, bx * 64])
                T.gemm(a, b, c)
                if not in_tile:
                    T.copy(C[by * 64, bx * 64], c)
            if in_tile:
                T.copy(C[by * 64, bx * 64], c)

    return product


def elements(serial=False, n=1 << 14, each=512):
    """Elements of a tile one after the other, or all at once."""

    @T.program
    def moved(X: T.Tensor((n,), "f32"), Y: T.Tensor((n,), "f32")):
        with T.Kernel(block=n // each, threads=128) as b:
            x = T.alloc((each,), "f32")
            T.copy(x, X[b * each])
            if serial:
                for i in T.serial(each):
                    x[i] = x[i] * 2.0 + 1.0
            else:
                for i in T.Parallel(each):
                    x[i] = x[i] * 2.0 + 1.0
            T.copy(Y[b * each], x)

    return moved


def streamed(dtype, n=1 << 24, source=None):
    """A vector doubled, as fast as memory goes."""
    source = source or dtype

    @T.program
    def doubled(X: T.Tensor((n,), source), Y: T.Tensor((n,), dtype)):
        with T.Kernel(block=n // 8192, threads=256) as b:
            x = T.alloc((8192,), dtype)
            T.copy(x, X[b * 8192])
            for i in T.Parallel(8192):
                x[i] = x[i] * 2.0
            T.copy(Y[b * 8192], x)

    return doubled


def gelu(rows=16, n=8192):
    """Elementwise work on a tile in registers; a tall one leaves room for a single block."""

    @T.program
    def activated(X: T.Tensor((n, 256), "f32"), Y: T.Tensor((n, 256), "f32")):
        with T.Kernel(block=n // rows, threads=256) as bx:
            x = T.alloc((rows, 256), "f32")
            T.copy(x, X[bx * rows, 0])
            for i, j in T.Parallel(rows, 256):
                x[i, j] = x[i, j] * T.sigmoid(1.702 * x[i, j])
            T.copy(Y[bx * rows, 0], x)

    return activated


def serial_total(blocks=1, n=1 << 22):
    @T.program
    def total(X: T.Tensor((n,), "f32"), Y: T.Tensor((blocks,), "f32")):
        with T.Kernel(block=blocks, threads=256) as bx:
            x = T.alloc((4096,), "f32")
            s = T.alloc((1,), "f32")
            T.clear(s)
            for k in T.Pipelined(n // 4096 // blocks, num_stages=2):
                T.copy(x, X[(bx * (n // 4096 // blocks) + k) * 4096])
                T.reduce_sum(x, s, dim=0, clear=False)
            T.copy(Y[bx], s)

    return total


def attention(longest_first=True, reload=False, seq=8192, heads=2, dim=128, stages=2, bM=128, bN=128):
    @T.program
    def forward(
        Q: T.Tensor((heads, seq, dim), "f16"),
        K: T.Tensor((heads, seq, dim), "f16"),
        V: T.Tensor((heads, seq, dim), "f16"),
        O: T.Tensor((heads, seq, dim), "f16"),
    ):
        with T.Kernel(block=(heads, seq // bM), threads=256) as (h, y):
            q = T.alloc((bM, dim), "f16", level="l1")
            key = T.alloc((bN, dim), "f16", level="l1")
            value = T.alloc((bN, dim), "f16", level="l1")
            score = T.alloc((bM, bN), "f32")
            weight = T.alloc((bM, bN), "f16")
            out = T.alloc((bM, dim), "f32")
            row = seq // bM - 1 - y if longest_first else y
            if not reload:
                T.copy(q, Q[h, row * bM, 0])
            T.clear(out)
            for k in T.Pipelined((row + 1) * bM // bN, num_stages=stages):
                if reload:
                    T.copy(q, Q[h, row * bM, 0])
                T.copy(key, K[h, k * bN, 0])
                T.copy(value, V[h, k * bN, 0])
                T.gemm(q, key, score, transpose_B=True, clear_accum=True)
                for i, j in T.Parallel(bM, bN):
                    score[i, j] = T.exp2(score[i, j])
                T.copy(weight, score)
                T.gemm(weight, value, out)
            T.copy(O[h, row * bM, 0], out)

    return forward


def split_k(parts=1, M=2048, N=2048, K=2048, bM=128, bN=128, bK=64):
    each = K // parts

    @T.program
    def product(A: T.Tensor((M, K), "f16"), B: T.Tensor((K, N), "f16"), C: T.Tensor((M, N), "f32")):
        with T.Kernel(block=(N // bN, M // bM, parts), threads=256) as (bx, by, bz):
            a = T.alloc((bM, bK), "f16", level="l1")
            b = T.alloc((bK, bN), "f16", level="l1")
            c = T.alloc((bM, bN), "f32", level="l0")
            T.clear(c)
            for k in T.Pipelined(each // bK, num_stages=3):
                T.copy(a, A[by * bM, bz * each + k * bK])
                T.copy(b, B[bz * each + k * bK, bx * bN])
                T.gemm(a, b, c)
            if parts > 1:
                T.atomic_add(C[by * bM, bx * bN], c)
            else:
                T.copy(C[by * bM, bx * bN], c)

    return product


def converted(wide=True, M=2048, N=2048, K=1024, bM=128, bN=128, bK=128, loaded="f8e4m3"):
    """A product of f8 tiles, or of the same tiles converted to f16 (or loaded as such)."""

    @T.program
    def kernel(A: T.Tensor((M, K), "f8e4m3"), B: T.Tensor((K, N), "f8e4m3"), C: T.Tensor((M, N), "f16")):
        with T.Kernel(block=(N // bN, M // bM), threads=256) as (bx, by):
            a = T.alloc((bM, bK), loaded, level="l1")
            b = T.alloc((bK, bN), loaded, level="l1")
            if wide:
                a16 = T.alloc((bM, bK), "f16", level="l1")
                b16 = T.alloc((bK, bN), "f16", level="l1")
            c = T.alloc((bM, bN), "f32", level="l0")
            T.clear(c)
            for k in T.Pipelined(K // bK, num_stages=3):
                T.copy(a, A[by * bM, k * bK])
                T.copy(b, B[k * bK, bx * bN])
                if wide:
                    T.copy(a16, a)
                    T.copy(b16, b)
                    T.gemm(a16, b16, c)
                else:
                    T.gemm(a, b, c)
            T.copy(C[by * bM, bx * bN], c)

    return kernel


def scalar_product(tensor_cores=False, M=1024, N=1024, K=1024, bM=64, bN=64, bK=32):
    """A product written as elementwise multiply and sum, or by T.gemm."""

    @T.program
    def product(A: T.Tensor((M, K), "f16"), B: T.Tensor((K, N), "f16"), C: T.Tensor((M, N), "f32")):
        with T.Kernel(block=(N // bN, M // bM), threads=128) as (bx, by):
            a = T.alloc((bM, bK), "f16", level="l1")
            b = T.alloc((bK, bN), "f16", level="l1")
            c = T.alloc((bM, bN), "f32", level="l0")
            T.clear(c)
            for k in T.Pipelined(K // bK, num_stages=3):
                T.copy(a, A[by * bM, k * bK])
                T.copy(b, B[k * bK, bx * bN])
                if tensor_cores:
                    T.gemm(a, b, c)
                else:
                    for q in T.serial(bK):
                        for i, j in T.Parallel(bM, bN):
                            c[i, j] += T.cast(a[i, q], "f32") * T.cast(b[q, j], "f32")
            T.copy(C[by * bM, bx * bN], c)

    return product


PAIRS = {
    "row-major blocks": ("block order", plain_gemm(), plain_gemm(grouped=True)),
    "one stage": ("pipeline stages", gemm(2048, 2048, 1024, stages=1), gemm(2048, 2048, 1024)),
    "one stage, sizes fixed": ("pipeline stages", plain_gemm(True, stages=1), plain_gemm(True)),
    "tiles of 16": ("small tile", gemm(1024, 1024, 1024, 16, 16, 128), gemm(1024, 1024, 1024, bK=128)),
    "steps of 8 along K": ("small tile", gemm(2048, 2048, 1024, bK=8), gemm(2048, 2048, 1024)),
    "1.03 waves": (
        "tail wave",
        gemm(128 * 17, 256 * 8, 1024, 128, 256, threads=256),
        gemm(128 * 17, 256 * 8, 1024, 192, 192, threads=256),
    ),
    "columns of a tile": ("bank conflicts", transpose(n=2048), transpose(True, n=2048)),
    "strips of two columns": ("uncoalesced access", column_sums(2, n=2048), column_sums(8, n=2048)),
    "transposed without a tile": ("uncoalesced access", transposed(False), transposed(True)),
    "lanes along a column": ("uncoalesced access", scaled(True), scaled()),
    "every element to one address": ("contended atomics", atomic_total(), atomic_total(False)),
    "one element at a time": ("serial loop", elements(True, n=1 << 12), elements(n=1 << 12)),
    "a stream of f32": ("wide tensors", streamed("f32"), streamed("f16")),
    "rows loaded three times": ("repeated loads", softmax(rows=264), softmax(1, rows=264)),
    "stored and loaded again": ("round trip", squares(), squares(True)),
    "accumulated in memory": ("round trip", accumulated(), accumulated(True)),
    "tall tile in registers": ("tail wave", gelu(128, 24576), gelu(16, 24576)),
    "short blocks first": (
        "block balance",
        attention(False, heads=8, seq=3072),
        attention(heads=8, seq=3072),
    ),
    "queries loaded again": (
        "repeated loads",
        attention(reload=True, heads=8, seq=3072, bM=64, bN=64),
        attention(heads=8, seq=3072, bM=64, bN=64),
    ),
    "f32 operands": ("wide operands", gemm(1024, 1024, 1024, dtype="f32", bK=32), gemm(1024, 1024, 1024)),
    "product by hand": (
        "wrong engine",
        scalar_product(M=256, N=256, K=256),
        scalar_product(True, M=256, N=256, K=256),
    ),
    "split 16 ways": ("split reduction", split_k(16, 1024, 1024, 1024), split_k(1, 1024, 1024, 1024)),
    "one block": ("too few blocks", serial_total(n=1 << 20), serial_total(128, n=1 << 20)),
    "f8 converted to f16": ("widened operands", converted(), converted(False)),
    "f8 loaded as f16": ("widened operands", converted(False, loaded="f16"), converted(False)),
}
"""By what was made worse: the finding it should lead to, the slow program and its twin."""
