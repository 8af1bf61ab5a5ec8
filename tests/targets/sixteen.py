"""Sixteen programs as users write them: each with arrays, and what NumPy makes of them."""

import ml_dtypes
import numpy as np

import megatile.language as T

RNG = np.random.default_rng


def normal(*shape, seed=0, dtype=np.float32):
    return RNG(seed).standard_normal(shape).astype(dtype)


def split_k_over_clusters(M=64, N=64, K=64, bM=32, bN=32, bK=16):
    """Two blocks of a cluster share K; the second puts its sum into the first one's memory."""
    half = K // 2

    @T.program
    def split_k(A: T.Tensor((M, K), "f32"), B: T.Tensor((K, N), "f32"), C: T.Tensor((M, N), "f32")):
        with T.Kernel(cluster=(N // bN, M // bM), block=2, threads=128):
            with T.Scale("cluster") as cluster:
                with T.Scale("block") as (r, _):
                    cx, cy = cluster.coords
                    a = T.alloc((bM, bK), "f32", level="l1")
                    b = T.alloc((bK, bN), "f32", level="l1")
                    inbox = T.alloc((bM, bN), "f32", level="l1")
                    c = T.alloc((bM, bN), "f32")
                    T.clear(c)
                    for k in T.Pipelined(half // bK, num_stages=2):
                        T.copy(a, A[cy * bM, r * half + k * bK])
                        T.copy(b, B[r * half + k * bK, cx * bN])
                        T.gemm(a, b, c)
                    if r == 1:
                        T.copy(inbox, c, dst=0)
                    T.barrier()
                    if r == 0:
                        for i, j in T.Parallel(bM, bN):
                            c[i, j] = c[i, j] + inbox[i, j]
                        T.copy(C[cy * bM, cx * bN], c)

    a, b = normal(M, K), normal(K, N, seed=1)
    return split_k, (a, b, np.zeros((M, N), np.float32)), lambda: {2: a @ b}


def stream_k(M=64, N=96, K=64, bM=32, bN=32, bK=16, blocks=5):
    """Every block does the same number of products, wherever tiles begin; parts are added."""
    steps = K // bK
    tiles = (M // bM) * (N // bN)
    share = -(-tiles * steps // blocks)

    @T.program
    def stream(A: T.Tensor((M, K), "f32"), B: T.Tensor((K, N), "f32"), C: T.Tensor((M, N), "f32")):
        with T.Kernel(block=blocks, threads=128) as bx:
            a = T.alloc((bM, bK), "f32", level="l1")
            b = T.alloc((bK, bN), "f32", level="l1")
            c = T.alloc((bM, bN), "f32")
            for s in T.serial(share):
                it = bx * share + s
                if it < tiles * steps:
                    tile, k = it // steps, it % steps
                    T.copy(a, A[tile // (N // bN) * bM, k * bK])
                    T.copy(b, B[k * bK, tile % (N // bN) * bN])
                    T.gemm(a, b, c, clear_accum=True)
                    for i, j in T.Parallel(bM, bN):
                        T.atomic_add(C[tile // (N // bN) * bM + i, tile % (N // bN) * bN + j], c[i, j])

    a, b = normal(M, K), normal(K, N, seed=1)
    return stream, (a, b, np.zeros((M, N), np.float32)), lambda: {2: a @ b}


def paged_decode(batch=3, heads=16, D=32, page=16, pages=12, longest=3):
    """One new token for each sequence; keys and values lie in pages that a table names."""
    scale = D**-0.5

    @T.program
    def decode(
        Q: T.Tensor((batch, heads, D), "f32"), Keys: T.Tensor((pages, page, D), "f32"),
        Values: T.Tensor((pages, page, D), "f32"), Table: T.Tensor((batch, longest), "i32"),
        Lengths: T.Tensor((batch,), "i32"), Out: T.Tensor((batch, heads, D), "f32"),
    ):  # fmt: skip
        with T.Kernel(block=batch, threads=128) as b:
            q = T.alloc((heads, D), "f32", level="l1")
            k = T.alloc((page, D), "f32", level="l1")
            v = T.alloc((page, D), "f32", level="l1")
            s = T.alloc((heads, page), "f32")
            p = T.alloc((heads, page), "f32", level="l1")
            o = T.alloc((heads, D), "f32")
            top = T.alloc((heads,), "f32")
            before = T.alloc((heads,), "f32")
            total = T.alloc((heads,), "f32")
            part = T.alloc((heads,), "f32")
            T.copy(q, Q[b, 0:heads, 0:D])
            T.clear(o)
            T.clear(total)
            T.fill(top, -1e30)
            n = T.read_scalar(Lengths[b], bound=longest * page)
            for t in T.serial(T.ceildiv(n, page)):
                at = T.read_scalar(Table[b, t], bound=pages - 1)
                T.copy(k, Keys[at, 0:page, 0:D])
                T.copy(v, Values[at, 0:page, 0:D])
                T.gemm(q, k, s, transpose_B=True, clear_accum=True)
                for i, j in T.Parallel(heads, page):
                    s[i, j] = T.if_then_else(t * page + j < n, s[i, j] * scale, -1e30)
                T.copy(before, top)
                T.reduce_max(s, top, dim=1, clear=False)
                for i, j in T.Parallel(heads, page):
                    s[i, j] = T.exp(s[i, j] - top[i])
                T.reduce_sum(s, part, dim=1)
                for i in T.Parallel(heads):
                    total[i] = total[i] * T.exp(before[i] - top[i]) + part[i]
                for i, j in T.Parallel(heads, D):
                    o[i, j] = o[i, j] * T.exp(before[i] - top[i])
                T.copy(p, s)
                T.gemm(p, v, o)
            for i, j in T.Parallel(heads, D):
                o[i, j] = o[i, j] / total[i]
            T.copy(Out[b, 0:heads, 0:D], o)

    q, keys, values = normal(batch, heads, D), normal(pages, page, D, seed=1), normal(pages, page, D, seed=2)
    table = RNG(3).permutation(pages)[: batch * longest].reshape(batch, longest).astype(np.int32)
    lengths = np.array([5, 48, 33][:batch], np.int32)

    def wanted():
        out = np.zeros_like(q)
        for b in range(batch):
            k, v = (x[table[b]].reshape(-1, D)[: lengths[b]] for x in (keys, values))
            s = np.exp(q[b] @ k.T * scale)
            out[b] = s / s.sum(-1, keepdims=True) @ v
        return {5: out}

    return decode, (q, keys, values, table, lengths, np.zeros_like(q)), wanted


def fp8_block_scaled(M=64, N=64, K=128, bM=32, bN=32, bK=32):
    """fp8 factors with a scale for every 1 × 32 and 32 × 32 of them, sums in f32."""
    e4m3 = ml_dtypes.float8_e4m3fn

    @T.program
    def scaled(
        A: T.Tensor((M, K), "f8e4m3"), SA: T.Tensor((M, K // bK), "f32"), B: T.Tensor((N, K), "f8e4m3"),
        SB: T.Tensor((N // bN, K // bK), "f32"), C: T.Tensor((M, N), "f32"),
    ):  # fmt: skip
        with T.Kernel(block=(N // bN, M // bM), threads=128) as (bx, by):
            a = T.alloc((bM, bK), "f8e4m3", level="l1")
            b = T.alloc((bN, bK), "f8e4m3", level="l1")
            part = T.alloc((bM, bN), "f32")
            c = T.alloc((bM, bN), "f32")
            T.clear(c)
            for k in T.Pipelined(K // bK, num_stages=2):
                T.copy(a, A[by * bM, k * bK])
                T.copy(b, B[bx * bN, k * bK])
                T.gemm(a, b, part, transpose_B=True, clear_accum=True)
                for i, j in T.Parallel(bM, bN):
                    c[i, j] = c[i, j] + part[i, j] * SA[by * bM + i, k] * SB[bx, k]
            T.copy(C[by * bM, bx * bN], c)

    a, b = normal(M, K, dtype=e4m3), normal(N, K, seed=1, dtype=e4m3)
    sa, sb = RNG(2).random((M, K // bK), np.float32), RNG(3).random((N // bN, K // bK), np.float32)

    def wanted():
        wide = a.astype(np.float32) * sa.repeat(bK, 1)
        return {4: wide @ (b.astype(np.float32) * sb.repeat(bN, 0).repeat(bK, 1)).T}

    return scaled, (a, sa, b, sb, np.zeros((M, N), np.float32)), wanted


def allgather_gemm(devices=4, rows=32, N=128, K=32, bN=32):
    """Each device puts its rows of A to the others; products wait for the signal of their rows."""
    M, columns = rows * devices, N // devices

    @T.program
    def gathered_gemm(A: T.Tensor((M, K), "f32"), B: T.Tensor((K, N), "f32"), C: T.Tensor((M, N), "f32")):
        with T.Kernel(device=devices, block=(columns // bN, devices), threads=128) as (bx, by):
            with T.Scale("device") as (r, n):
                mine, right, result = T.view(A, T.FullRow), T.view(B, T.FullCol), T.view(C, T.FullCol)
                everything = T.alloc((M, K), "f32", level="l2")
                ready = T.alloc((devices,), "i32", level="l2")
                with T.Scale("block"):
                    a = T.alloc((rows, K), "f32", level="l1")
                    b = T.alloc((K, bN), "f32", level="l1")
                    c = T.alloc((rows, bN), "f32")
                    if bx == 0 and by == 0:
                        T.copy(a, mine[0, 0])
                        for s in T.serial(n):
                            T.copy(everything[r * rows, 0], a, dst=(r + s) % n, scale="device")
                            T.signal(ready[r], dst=(r + s) % n, scale="device")
                    T.copy(b, right[0, bx * bN])
                    T.wait(ready[(r + by) % n], 1, scale="device")
                    T.copy(a, everything[(r + by) % n * rows, 0])
                    T.gemm(a, b, c, clear_accum=True)
                    T.copy(result[(r + by) % n * rows, bx * bN], c)

    a, b = normal(M, K), normal(K, N, seed=1)
    return gathered_gemm, (a, b, np.zeros((M, N), np.float32)), lambda: {2: a @ b}


def two_and_a_half_d(n=64, p=2, c=2):
    """2.5D product: every layer of p × p devices does a part of K, then layers add."""
    size = n // p

    @T.program
    def product(
        A: T.Tensor((p, p, size, size), "f32"), B: T.Tensor((p, p, size, size), "f32"),
        C: T.Tensor((p, p, c, size, size), "f32"),
    ):  # fmt: skip
        with T.Kernel(device=(p, p, c), block=1, threads=128), T.Scale("device") as device:
            i, j, layer = device.coords
            total = T.alloc((size, size), "f32", level="l2")
            with T.Scale("block"):
                a = T.alloc((size, size), "f32", level="l1")
                b = T.alloc((size, size), "f32", level="l1")
                acc = T.alloc((size, size), "f32")
                T.copy(a, A[i, layer, 0:size, 0:size])
                T.copy(b, B[layer, j, 0:size, 0:size])
                T.gemm(a, b, acc, clear_accum=True)
                T.copy(total, acc)
            T.allreduce(total, axis=2)
            with T.Scale("block"):
                a = T.alloc((size, size), "f32", level="l1")
                T.copy(a, total)
                T.copy(C[i, j, layer, 0:size, 0:size], a)

    a, b = normal(p, p, size, size), normal(p, p, size, size, seed=1)

    def wanted():
        found = np.zeros((p, p, c, size, size), np.float32)
        for i in range(p):
            for j in range(p):
                found[i, j, :] = sum(a[i, k] @ b[k, j] for k in range(p))
        return {2: found}

    return product, (a, b, np.zeros((p, p, c, size, size), np.float32)), wanted


def all_to_all_with_counts(devices=4, most=6, width=8):
    """Rows go to the devices that counts name; counts go first."""

    @T.program
    def exchange(
        X: T.Tensor((devices, devices, most, width), "f32"), Counts: T.Tensor((devices, devices), "i32"),
        Y: T.Tensor((devices, devices, most, width), "f32"), Got: T.Tensor((devices, devices), "i32"),
    ):  # fmt: skip
        with T.Kernel(device=devices), T.Scale("device") as (r, n):
            x, counts = T.view(X, T.FullRow), T.view(Counts, T.FullRow)
            y, got = T.view(Y, T.FullRow), T.view(Got, T.FullRow)
            inbox = T.alloc((devices, most, width), "f32", level="l2")
            sent = T.alloc((devices,), "i32", level="l2")
            T.clear(inbox)
            T.barrier()
            for p in range(devices):
                T.copy(sent[r : r + 1], counts[0, p : p + 1], dst=p)
                m = T.read_scalar(counts[0, p], bound=most)
                T.copy(inbox[r, 0:m, 0:width], x[0, p, 0:m, 0:width], dst=p)
            T.barrier()
            T.copy(got[0, 0:devices], sent)
            T.copy(y[0, 0:devices, 0:most, 0:width], inbox)

    x = normal(devices, devices, most, width)
    counts = RNG(1).integers(0, most + 1, (devices, devices)).astype(np.int32)

    def wanted():
        y = np.zeros_like(x)
        for r in range(devices):
            for p in range(devices):
                y[p, r, : counts[r, p]] = x[r, p, : counts[r, p]]
        return {2: y, 3: counts.T.copy()}

    return exchange, (x, counts, np.zeros_like(x), np.zeros_like(counts)), wanted


def conv2d(H=10, W=10, C=16, F=32, k=3, bM=32):
    """Convolution as a product: each block gathers the patches of its pixels."""
    out_h, out_w, depth = H - k + 1, W - k + 1, k * k * C
    pixels = out_h * out_w

    @T.program
    def conv(X: T.Tensor((H, W, C), "f32"), F_: T.Tensor((depth, F), "f32"), Y: T.Tensor((pixels, F), "f32")):
        with T.Kernel(block=T.ceildiv(pixels, bM), threads=128) as bx:
            a = T.alloc((bM, C), "f32", level="l1")
            f = T.alloc((C, F), "f32", level="l1")
            y = T.alloc((bM, F), "f32")
            T.clear(y)
            for t in T.serial(k * k):
                for i, j in T.Parallel(bM, C):
                    at = T.min(bx * bM + i, pixels - 1)
                    a[i, j] = X[at // out_w + t // k, at % out_w + t % k, j]
                T.copy(f, F_[t * C, 0])
                T.gemm(a, f, y)
            T.copy(Y[bx * bM, 0], y)

    x, f = normal(H, W, C), normal(depth, F, seed=1)

    def wanted():
        patches = np.lib.stride_tricks.sliding_window_view(x, (k, k), axis=(0, 1))
        return {2: patches.transpose(0, 1, 3, 4, 2).reshape(pixels, depth) @ f}

    return conv, (x, f, np.zeros((pixels, F), np.float32)), wanted


def warp_specialisation(M=128, N=64, K=64, bK=16, slots=2):
    """A producer and two consumers, each with its 64 rows of the tile in a slot."""
    steps = K // bK

    @T.program
    def specialised(A: T.Tensor((M, K), "f32"), B: T.Tensor((K, N), "f32"), C: T.Tensor((M, N), "f32")):
        with T.Kernel(block=1, warpgroup=3):
            a = T.alloc((slots, 128, bK), "f32", level="l1")
            b = T.alloc((slots, bK, N), "f32", level="l1")
            with T.Scale("warpgroup") as (wg, _):
                full = T.alloc((slots,), "i32", level="l1")
                empty = T.alloc((slots,), "i32", level="l1")
                c = T.alloc((64, N), "f32")
                if wg == 0:
                    for k in T.serial(steps):
                        if k >= slots:
                            T.wait(empty[k % slots], k // slots * 2)
                        T.copy(a[k % slots, 0:128, 0:bK], A[0, k * bK])
                        T.copy(b[k % slots, 0:bK, 0:N], B[k * bK, 0])
                        T.signal(full[k % slots], dst=1)
                        T.signal(full[k % slots], dst=2)
                if wg >= 1:
                    T.clear(c)
                    for k in T.serial(steps):
                        T.wait(full[k % slots], k // slots + 1)
                        T.gemm(a[k % slots, (wg - 1) * 64 : wg * 64, :], b[k % slots], c)
                        T.signal(empty[k % slots], dst=0)
                    T.copy(C[(wg - 1) * 64, 0], c)

    a, b = normal(M, K), normal(K, N, seed=1)
    return specialised, (a, b, np.zeros((M, N), np.float32)), lambda: {2: a @ b}


def dynamic_shapes(m=50, n=70, K=32, tile=32):
    """Rows and columns are known with the arrays."""
    M, N = T.dynamic("M"), T.dynamic("N")

    @T.program
    def open_gemm(A: T.Tensor((M, K), "f32"), B: T.Tensor((K, N), "f32"), C: T.Tensor((M, N), "f32")):
        with T.Kernel(block=(T.ceildiv(N, tile), T.ceildiv(M, tile)), threads=128) as (bx, by):
            a = T.alloc((tile, K), "f32", level="l1")
            b = T.alloc((K, tile), "f32", level="l1")
            c = T.alloc((tile, tile), "f32")
            T.copy(a, A[by * tile, 0])
            T.copy(b, B[0, bx * tile])
            T.gemm(a, b, c, clear_accum=True)
            T.copy(C[by * tile, bx * tile], c)

    a, b = normal(m, K), normal(K, n, seed=1)
    return open_gemm, (a, b, np.zeros((m, n), np.float32)), lambda: {2: a @ b}


def fused_moe(tokens=24, D=16, H=32, experts=4, top=2, rows=8):
    """Tokens sorted by expert in tiles of one expert; both products of a tile, then weighted sums."""
    rng = RNG(5)
    chosen = np.stack([rng.permutation(experts)[:top] for _ in range(tokens)])
    order, owner = [], []
    for e in range(experts):
        mine = np.flatnonzero(chosen.ravel() == e)
        padded = -(-len(mine) // rows) * rows
        order += [*mine, *[-1] * (padded - len(mine))]
        owner += [e] * (padded // rows)
    order, owner = np.array(order, np.int32), np.array(owner, np.int32)

    @T.program
    def moe(
        X: T.Tensor((tokens, D), "f32"), Up: T.Tensor((experts, D, H), "f32"),
        Down: T.Tensor((experts, H, D), "f32"), Order: T.Tensor((len(order),), "i32"),
        Owner: T.Tensor((len(owner),), "i32"), Weight: T.Tensor((tokens * top,), "f32"),
        Y: T.Tensor((tokens, D), "f32"),
    ):  # fmt: skip
        with T.Kernel(block=len(owner), threads=128) as bx:
            x = T.alloc((rows, D), "f32", level="l1")
            up = T.alloc((D, H), "f32", level="l1")
            down = T.alloc((H, D), "f32", level="l1")
            h = T.alloc((rows, H), "f32")
            hs = T.alloc((rows, H), "f32", level="l1")
            y = T.alloc((rows, D), "f32")
            e = T.read_scalar(Owner[bx], bound=experts - 1)
            for i, j in T.Parallel(rows, D):
                at = Order[bx * rows + i]
                x[i, j] = T.if_then_else(at >= 0, X[T.max(at, 0) // top, j], 0.0)
            T.copy(up, Up[e, 0:D, 0:H])
            T.copy(down, Down[e, 0:H, 0:D])
            T.gemm(x, up, h, clear_accum=True)
            for i, j in T.Parallel(rows, H):
                hs[i, j] = h[i, j] * T.sigmoid(h[i, j])
            T.gemm(hs, down, y, clear_accum=True)
            for i, j in T.Parallel(rows, D):
                at = Order[bx * rows + i]
                if at >= 0:
                    T.atomic_add(Y[at // top, j], y[i, j] * Weight[at])

    x, up, down = normal(tokens, D), normal(experts, D, H, seed=1), normal(experts, H, D, seed=2)
    weight = RNG(3).random(tokens * top, np.float32)

    def wanted():
        y = np.zeros_like(x)
        for slot, e in enumerate(chosen.ravel()):
            h = x[slot // top] @ up[e]
            y[slot // top] += weight[slot] * ((h / (1 + np.exp(-h))) @ down[e])
        return {6: y}

    return moe, (x, up, down, order, owner, weight, np.zeros_like(x)), wanted


def hierarchical_allreduce(nodes=2, devices=4, n=64):
    """Reduce-scatter in every node, all-reduce between nodes, all-gather in every node."""

    @T.program
    def reduce_all(X: T.Tensor((nodes, devices, n), "f32"), Y: T.Tensor((nodes, devices, n), "f32")):
        with T.Kernel(node=nodes, device=devices), T.Scale("node") as (k, _):
            with T.Scale("device") as (r, _m):
                mine = T.alloc((n,), "f32", level="l2")
                part = T.alloc((n // devices,), "f32", level="l2")
                other = T.alloc((n // devices,), "f32", level="l2")
                T.copy(mine, X[k, r, 0:n])
                T.reduce_scatter(part, mine)
                came = T.alloc((1,), "i32", level="l2")
                T.copy(other, part, dst=(k + 1) % nodes, scale="node")
                T.signal(came[0], dst=(k + 1) % nodes, scale="node")
                T.wait(came[0], 1)
                for i in T.Parallel(n // devices):
                    part[i] = part[i] + other[i]
                T.allgather(mine, part)
                T.copy(Y[k, r, 0:n], mine)

    x = normal(nodes, devices, n)
    return reduce_all, (x, np.zeros_like(x)), lambda: {1: np.broadcast_to(x.sum((0, 1)), x.shape)}


def device_scan(devices=4, n=32):
    """A prefix sum over devices: each sends its sum to those after it."""

    @T.program
    def scan(X: T.Tensor((devices, n), "f32"), Y: T.Tensor((devices, n), "f32")):
        with T.Kernel(device=devices, block=1, threads=128), T.Scale("device") as (r, size):
            x, y = T.view(X, T.FullRow), T.view(Y, T.FullRow)
            sums = T.alloc((devices,), "f32", level="l2")
            came = T.alloc((devices,), "i32", level="l2")
            with T.Scale("block"):
                tile = T.alloc((1, n), "f32", level="l1")
                part = T.alloc((1, n), "f32", level="l1")
                total = T.alloc((1,), "f32", level="l1")
                T.copy(tile, x)
                T.cumsum(tile, part, dim=1)
                T.copy(total, part[0, n - 1 : n])
                for p in T.serial(size):
                    if p > r:
                        T.copy(sums[r : r + 1], total, dst=p, scale="device")
                        T.signal(came[r], dst=p, scale="device")
                for p in T.serial(size):
                    if p < r:
                        T.wait(came[p], 1, scale="device")
                        for i in T.Parallel(n):
                            part[0, i] = part[0, i] + sums[p]
                T.copy(y, part)

    x = normal(devices, n)
    return scan, (x, np.zeros_like(x)), lambda: {1: np.cumsum(x.ravel()).reshape(x.shape)}


def halo(devices=4, rows=6, width=16, rounds=2):
    """A stencil: edges go to the neighbours before every round."""

    @T.program
    def stencil(X: T.Tensor((devices, rows, width), "f32"), Y: T.Tensor((devices, rows, width), "f32")):
        with T.Kernel(device=devices), T.Scale("device") as (r, n):
            x, y = T.view(X, T.FullRow), T.view(Y, T.FullRow)
            grid = T.alloc((2, rows + 2, width), "f32", level="l2")
            T.clear(grid)
            T.copy(grid[0, 1 : rows + 1, 0:width], x[0, 0:rows, 0:width])
            for t in range(rounds):
                here, there = t % 2, (t + 1) % 2
                T.barrier()
                if r > 0:
                    T.copy(grid[here, rows + 1, 0:width], grid[here, 1, 0:width], dst=r - 1)
                if r < n - 1:
                    T.copy(grid[here, 0, 0:width], grid[here, rows, 0:width], dst=r + 1)
                T.barrier()
                for i, j in T.Parallel(rows, width):
                    above, below = grid[here, i, j], grid[here, i + 2, j]
                    grid[there, i + 1, j] = 0.5 * grid[here, i + 1, j] + 0.25 * (above + below)
            T.copy(y[0, 0:rows, 0:width], grid[rounds % 2, 1 : rows + 1, 0:width])

    x = normal(devices, rows, width)

    def wanted():
        whole = x.reshape(-1, width)
        for _ in range(rounds):
            padded = np.pad(whole, ((1, 1), (0, 0)))
            whole = 0.5 * whole + 0.25 * (padded[:-2] + padded[2:])
        return {1: whole.reshape(x.shape)}

    return stencil, (x, np.zeros_like(x)), wanted


def context_parallel_decode(devices=4, heads=16, keys=32, D=32):
    """Each device attends to its keys; outputs and log-sums are merged."""
    scale = D**-0.5 * 1.4426950408889634

    @T.program
    def merged(
        Q: T.Tensor((heads, D), "f32"), K_: T.Tensor((devices * keys, D), "f32"),
        V: T.Tensor((devices * keys, D), "f32"), O: T.Tensor((heads, D), "f32"), L: T.Tensor((heads,), "f32"),
    ):  # fmt: skip
        with T.Kernel(device=devices, block=1, threads=128), T.Scale("device"):
            q_all, k_mine, v_mine = T.view(Q, T.Replica), T.view(K_, T.FullRow), T.view(V, T.FullRow)
            out, sums = T.view(O, T.Replica), T.view(L, T.Replica)
            with T.Scale("block"):
                q = T.alloc((heads, D), "f32", level="l1")
                k = T.alloc((keys, D), "f32", level="l1")
                p = T.alloc((heads, keys), "f32", level="l1")
                s = T.alloc((heads, keys), "f32")
                o = T.alloc((heads, D), "f32")
                top = T.alloc((heads,), "f32")
                total = T.alloc((heads,), "f32")
                T.copy(q, q_all)
                T.copy(k, k_mine)
                T.gemm(q, k, s, transpose_B=True, clear_accum=True)
                for i, j in T.Parallel(heads, keys):
                    s[i, j] = s[i, j] * scale
                T.reduce_max(s, top, dim=1)
                for i, j in T.Parallel(heads, keys):
                    s[i, j] = T.exp2(s[i, j] - top[i])
                T.reduce_sum(s, total, dim=1)
                T.copy(p, s)
                T.copy(k, v_mine)
                T.gemm(p, k, o, clear_accum=True)
                for i, j in T.Parallel(heads, D):
                    o[i, j] = o[i, j] / total[i]
                for i in T.Parallel(heads):
                    total[i] = T.log2(total[i]) + top[i]
                T.copy(out, o)
                T.copy(sums, total)
            T.allreduce(out, sums, fn=T.lse_merge)

    q, k, v = normal(heads, D), normal(devices * keys, D, seed=1), normal(devices * keys, D, seed=2)

    def wanted():
        s = np.exp2(q @ k.T * scale)
        return {3: s / s.sum(-1, keepdims=True) @ v}

    return merged, (q, k, v, np.zeros((heads, D), np.float32), np.zeros(heads, np.float32)), wanted


def tensor_parallel_mlp(devices=4, M=32, D=32, H=64):
    """Columns, then rows, of the weights on each device; one all-reduce."""
    part = H // devices

    @T.program
    def mlp(
        X: T.Tensor((M, D), "f32"), Up: T.Tensor((D, H), "f32"), Down: T.Tensor((H, D), "f32"),
        Y: T.Tensor((M, D), "f32"),
    ):  # fmt: skip
        with T.Kernel(device=devices, block=1, threads=128):
            with T.Scale("device"):
                x, up, down = T.view(X, T.Replica), T.view(Up, T.FullCol), T.view(Down, T.FullRow)
                y = T.view(Y, T.Replica)
            with T.Scale("block"):
                a = T.alloc((M, D), "f32", level="l1")
                b = T.alloc((D, part), "f32", level="l1")
                c = T.alloc((part, D), "f32", level="l1")
                h = T.alloc((M, part), "f32")
                hs = T.alloc((M, part), "f32", level="l1")
                out = T.alloc((M, D), "f32")
                T.copy(a, x)
                T.copy(b, up)
                T.copy(c, down)
                T.gemm(a, b, h, clear_accum=True)
                for i, j in T.Parallel(M, part):
                    hs[i, j] = T.max(h[i, j], 0.0)
                T.gemm(hs, c, out, clear_accum=True)
                T.copy(y, out)
            with T.Scale("device"):
                T.allreduce(y)

    x, up, down = normal(M, D), normal(D, H, seed=1), normal(H, D, seed=2)
    return mlp, (x, up, down, np.zeros((M, D), np.float32)), lambda: {3: np.maximum(x @ up, 0) @ down}


PROGRAMS = [
    split_k_over_clusters, stream_k, paged_decode, fp8_block_scaled, allgather_gemm, two_and_a_half_d,
    all_to_all_with_counts, conv2d, warp_specialisation, dynamic_shapes, fused_moe, hierarchical_allreduce,
    device_scan, halo, context_parallel_decode, tensor_parallel_mlp,
]  # fmt: skip
