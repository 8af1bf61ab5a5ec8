"""More pairs of kernels, each with one careless mistake, and its twin: needless work, wrong places, waits."""

import megatile.language as T
from megatile.language import tl


def attention(skip, seq=1024, heads=64, dim=64, rows=128):
    """Causal attention that computes all tiles and masks, or leaves those out that the mask covers."""

    @T.program
    def forward(
        Q: T.Tensor((heads, seq, dim), "f16"),
        K: T.Tensor((heads, seq, dim), "f16"),
        O: T.Tensor((heads, seq, dim), "f16"),
    ):
        with T.Kernel(block=(heads, seq // rows), threads=256) as (h, y):
            q = T.alloc((rows, dim), "f16", level="l1")
            k = T.alloc((rows, dim), "f16", level="l1")
            score, weight = T.alloc((rows, rows), "f32"), T.alloc((rows, rows), "f16")
            out, row = T.alloc((rows, dim), "f32"), seq // rows - 1 - y
            T.copy(q, Q[h, row * rows, 0])
            T.clear(out)
            for j in T.Pipelined(row + 1 if skip else seq // rows, num_stages=2):
                T.copy(k, K[h, j * rows, 0])
                T.gemm(q, k, score, transpose_B=True, clear_accum=True)
                for a, b in T.Parallel(rows, rows):
                    seen = row * rows + a >= j * rows + b
                    score[a, b] = T.if_then_else(seen, score[a, b], -T.infinity("f32"))
                for a, b in T.Parallel(rows, rows):
                    score[a, b] = T.exp2(score[a, b])
                T.copy(weight, score)
                T.gemm(weight, k, out)
            T.copy(O[h, row * rows, 0], out)

    return forward


def jacobi(from_memory, n=1024):
    """A stencil that takes every neighbour from device memory, or from a tile with its edges."""

    @T.program
    def relaxed(X: T.Tensor((n + 2, n + 2), "f32"), Y: T.Tensor((n, n), "f32")):
        with T.Kernel(block=(n // 64, n // 64), threads=256) as (bx, by):
            y = T.alloc((64, 64), "f32")
            if from_memory:
                for i, j in T.Parallel(64, 64):
                    up, left = by * 64 + i, bx * 64 + j
                    y[i, j] = X[up, left + 1] + X[up + 2, left + 1] + X[up + 1, left] + X[up + 1, left + 2]
            else:
                x = T.alloc((66, 66), "f32", level="l1")
                T.copy(x, X[by * 64, bx * 64])
                for i, j in T.Parallel(64, 64):
                    y[i, j] = x[i, j + 1] + x[i + 2, j + 1] + x[i + 1, j] + x[i + 1, j + 2]
            T.copy(Y[by * 64, bx * 64], y)

    return relaxed


def product(by_rows=False, level="registers", M=1024, K=512):
    """A product that copies rows one by one, or with its last tile in device memory."""

    @T.program
    def activated(A: T.Tensor((M, K), "f16"), B: T.Tensor((K, M), "f16"), C: T.Tensor((M, M), "f16")):
        with T.Kernel(block=(M // 128, M // 128), threads=256) as (bx, by):
            a, b = T.alloc((128, 64), "f16", level="l1"), T.alloc((64, 128), "f16", level="l1")
            c, e = T.alloc((128, 128), "f32"), T.alloc((128, 128), "f32", level=level)
            T.clear(c)
            for k in T.Pipelined(K // 64, num_stages=3):
                if by_rows:
                    for r in T.serial(128):
                        T.copy(a[r, 0:64], A[by * 128 + r, k * 64 : k * 64 + 64])
                else:
                    T.copy(a, A[by * 128, k * 64])
                T.copy(b, B[k * 64, bx * 128])
                T.gemm(a, b, c)
            T.copy(e, c)
            for i, j in T.Parallel(128, 128):
                e[i, j] = T.max(e[i, j], 0.0)
            T.copy(C[by * 128, bx * 128], e)

    return activated


def two_layers(dtype, M=1024, H=1024, D=1024):
    """Two products; what goes from the first to the second is read as f16, whatever it is kept in."""

    @T.program
    def layers(
        X: T.Tensor((M, D), "f16"),
        V: T.Tensor((D, H), "f16"),
        W: T.Tensor((H, D), "f16"),
        U: T.Tensor((M, H), dtype),
        Y: T.Tensor((M, D), "f16"),
    ):
        with T.Kernel(block=(H // 64, M // 128), threads=256) as (bx, by):

            def part(left, right, out, steps):
                a, b = T.alloc((128, 64), "f16", level="l1"), T.alloc((64, 64), "f16", level="l1")
                c = T.alloc((128, 64), "f32")
                T.clear(c)
                for k in T.Pipelined(steps, num_stages=3):
                    T.copy(a, left[by * 128, k * 64])
                    T.copy(b, right[k * 64, bx * 64])
                    T.gemm(a, b, c)
                T.copy(out[by * 128, bx * 64], c)

            with T.Scale("block"):
                part(X, V, U, D // 64)
            with T.Scale("block"):
                part(U, W, Y, H // 64)

    return layers


def phases(two, n=1 << 24):
    """Two elementwise steps, with a tensor between them or not."""

    @T.program
    def stepped(X: T.Tensor((n,), "f16"), W: T.Tensor((n,), "f16"), Y: T.Tensor((n,), "f16")):
        with T.Kernel(block=n // 8192, threads=256) as b:
            with T.Scale("block"):
                x = T.alloc((8192,), "f16")
                T.copy(x, X[b * 8192])
                for i in T.Parallel(8192):
                    x[i] = x[i] * 2.0 if two else x[i] * 2.0 + 1.0
                T.copy((W if two else Y)[b * 8192], x)
            if two:
                with T.Scale("block"):
                    w = T.alloc((8192,), "f16")
                    T.copy(w, W[b * 8192])
                    for i in T.Parallel(8192):
                        w[i] = w[i] + 1.0
                    T.copy(Y[b * 8192], w)

    return stepped


def replicated(everywhere, M=2048, K=512, devices=4):
    """A product of which every device computes all, or its rows."""
    layout, rows = (T.Replica, M) if everywhere else (T.FullRow, M // devices)

    @T.program
    def layer(A: T.Tensor((M, K), "f16"), B: T.Tensor((K, M), "f16"), C: T.Tensor((M, M), "f16")):
        with T.Kernel(device=devices, block=(M // 128, rows // 128), threads=256) as (bx, by):
            with T.Scale("device"):
                left, out = T.view(A, layout=layout), T.view(C, layout=layout)
                right = T.view(B, layout=T.Replica)
            with T.Scale("block"):
                a, b = T.alloc((128, 64), "f16", level="l1"), T.alloc((64, 128), "f16", level="l1")
                c = T.alloc((128, 128), "f32")
                T.clear(c)
                for k in T.Pipelined(K // 64, num_stages=3):
                    T.copy(a, left[by * 128, k * 64])
                    T.copy(b, right[k * 64, bx * 128])
                    T.gemm(a, b, c)
                T.copy(out[by * 128, bx * 128], c)

    return layer


def padded(tile, seq=257, heads=128, dim=128):
    """Positions that are no multiple of the tile."""

    @T.program
    def scores(Q: T.Tensor((heads, seq, dim), "f16"), O: T.Tensor((heads, seq, dim), "f16")):
        with T.Kernel(block=(heads, T.ceildiv(seq, tile)), threads=256) as (h, y):
            q, k = T.alloc((tile, dim), "f16", level="l1"), T.alloc((tile, dim), "f16", level="l1")
            score, weight = T.alloc((tile, tile), "f32"), T.alloc((tile, tile), "f16")
            out = T.alloc((tile, dim), "f32")
            T.copy(q, Q[h, y * tile, 0])
            T.clear(out)
            for j in T.Pipelined(T.ceildiv(seq, tile), num_stages=2):
                T.copy(k, Q[h, j * tile, 0])
                T.gemm(q, k, score, transpose_B=True, clear_accum=True)
                T.copy(weight, score)
                T.gemm(weight, k, out)
            T.copy(O[h, y * tile, 0], out)

    return scores


def windowed(everything, seq=2048, window=256, heads=8, dim=64, rows=128):
    """Attention over a window, by all tiles before the diagonal or by those of the window."""

    @T.program
    def forward(Q: T.Tensor((heads, seq, dim), "f16"), O: T.Tensor((heads, seq, dim), "f16")):
        with T.Kernel(block=(heads, seq // rows), threads=256) as (h, y):
            q, k = T.alloc((rows, dim), "f16", level="l1"), T.alloc((rows, dim), "f16", level="l1")
            score, weight = T.alloc((rows, rows), "f32"), T.alloc((rows, rows), "f16")
            out = T.alloc((rows, dim), "f32")
            first = 0 if everything else T.max(0, y - window // rows)
            T.copy(q, Q[h, y * rows, 0])
            T.clear(out)
            for step in T.Pipelined(y + 1 - first, num_stages=2):
                T.copy(k, Q[h, (step + first) * rows, 0])
                T.gemm(q, k, score, transpose_B=True, clear_accum=True)
                for a, b in T.Parallel(rows, rows):
                    apart = y * rows + a - (step + first) * rows - b
                    score[a, b] = T.if_then_else((apart >= 0) & (apart < window), score[a, b], 0.0)
                T.copy(weight, score)
                T.gemm(weight, k, out)
            T.copy(O[h, y * rows, 0], out)

    return forward


def stored(every_step, M=1024, K=1024):
    """A product that stores its result in every step, or at the end."""

    @T.program
    def product(A: T.Tensor((M, K), "f16"), B: T.Tensor((K, M), "f16"), C: T.Tensor((M, M), "f32")):
        with T.Kernel(block=(M // 64, M // 64), threads=128) as (bx, by):
            a, b = T.alloc((64, 64), "f16", level="l1"), T.alloc((64, 64), "f16", level="l1")
            c = T.alloc((64, 64), "f32")
            T.clear(c)
            for k in T.Pipelined(K // 64, num_stages=3):
                T.copy(a, A[by * 64, k * 64])
                T.copy(b, B[k * 64, bx * 64])
                T.gemm(a, b, c)
                if every_step:
                    T.copy(C[by * 64, bx * 64], c)
            if not every_step:
                T.copy(C[by * 64, bx * 64], c)

    return product


def experts(in_turn, count=8, tokens=512, n=512):
    """A product for each expert, one after the other or side by side."""
    tiles = (n // 128, tokens // 128)

    @T.program
    def products(
        X: T.Tensor((count, tokens, n), "f16"),
        W: T.Tensor((count, n, n), "f16"),
        Y: T.Tensor((count, tokens, n), "f16"),
    ):
        with T.Kernel(block=tiles if in_turn else (*tiles, count), threads=256) as (bx, by, *at):
            a, b = T.alloc((128, 64), "f16", level="l1"), T.alloc((64, 128), "f16", level="l1")
            c = T.alloc((128, 128), "f32")

            def product(e):
                T.clear(c)
                for k in T.Pipelined(n // 64, num_stages=3):
                    T.copy(a, X[e, by * 128, k * 64])
                    T.copy(b, W[e, k * 64, bx * 128])
                    T.gemm(a, b, c)
                T.copy(Y[e, by * 128, bx * 128], c)

            if in_turn:
                for e in T.serial(count):
                    product(e)
            else:
                product(at[0])

    return products


def row_sums(at_once, rows=128, n=4096, parts=16):
    """Sums of parts of rows, then of these: by the first block alone, or by all."""

    @T.program
    def sums(X: T.Tensor((rows, n), "f32"), P: T.Tensor((rows, parts), "f32"), Y: T.Tensor((rows,), "f32")):
        with T.Kernel(block=rows, threads=256) as b:

            def last(row):
                part, total = T.alloc((1, parts), "f32"), T.alloc((1,), "f32")
                T.copy(part, P[row : row + 1, 0:parts])
                T.reduce_sum(part, total, dim=1)
                T.copy(Y[row : row + 1], total)

            with T.Scale("block"):
                x, s = T.alloc((1, n // parts), "f32"), T.alloc((1,), "f32")
                for i in T.Pipelined(parts, num_stages=2):
                    T.copy(x, X[b : b + 1, i * (n // parts) : (i + 1) * (n // parts)])
                    T.reduce_sum(x, s, dim=1)
                    T.copy(P[b, i : i + 1], s)
            with T.Scale("block"):
                if at_once:
                    last(b)
                elif b == 0:
                    for r in T.serial(rows):
                        last(r)

    return sums


def weighted(again, rows=32, n=2048):
    """A `tl` kernel that loads its weights for every row, or once."""

    def kernel(x_ptr, w_ptr, y_ptr, tl):
        me = tl.program_id(0)
        weights = [tl.load(w_ptr + (me * 4 + i) * n * 2, shape=(n,), dtype="f16") for i in range(4)]
        for r in range(rows):
            if again:
                weights = [tl.load(w_ptr + (me * 4 + i) * n * 2, shape=(n,), dtype="f16") for i in range(4)]
            x = tl.load(x_ptr + (me * rows + r) * n * 2, shape=(n,), dtype="f16")
            for w in weights:
                x = x * w
            tl.store(y_ptr + (me * rows + r) * n * 2, x)

    tensors = [tl.Tensor("x", (rows * n,)), tl.Tensor("w", (4 * n,)), tl.Tensor("y", (rows * n,))]
    return tl.read_kernel(kernel, tensors, world_size=8)


def stepped(step, n=16384):
    """A `tl` kernel that loads and stores few elements at a time."""

    def kernel(x_ptr, y_ptr, tl):
        first = tl.program_id(0) * n
        for i in range(n // step):
            x = tl.load(x_ptr + (first + i * step) * 2, shape=(step,), dtype="f16")
            tl.store(y_ptr + (first + i * step) * 2, tl.exp(x))

    return tl.read_kernel(kernel, [tl.Tensor("x", (n,)), tl.Tensor("y", (n,))], world_size=8)


def squared(again, n=8192):
    """A `tl` kernel that stores a tile and loads it again."""

    def kernel(x_ptr, y_ptr, tl):
        first = tl.program_id(0) * n * 2
        x = tl.load(x_ptr + first, shape=(n,), dtype="f16")
        z = x * x
        if again:
            tl.store(y_ptr + first, z)
            z = tl.load(y_ptr + first, shape=(n,), dtype="f16")
        tl.store(y_ptr + first, z + x)

    return tl.read_kernel(kernel, [tl.Tensor("x", (n,)), tl.Tensor("y", (n,))], world_size=8)


PAIRS = {
    "tiles above the diagonal": ("masked work", attention(False), attention(True), "dgx-h100"),
    "neighbours from memory": ("repeated loads", jacobi(True), jacobi(False), "dgx-h100"),
    "rows one by one": ("small copies", product(by_rows=True), product(), "dgx-h100"),
    "a tile in device memory": ("far tile", product(level="hbm"), product(), "dgx-h100"),
    "f32 between layers": ("wider than read", two_layers("f32"), two_layers("f16"), "dgx-h100"),
    "a phase for each step": ("round trip", phases(True), phases(False), "dgx-h100"),
    "the same on every device": ("duplicate work", replicated(True), replicated(False), "dgx-h100"),
    "all keys for a window": ("masked work", windowed(True), windowed(False), "dgx-h100"),
    "stored in every step": ("repeated stores", stored(True), stored(False), "dgx-h100"),
    "the last sums by one block": ("few blocks in a phase", row_sums(False), row_sums(True), "dgx-h100"),
    "experts in turn": ("too few blocks", experts(True), experts(False), "dgx-h100"),
    "257 in tiles of 128": ("padding", padded(128), padded(144), "dgx-h100"),
    "tl: weights for every row": ("repeated loads", weighted(True), weighted(False), "ahbm"),
    "tl: 64 elements at a time": ("short steps", stepped(64), stepped(4096), "ahbm"),
    "tl: stored and loaded": ("round trip", squared(True), squared(False), "ahbm"),
}  # fmt: skip
"""By the mistake: the finding it should lead to, the slow program, its twin, and the machine."""
