"""Pairs of kernels with sizes as numbers, as people write them: one with a flaw, and its twin."""

import megatile.language as T


def divided_sum(parts):
    """A product with a long K on four blocks, or its K divided over more."""
    M, N, K = 256, 256, 16384

    @T.program
    def product(A: T.Tensor((M, K), "f16"), B: T.Tensor((K, N), "f16"), C: T.Tensor((M, N), "f32")):
        with T.Kernel(block=(N // 128, M // 128, parts), threads=256) as (bx, by, bz):
            a, b = T.alloc((128, 64), "f16", level="l1"), T.alloc((64, 128), "f16", level="l1")
            c = T.alloc((128, 128), "f32")
            T.clear(c)
            for k in T.Pipelined(K // 64 // parts, num_stages=3):
                T.copy(a, A[by * 128, (bz * (K // 64 // parts) + k) * 64])
                T.copy(b, B[(bz * (K // 64 // parts) + k) * 64, bx * 128])
                T.gemm(a, b, c)
            if parts == 1:
                T.copy(C[by * 128, bx * 128], c)
            else:
                T.atomic_add(C[by * 128, bx * 128], c)

    return product


def scores(few):
    """Sums of exponentials of q·k: blocks of few queries load all keys again."""
    rows, heads, S, D = 16 if few else 64, 16, 1024, 128

    @T.program
    def weights(
        Q: T.Tensor((heads, S, D), "f16"), K: T.Tensor((heads, S, D), "f16"), L: T.Tensor((heads, S), "f32")
    ):
        with T.Kernel(block=(S // rows, heads), threads=128) as (bx, h):
            q, k = T.alloc((rows, D), "f16", level="l1"), T.alloc((64, D), "f16", level="l1")
            s, total = T.alloc((rows, 64), "f32"), T.alloc((rows,), "f32")
            T.copy(q, Q[h, bx * rows : bx * rows + rows, :])
            T.clear(total)
            for j in T.Pipelined(S // 64, num_stages=2):
                T.copy(k, K[h, j * 64 : j * 64 + 64, :])
                T.clear(s)
                T.gemm(q, k, s, transpose_B=True)
                T.reduce_sum(s, total, dim=1, clear=False)
            T.copy(L[h, bx * rows : bx * rows + rows], total)

    return weights


def one_of_four(together):
    """One field of four of every record, by elementwise code; or from an array of its own."""
    n = 1 << 20

    @T.program
    def halved(X: T.Tensor((n, 4) if together else (4, n), "f32"), Y: T.Tensor((n,), "f32")):
        with T.Kernel(block=n // 2048, threads=256) as b:
            y = T.alloc((2048,), "f32")
            for i in T.Parallel(2048):
                y[i] = (X[b * 2048 + i, 0] if together else X[0, b * 2048 + i]) * 0.5
            T.copy(Y[b * 2048], y)

    return halved


def smoothed(phases):
    """Four steps of a stencil: each through memory, or all in one block with a border."""
    N, B, fused = 4096, 128, not phases

    @T.program
    def steps(U: T.Tensor((N, N), "f32"), V: T.Tensor((N, N), "f32")):
        with T.Kernel(block=(N // B, N // B), threads=256) as (bx, by):
            if fused:
                x, y = T.alloc((B + 8, B + 8), "f32", level="l1"), T.alloc((B + 6, B + 6), "f32")
                T.copy(x, U[by * B, bx * B])
                for wide in range(6, -1, -2):
                    for i, j in T.Parallel(B + wide, B + wide):
                        y[i, j] = 0.25 * (x[i, j] + x[i + 1, j + 2] + x[i + 2, j] + x[i + 1, j + 1])
                    if wide:
                        T.copy(x[0 : B + wide, 0 : B + wide], y[0 : B + wide, 0 : B + wide])
                T.copy(V[by * B, bx * B], y[0:B, 0:B])
            for step in range(phases):
                source, to = (V, U) if step % 2 else (U, V)
                with T.Scale("block"):
                    a, b = T.alloc((B + 2, B + 2), "f32", level="l1"), T.alloc((B, B), "f32")
                    T.copy(a, source[by * B, bx * B])
                    for i, j in T.Parallel(B, B):
                        b[i, j] = 0.25 * (a[i, j] + a[i + 1, j + 2] + a[i + 2, j] + a[i + 1, j + 1])
                    T.copy(to[by * B, bx * B], b)

    return steps


def gated(again):
    """Silu(G)·U times weights: the gate in every column of blocks again, or once in a phase of its own."""
    M, N, K = 1024, 2048, 2048

    @T.program
    def product(
        G: T.Tensor((M, K), "f16"), U: T.Tensor((M, K), "f16"), H: T.Tensor((M, K), "f16"),
        W: T.Tensor((K, N), "f16"), Y: T.Tensor((M, N), "f16"),
    ):  # fmt: skip
        with T.Kernel(block=(N // 128, M // 128), threads=256) as (bx, by):
            if not again:
                with T.Scale("block"):
                    g, u = T.alloc((128, 128), "f16"), T.alloc((128, 128), "f16")
                    T.copy(g, G[by * 128, bx * 128])
                    T.copy(u, U[by * 128, bx * 128])
                    for i, j in T.Parallel(128, 128):
                        g[i, j] = g[i, j] * T.sigmoid(g[i, j]) * u[i, j]
                    T.copy(H[by * 128, bx * 128], g)
            with T.Scale("block"):
                h, w = T.alloc((128, 64), "f16", level="l1"), T.alloc((64, 128), "f16", level="l1")
                y = T.alloc((128, 128), "f32")
                if again:
                    a, b = T.alloc((128, 64), "f16", level="l1"), T.alloc((128, 64), "f16", level="l1")
                T.clear(y)
                for k in T.Pipelined(K // 64, num_stages=2):
                    T.copy(w, W[k * 64, bx * 128])
                    if again:
                        T.copy(a, G[by * 128, k * 64])
                        T.copy(b, U[by * 128, k * 64])
                        for i, j in T.Parallel(128, 64):
                            h[i, j] = a[i, j] * T.sigmoid(a[i, j]) * b[i, j]
                    else:
                        T.copy(h, H[by * 128, k * 64])
                    T.gemm(h, w, y)
                T.copy(Y[by * 128, bx * 128], y)

    return product


def gathered(again):
    """Rows of all devices: gathered in every step, or once."""
    n = 1 << 18

    @T.program
    def steps(X: T.Tensor((8, n), "f32"), Y: T.Tensor((8, n), "f32")):
        with T.Kernel(device=8), T.Scale("device"):
            x, y = T.view(X, layout=T.FullRow), T.view(Y, layout=T.FullRow)
            every, total = T.alloc((8, n), "f32", level="l2"), T.alloc((1, n), "f32", level="l2")
            T.clear(total)
            if not again:
                T.allgather(every, x)
            for s in T.serial(8):
                if again:
                    T.allgather(every, x)
                for i, j in T.Parallel(1, n):
                    total[i, j] = total[i, j] + every[s, j] * 0.5
            T.copy(y, total)

    return steps


def summed(dtype):
    """Tensors in f16, summed over the devices in f32 or as they are."""
    n = 1 << 23

    @T.program
    def total(X: T.Tensor((8, n), "f16"), Y: T.Tensor((8, n), "f16")):
        with T.Kernel(device=8), T.Scale("device"):
            t = T.alloc((1, n), dtype, level="l2")
            T.copy(t, T.view(X, layout=T.FullRow))
            T.allreduce(t)
            T.copy(T.view(Y, layout=T.FullRow), t)

    return total


def scored(by_head):
    """Scores of one query for each head: eight heads share their keys; a block each, or one for all."""
    B, H, G, L, D = 4, 4, 8, 4096, 128

    @T.program
    def scores(
        Q: T.Tensor((B, H * G, D), "f16"), K: T.Tensor((B, H, L, D), "f16"), S: T.Tensor((B, H * G, L), "f32")
    ):
        with T.Kernel(block=(H * G, B) if by_head else (H, B, 8), threads=128) as place:
            heads, parts = (1, 1) if by_head else (G, 8)
            h, b = place[0], place[1]
            first = h if by_head else h * G
            keys = h // G if by_head else h
            q, k = T.alloc((heads, D), "f16", level="l1"), T.alloc((64, D), "f16", level="l1")
            s = T.alloc((heads, 64), "f32")
            begin = 0 if by_head else place[2] * (L // 8)
            T.copy(q, Q[b, first : first + heads, :])
            for j in T.Pipelined(L // 64 // parts, num_stages=3):
                T.copy(k, K[b, keys, begin + j * 64 : begin + j * 64 + 64, :])
                T.clear(s)
                T.gemm(q, k, s, transpose_B=True)
                T.copy(S[b, first : first + heads, begin + j * 64 : begin + j * 64 + 64], s)

    return scores


def worked(in_turn):
    """Experts with more and more rows: a block each, or one for every part."""
    E, D = 64, 512

    @T.program
    def gated(X: T.Tensor((E, E * 16, D), "f16"), Y: T.Tensor((E, E * 16, D), "f16")):
        with T.Kernel(block=E if in_turn else (E, E), threads=256) as place:
            e = place if in_turn else place[0]
            x = T.alloc((16, D), "f16")
            for i in T.serial(e + 1 if in_turn else 1):
                part = i if in_turn else place[1]
                if in_turn or part <= e:
                    T.copy(x, X[e, part * 16 : part * 16 + 16, :])
                    for r, c in T.Parallel(16, D):
                        x[r, c] = x[r, c] * T.sigmoid(x[r, c])
                    T.copy(Y[e, part * 16 : part * 16 + 16, :], x)

    return gated


def put(width):
    """Every block puts its part into the next device, in pieces."""
    n, blocks = 1 << 17, 32

    @T.program
    def shifted(X: T.Tensor((4, n), "f32"), Y: T.Tensor((4, n), "f32")):
        with T.Kernel(device=4, block=blocks, threads=128) as b:
            with T.Scale("device") as (r, count):
                x, y = T.view(X, layout=T.FullRow), T.view(Y, layout=T.FullRow)
                box = T.alloc((1, n), "f32", level="l2")
                with T.Scale("block"):
                    t = T.alloc((1, width), "f32", level="l1")
                    for i in T.serial(n // blocks // width):
                        at = b * (n // blocks) + i * width
                        T.copy(t, x[:, at : at + width])
                        T.copy(box[:, at : at + width], t, dst=(r + 1) % count, scale="device")
                T.barrier()
                T.copy(y, box)

    return shifted


def quantised(apart):
    """Rows over their length, and as integers of their maximum: in two phases, stored in parts, or in one."""
    R, D = 4096, 4096

    @T.program
    def rows(
        X: T.Tensor((R, D), "f16"), H: T.Tensor((R, D), "f32"), Q: T.Tensor((R, D), "i8"),
        S: T.Tensor((R,), "f32"),
    ):  # fmt: skip
        with T.Kernel(block=R, threads=256) as b:
            with T.Scale("block"):
                x, q = T.alloc((1, D), "f32"), T.alloc((1, D), "f32")
                s, top = T.alloc((1,), "f32"), T.alloc((1,), "f32")
                T.copy(x, X[b, 0])
                for i, j in T.Parallel(1, D):
                    q[i, j] = x[i, j] * x[i, j]
                T.reduce_sum(q, s, dim=1)
                for i, j in T.Parallel(1, D):
                    x[i, j] = x[i, j] * T.rsqrt(s[i] / D)
                if apart:
                    for c in range(4):
                        T.copy(H[b : b + 1, c * 1024 : c * 1024 + 1024], x[:, c * 1024 : c * 1024 + 1024])
                else:
                    T.reduce_absmax(x, top, dim=1)
                    for i, j in T.Parallel(1, D):
                        x[i, j] = T.round(x[i, j] * 127.0 / top[i])
                    T.copy(Q[b, 0], x)
                    T.copy(S[b], top)
            if apart:
                with T.Scale("block"):
                    y, most = T.alloc((1, D), "f32"), T.alloc((1,), "f32")
                    T.copy(y, H[b, 0])
                    T.reduce_absmax(y, most, dim=1)
                    for i, j in T.Parallel(1, D):
                        y[i, j] = T.round(y[i, j] * 127.0 / most[i])
                    T.copy(Q[b, 0], y)
                    T.copy(S[b], most)

    return rows


PAIRS = {
    "a long sum on four blocks": ("too few blocks", divided_sum(1), divided_sum(32), "dgx-h100"),
    "16 rows of queries": ("tile size", scores(True), scores(False), "dgx-h100"),
    "one of four, by elements": ("uncoalesced access", one_of_four(True), one_of_four(False), "hgx-a100"),
    "a stencil of four phases": ("round trip", smoothed(4), smoothed(0), "dgx-h100"),
    "a gate for every column": ("repeated work", gated(True), gated(False), "dgx-h100"),
    "gathered in every step": ("repeated work", gathered(True), gathered(False), "dgx-h100"),
    "keys for every head": ("blocks that load the same tiles", scored(True), scored(False), "dgx-h100"),
    "experts that grow": ("too few blocks", worked(True), worked(False), "dgx-h100"),
    "puts of 256": ("small messages", put(256), put(4096), "dgx-h100"),
    "quantised in a second phase": ("intermediate tensor", quantised(True), quantised(False), "dgx-h100"),
    "f32 on a ring": ("wide messages", summed("f32"), summed("f16"), "hgx-a100"),
}
"""By what is wrong: the finding it should lead to, the slow program, its twin, and the machine."""
