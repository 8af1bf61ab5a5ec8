"""Programs of every kind with unusual sizes: odd grids, one block, uneven tiles, three ranks, empty experts.

Each function gives a program and its arrays.
"""

import ml_dtypes
import numpy as np

import megatile.language as T

R = np.random.default_rng(1)


def nrm(*s, dt="f4"):
    return R.standard_normal(s).astype(dt)


def z(*s, dt="f4"):
    return np.zeros(s, dt)


def odd_gemm():  # K not a multiple, M,N odd
    M, N, K, t = 77, 45, 50, 32

    @T.program
    def k(A: T.Tensor((M, K), "f16"), B: T.Tensor((K, N), "f16"), C: T.Tensor((M, N), "f32")):
        with T.Kernel(block=(T.ceildiv(N, t), T.ceildiv(M, t)), threads=128) as (bx, by):
            a = T.alloc((t, t), "f16", level="l1")
            b = T.alloc((t, t), "f16", level="l1")
            c = T.alloc((t, t), "f32")
            T.clear(c)
            for i in T.Pipelined(T.ceildiv(K, t), num_stages=3):
                T.copy(a, A[by * t, i * t])
                T.copy(b, B[i * t, bx * t])
                T.gemm(a, b, c)
            T.copy(C[by * t, bx * t], c)

    return k, [nrm(M, K, dt="f2"), nrm(K, N, dt="f2"), z(M, N)]


def one_block():
    @T.program
    def k(X: T.Tensor((5, 7), "f32"), Y: T.Tensor((5,), "f32")):
        with T.Kernel(block=1, threads=32):
            x = T.alloc((5, 7), "f32")
            y = T.alloc((5,), "f32")
            T.copy(x, X)
            T.reduce_max(x, y, dim=1)
            T.copy(Y, y)

    return k, [nrm(5, 7), z(5)]


def split_k_uneven():
    M, N, K, t, parts = 50, 70, 100, 32, 3
    steps = -(-K // t)

    @T.program
    def k(A: T.Tensor((M, K), "f32"), B: T.Tensor((K, N), "f32"), C: T.Tensor((M, N), "f32")):
        with T.Kernel(block=(T.ceildiv(N, t), T.ceildiv(M, t), parts), threads=64) as (bx, by, bz):
            a = T.alloc((t, t), "f32", level="l1")
            b = T.alloc((t, t), "f32", level="l1")
            c = T.alloc((t, t), "f32")
            T.clear(c)
            for i in T.serial(T.ceildiv(steps - bz, parts)):
                T.copy(a, A[by * t, (bz + i * parts) * t])
                T.copy(b, B[(bz + i * parts) * t, bx * t])
                T.gemm(a, b, c)
            T.atomic_add(C[by * t, bx * t], c)

    return k, [nrm(M, K), nrm(K, N), z(M, N)]


def split_k_two_phases():
    M, N, K, t, parts = 64, 96, 120, 32, 3

    @T.program
    def k(
        A: T.Tensor((M, K), "f32"),
        B: T.Tensor((K, N), "f32"),
        W: T.Tensor((parts, M, N), "f32"),
        C: T.Tensor((M, N), "f32"),
    ):
        with T.Kernel(device=1, block=(N // t, M // t, parts), threads=64) as (bx, by, bz):
            with T.Scale("block"):
                a = T.alloc((t, 40), "f32", level="l1")
                b = T.alloc((40, t), "f32", level="l1")
                c = T.alloc((t, t), "f32")
                T.copy(a, A[by * t, bz * 40])
                T.copy(b, B[bz * 40, bx * t])
                T.gemm(a, b, c, clear_accum=True)
                T.copy(W[bz, by * t, bx * t], c)
            with T.Scale("block"):
                if bz == 0:
                    s = T.alloc((t, t), "f32")
                    x = T.alloc((t, t), "f32")
                    T.clear(s)
                    for p in T.serial(parts):
                        T.copy(x, W[p, by * t, bx * t])
                        for i, j in T.Parallel(t, t):
                            s[i, j] = s[i, j] + x[i, j]
                    T.copy(C[by * t, bx * t], s)

    return k, [nrm(M, K), nrm(K, N), z(parts, M, N), z(M, N)]


def gqa_causal(H=5, G=1, S=37, D=16, bM=16, bN=8):
    @T.program
    def k(
        Q: T.Tensor((H, S, D), "f32"),
        K: T.Tensor((G, S, D), "f32"),
        V: T.Tensor((G, S, D), "f32"),
        Out: T.Tensor((H, S, D), "f32"),
    ):
        with T.Kernel(block=(T.ceildiv(S, bM), H), threads=64) as (bx, h):
            q = T.alloc((bM, D), "f32", level="l1")
            kk = T.alloc((bN, D), "f32", level="l1")
            v = T.alloc((bN, D), "f32", level="l1")
            s = T.alloc((bM, bN), "f32")
            o = T.alloc((bM, D), "f32")
            m = T.alloc((bM,), "f32")
            m0 = T.alloc((bM,), "f32")
            den = T.alloc((bM,), "f32")
            p = T.alloc((bM,), "f32")
            T.copy(q, Q[h, bx * bM, 0])
            T.clear(o)
            T.clear(den)
            T.fill(m, -1e30)
            for n in T.Pipelined(T.ceildiv(T.min((bx + 1) * bM, S), bN), num_stages=2):
                T.copy(kk, K[h // (H // G), n * bN, 0])
                T.copy(v, V[h // (H // G), n * bN, 0])
                T.gemm(q, kk, s, transpose_B=True, clear_accum=True)
                for i, j in T.Parallel(bM, bN):
                    s[i, j] = T.if_then_else(n * bN + j <= bx * bM + i, s[i, j] * 0.25, -1e30)
                T.copy(m0, m)
                T.reduce_max(s, m, dim=1, clear=False)
                for i, j in T.Parallel(bM, bN):
                    s[i, j] = T.exp(s[i, j] - m[i])
                T.reduce_sum(s, p, dim=1)
                for i in T.Parallel(bM):
                    den[i] = den[i] * T.exp(m0[i] - m[i]) + p[i]
                for i, j in T.Parallel(bM, D):
                    o[i, j] *= T.exp(m0[i] - m[i])
                T.gemm(s, v, o)
            for i, j in T.Parallel(bM, D):
                o[i, j] /= den[i]
            T.copy(Out[h, bx * bM, 0], o)

    return k, [nrm(H, S, D), nrm(G, S, D), nrm(G, S, D), z(H, S, D)]


def ring_attention3():
    heads, groups, dim, devices, bM, rows = 5, 1, 8, 3, 5, 10
    seq = devices * rows

    @T.program
    def k(
        Q: T.Tensor((heads, seq, dim), "f32"),
        K: T.Tensor((groups, seq, dim), "f32"),
        V: T.Tensor((groups, seq, dim), "f32"),
        Out: T.Tensor((heads, seq, dim), "f32"),
    ):
        with (
            T.Kernel(device=devices, block=(rows // bM, heads), threads=64) as (bx, by),
            T.Scale("device") as (r, n),
        ):
            q_, k_, v_, o_ = (T.view(X, layout=T.Shard(1)) for X in (Q, K, V, Out))
            ks = T.alloc((2, groups, rows, dim), "f32", level="l2")
            vs = T.alloc((2, groups, rows, dim), "f32", level="l2")
            top = T.alloc((heads, rows), "f32", level="l2")
            tot = T.alloc((heads, rows), "f32", level="l2")
            T.copy(ks[0], k_)
            T.copy(vs[0], v_)
            T.fill(top, -1e30)
            T.clear(tot)
            T.fill(o_, 0)
            T.barrier()
            for s in T.serial(n):
                owner = (r - s) % n
                if s < n - 1:
                    T.copy(ks[(s + 1) % 2], ks[s % 2], dst=(r + 1) % n)
                    T.copy(vs[(s + 1) % 2], vs[s % 2], dst=(r + 1) % n)
                if owner <= r:
                    with T.Scale("block"):
                        q = T.alloc((bM, dim), "f32", level="l1")
                        kk = T.alloc((rows, dim), "f32", level="l1")
                        v = T.alloc((rows, dim), "f32", level="l1")
                        sc = T.alloc((bM, rows), "f32")
                        o = T.alloc((bM, dim), "f32")
                        m0 = T.alloc((bM,), "f32")
                        m = T.alloc((bM,), "f32")
                        den = T.alloc((bM,), "f32")
                        p = T.alloc((bM,), "f32")
                        T.copy(q, q_[by, bx * bM, 0])
                        T.copy(kk, ks[s % 2, by // 5, 0, 0])
                        T.copy(v, vs[s % 2, by // 5, 0, 0])
                        T.copy(o, o_[by, bx * bM, 0])
                        T.copy(m0, top[by, bx * bM])
                        T.copy(den, tot[by, bx * bM])
                        T.gemm(q, kk, sc, transpose_B=True, clear_accum=True)
                        for i, j in T.Parallel(bM, rows):
                            sc[i, j] = T.if_then_else(
                                owner * rows + j <= r * rows + bx * bM + i, sc[i, j], -1e30
                            )
                        T.copy(m, m0)
                        T.reduce_max(sc, m, dim=1, clear=False)
                        for i, j in T.Parallel(bM, rows):
                            sc[i, j] = T.exp(sc[i, j] - m[i])
                        T.reduce_sum(sc, p, dim=1)
                        for i in T.Parallel(bM):
                            den[i] = den[i] * T.exp(m0[i] - m[i]) + p[i]
                        for i, j in T.Parallel(bM, dim):
                            o[i, j] *= T.exp(m0[i] - m[i])
                        T.gemm(sc, v, o)
                        T.copy(o_[by, bx * bM, 0], o)
                        T.copy(top[by, bx * bM], m)
                        T.copy(tot[by, bx * bM], den)
                T.barrier()
            for h, i, j in T.Parallel(heads, rows, dim):
                o_[h, i, j] /= tot[h, i]

    return k, [nrm(heads, seq, dim), nrm(groups, seq, dim), nrm(groups, seq, dim), z(heads, seq, dim)]


def moe_empty():  # grouped GEMM with empty experts
    E, D, F, cap, t = 5, 16, 24, 40, 8
    counts = np.array([0, 13, 0, 20, 7], "i4")
    offs = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype("i4")

    @T.program
    def k(
        X: T.Tensor((cap, D), "f32"),
        W: T.Tensor((E, D, F), "f32"),
        N: T.Tensor((E,), "i32"),
        S: T.Tensor((E,), "i32"),
        Y: T.Tensor((cap, F), "f32"),
    ):
        with T.Kernel(block=E, threads=64) as e:
            x = T.alloc((t, D), "f32", level="l1")
            w = T.alloc((D, F), "f32", level="l1")
            y = T.alloc((t, F), "f32")
            n = T.read_scalar(N[e], bound=cap)
            s = T.read_scalar(S[e], bound=cap)
            T.copy(w, W[e, 0, 0])
            for i in T.serial(T.ceildiv(n, t)):
                T.copy(x, X[s + i * t, 0])
                T.gemm(x, w, y, clear_accum=True)
                for a, b in T.Parallel(t, F):
                    if i * t + a < n:
                        Y[s + i * t + a, b] = y[a, b]

    return k, [nrm(cap, D), nrm(E, D, F), counts, offs, z(cap, F)]


def moe_dispatch3():
    devices, tok, D = 3, 6, 4

    @T.program
    def k(
        X: T.Tensor((devices * tok, D), "f32"),
        Dst: T.Tensor((devices * tok,), "i32"),
        C: T.Tensor((devices * devices,), "i32"),
        Y: T.Tensor((devices * tok, D), "f32"),
    ):
        with T.Kernel(device=devices, block=1, threads=32), T.Scale("device") as (_r, _n):
            x = T.view(X, layout=T.Shard(0))
            cnt = T.view(C, layout=T.Shard(0))
            y = T.view(Y, layout=T.Shard(0))
            got = T.alloc((devices * tok, D), "f32", level="l2")
            rec = T.alloc((devices,), "i32", level="l2")
            back = T.alloc((tok, D), "f32", level="l2")
            rec2 = T.alloc((devices,), "i32", level="l2")
            T.clear(got)
            T.all_to_all(got, x, cnt, rec)
            for i, j in T.Parallel(devices * tok, D):
                got[i, j] = got[i, j] * 2.0
            T.clear(back)
            T.all_to_all(back, got, rec, rec2)
            T.copy(y, back)

    c = np.array([[0, 6, 0], [2, 0, 4], [0, 0, 6]], "i4").reshape(-1)
    return k, [nrm(devices * tok, D), z(devices * tok, dt="i4"), c, z(devices * tok, D)]


def summa_devices3():
    p, t = 3, 8
    n = p * t

    @T.program
    def k(A: T.Tensor((n, n), "f32"), B: T.Tensor((n, n), "f32"), C: T.Tensor((n, n), "f32")):
        with T.Kernel(block=(p, p), threads=32) as (x, y):
            a = T.alloc((t, t), "f32", level="l1")
            b = T.alloc((t, t), "f32", level="l1")
            c = T.alloc((t, t), "f32")
            a0 = T.alloc((t, t), "f32", level="l1")
            b0 = T.alloc((t, t), "f32", level="l1")
            T.copy(a0, A[y * t, x * t])
            T.copy(b0, B[y * t, x * t])
            T.clear(c)
            for i in T.serial(p):
                T.copy(a, a0)
                T.copy(b, b0)
                T.broadcast(a, root=i, axis=0)
                T.broadcast(b, root=i, axis=1)
                T.gemm(a, b, c)
            T.copy(C[y * t, x * t], c)

    return k, [nrm(n, n), nrm(n, n), z(n, n)]


def summa_dev():
    px, py, t = 2, 2, 12
    n = 2 * t

    @T.program
    def k(A: T.Tensor((n, n), "f32"), B: T.Tensor((n, n), "f32"), C: T.Tensor((n, n), "f32")):
        with T.Kernel(device=(px, py), block=(2, 3), threads=32) as (bx, by), T.Scale("device") as rank:
            _x, _y = rank.coords
            Am = T.view(A, layout=(T.Shard(1), T.Shard(0)))
            Bm = T.view(B, layout=(T.Shard(1), T.Shard(0)))
            Cm = T.view(C, layout=(T.Shard(1), T.Shard(0)))
            a = T.alloc((t, t), "f32", level="l2")
            b = T.alloc((t, t), "f32", level="l2")
            T.fill(Cm, 0)
            for i in T.serial(2):
                T.copy(a, Am)
                T.copy(b, Bm)
                T.broadcast(a, root=i, axis=0)
                T.broadcast(b, root=i, axis=1)
                with T.Scale("block"):
                    ta = T.alloc((4, t), "f32", level="l1")
                    tb = T.alloc((t, 6), "f32", level="l1")
                    tc = T.alloc((4, 6), "f32")
                    T.copy(ta, a[by * 4, 0])
                    T.copy(tb, b[0, bx * 6])
                    T.copy(tc, Cm[by * 4, bx * 6])
                    T.gemm(ta, tb, tc)
                    T.copy(Cm[by * 4, bx * 6], tc)

    return k, [nrm(n, n), nrm(n, n), z(n, n)]


def cannon3():
    p, t = 3, 5
    n = p * t

    @T.program
    def k(A: T.Tensor((n, n), "f32"), B: T.Tensor((n, n), "f32"), C: T.Tensor((n, n), "f32")):
        with T.Kernel(block=(p, p), threads=32) as (x, y):
            a = T.alloc((2, t, t), "f32", level="l1")
            b = T.alloc((2, t, t), "f32", level="l1")
            c = T.alloc((t, t), "f32")
            T.alloc((1,), "i32", level="l1")
            T.alloc((1,), "i32", level="l1")
            T.clear(c)
            T.copy(a[0], A[y * t, (x + y) % p * t])
            T.copy(b[0], B[(x + y) % p * t, x * t])
            T.barrier()
            for s in T.serial(p):
                if s < p - 1:
                    T.copy(a[(s + 1) % 2], a[s % 2], dst=(x - 1) % p, axis=0)
                    T.copy(b[(s + 1) % 2], b[s % 2], dst=(y - 1) % p, axis=1)
                T.gemm(a[s % 2], b[s % 2], c)
                T.barrier()
            T.copy(C[y * t, x * t], c)

    return k, [nrm(n, n), nrm(n, n), z(n, n)]


def ag_gemm_tiles3():
    n_, rows, K, N, bM, bN = 3, 12, 20, 15, 6, 5

    @T.program
    def k(
        A: T.Tensor((n_ * rows, K), "f32"),
        B: T.Tensor((K, n_ * N), "f32"),
        C: T.Tensor((n_ * rows, n_ * N), "f32"),
    ):
        with (
            T.Kernel(device=n_, block=(N // bN, rows // bM), threads=32) as (bx, by),
            T.Scale("device") as (r, _n),
        ):
            a_ = T.view(A, layout=T.FullRow)
            b_ = T.view(B, layout=T.FullCol)
            c_ = T.view(C, layout=T.FullCol)
            all_a = T.alloc((n_ * rows, K), "f32", level="l2")
            ready = T.alloc((n_, rows // bM), "i32", level="l2")
            with T.Scale("block"):
                t = T.alloc((bM, K), "f32", level="l1")
                b = T.alloc((K, bN), "f32", level="l1")
                c = T.alloc((bM, bN), "f32")
                if bx == 0:
                    T.copy(t, a_[by * bM, 0])
                    for d in T.serial(n_):
                        T.copy(
                            all_a[r * rows + by * bM : r * rows + by * bM + bM, :], t, dst=d, scale="device"
                        )
                        T.signal(ready[r, by], dst=d, scale="device")
                T.copy(b, b_[0, bx * bN])
                for d in T.serial(n_):
                    T.wait(ready[d, by], 1, scale="device")
                    T.copy(t, all_a[d * rows + by * bM, 0])
                    T.gemm(t, b, c, clear_accum=True)
                    T.copy(c_[d * rows + by * bM, bx * bN], c)

    return k, [nrm(n_ * rows, K), nrm(K, n_ * N), z(n_ * rows, n_ * N)]


def gemm_rs_tiles3():
    n_, M, K, N, bM, bN = 3, 18, 21, 10, 6, 5

    @T.program
    def k(A: T.Tensor((M, K), "f32"), B: T.Tensor((K, N), "f32"), C: T.Tensor((M, N), "f32")):
        with (
            T.Kernel(device=n_, block=(N // bN, M // bM), threads=32) as (bx, by),
            T.Scale("device") as (_r, _n),
        ):
            a_ = T.view(A, layout=T.FullCol)
            b_ = T.view(B, layout=T.FullRow)
            c_ = T.view(C, layout=T.FullRow)
            T.fill(c_, 0)
            T.barrier()
            with T.Scale("block"):
                a = T.alloc((bM, K // n_), "f32", level="l1")
                b = T.alloc((K // n_, bN), "f32", level="l1")
                c = T.alloc((bM, bN), "f32")
                T.copy(a, a_[by * bM, 0])
                T.copy(b, b_[0, bx * bN])
                T.gemm(a, b, c, clear_accum=True)
                T.atomic_add(c_[0:bM, bx * bN : bx * bN + bN], c, dst=by, scale="device")
            T.barrier()

    return k, [nrm(M, K), nrm(K, N), z(M, N)]


def stencil2d(steps=3, nx=19, ny=13, bx_=8, by_=8):
    @T.program
    def k(X: T.Tensor((ny, nx), "f32"), Y: T.Tensor((ny, nx), "f32")):
        with (
            T.Kernel(device=1, block=(T.ceildiv(nx, bx_), T.ceildiv(ny, by_)), threads=64) as (bx, by),
            T.Scale("device"),
        ):
            tmp = T.alloc((2, ny, nx), "f32", level="l2")
            T.copy(tmp[0], X)
            T.copy(tmp[1], X)
            for s in T.serial(steps):
                with T.Scale("block"):
                    T.alloc((by_, bx_), "f32")
                    for i, j in T.Parallel(by_, bx_):
                        y = by * by_ + i
                        x = bx * bx_ + j
                        if y > 0 and y < ny - 1 and x > 0 and x < nx - 1:
                            tmp[(s + 1) % 2, y, x] = 0.25 * (
                                tmp[s % 2, y - 1, x]
                                + tmp[s % 2, y + 1, x]
                                + tmp[s % 2, y, x - 1]
                                + tmp[s % 2, y, x + 1]
                            )
            T.copy(Y, tmp[steps % 2])

    return k, [nrm(ny, nx), z(ny, nx)]


def stencil_cores():
    p, q, h, w = 3, 2, 4, 5

    @T.program
    def k(X: T.Tensor((q * h, p * w), "f32"), Y: T.Tensor((q * h, p * w), "f32")):
        with T.Kernel(block=(p, q), threads=32) as (x, y):
            t = T.alloc((h + 2, w + 2), "f32", level="l1")
            o = T.alloc((h, w), "f32", level="l1")
            T.clear(t)
            T.copy(t[1 : h + 1, 1 : w + 1], X[y * h, x * w])
            T.barrier()
            for _s in T.serial(2):
                if x + 1 < p:
                    T.copy(t[1 : h + 1, 0:1], t[1 : h + 1, w : w + 1], dst=x + 1, axis=0)
                if x > 0:
                    T.copy(t[1 : h + 1, w + 1 : w + 2], t[1 : h + 1, 1:2], dst=x - 1, axis=0)
                if y + 1 < q:
                    T.copy(t[0:1, 1 : w + 1], t[h : h + 1, 1 : w + 1], dst=y + 1, axis=1)
                if y > 0:
                    T.copy(t[h + 1 : h + 2, 1 : w + 1], t[1:2, 1 : w + 1], dst=y - 1, axis=1)
                T.barrier()
                for i, j in T.Parallel(h, w):
                    o[i, j] = 0.2 * (
                        t[i + 1, j + 1] + t[i, j + 1] + t[i + 2, j + 1] + t[i + 1, j] + t[i + 1, j + 2]
                    )
                T.copy(t[1 : h + 1, 1 : w + 1], o)
                T.barrier()
            T.copy(Y[y * h, x * w], o)

    return k, [nrm(q * h, p * w), z(q * h, p * w)]


def persistent_odd():
    M, N, K, t, blocks = 70, 90, 33, 32, 7
    gm, gn = -(-M // t), -(-N // t)

    @T.program
    def k(A: T.Tensor((M, K), "f16"), B: T.Tensor((K, N), "f16"), C: T.Tensor((M, N), "f16")):
        with T.Kernel(block=blocks, threads=128) as b_:
            a = T.alloc((t, t), "f16", level="l1")
            b = T.alloc((t, t), "f16", level="l1")
            c = T.alloc((t, t), "f32")
            h = T.alloc((t, t), "f16")
            for w in T.Persistent(gm * gn, blocks, b_):
                T.clear(c)
                for i in T.Pipelined(T.ceildiv(K, t), num_stages=2):
                    T.copy(a, A[w // gn * t, i * t])
                    T.copy(b, B[i * t, w % gn * t])
                    T.gemm(a, b, c)
                T.copy(h, c)
                T.copy(C[w // gn * t, w % gn * t], h)

    return k, [nrm(M, K, dt="f2"), nrm(K, N, dt="f2"), z(M, N, dt="f2")]


def paged_decode_gqa():
    Rq, H, G, D, page, pages, most = 3, 5, 1, 8, 4, 9, 4

    @T.program
    def k(
        Q: T.Tensor((Rq, H, D), "f16"),
        K: T.Tensor((pages, G, page, D), "f16"),
        V: T.Tensor((pages, G, page, D), "f16"),
        Tab: T.Tensor((Rq, most), "i32"),
        L: T.Tensor((Rq,), "i32"),
        Out: T.Tensor((Rq, H, D), "f32"),
    ):
        with T.Kernel(block=(Rq, G), threads=32) as (r, g):
            h_ = H // G
            q = T.alloc((h_, D), "f16", level="l1")
            kk = T.alloc((page, D), "f16", level="l1")
            v = T.alloc((page, D), "f16", level="l1")
            s = T.alloc((h_, page), "f32")
            ps = T.alloc((h_, page), "f16")
            o = T.alloc((h_, D), "f32")
            m = T.alloc((h_,), "f32")
            m0 = T.alloc((h_,), "f32")
            den = T.alloc((h_,), "f32")
            p = T.alloc((h_,), "f32")
            T.copy(q, Q[r, g * h_ : g * h_ + h_, 0:D])
            T.clear(o)
            T.clear(den)
            T.fill(m, -1e30)
            n = T.read_scalar(L[r], bound=most * page)
            for i in T.serial(T.ceildiv(n, page)):
                at = T.read_scalar(Tab[r, i], bound=pages - 1)
                T.copy(kk, K[at, g, 0:page, 0:D])
                T.copy(v, V[at, g, 0:page, 0:D])
                T.gemm(q, kk, s, transpose_B=True, clear_accum=True)
                for a, b in T.Parallel(h_, page):
                    s[a, b] = T.if_then_else(i * page + b < n, s[a, b] * 0.3, -1e30)
                T.copy(m0, m)
                T.reduce_max(s, m, dim=1, clear=False)
                for a, b in T.Parallel(h_, page):
                    s[a, b] = T.exp(s[a, b] - m[a])
                T.reduce_sum(s, p, dim=1)
                T.copy(ps, s)
                for a in T.Parallel(h_):
                    den[a] = den[a] * T.exp(m0[a] - m[a]) + p[a]
                for a, b in T.Parallel(h_, D):
                    o[a, b] *= T.exp(m0[a] - m[a])
                T.gemm(ps, v, o)
            for a, b in T.Parallel(h_, D):
                o[a, b] = T.if_then_else(den[a] > 0.0, o[a, b] / den[a], 0.0)
            T.copy(Out[r, g * h_ : g * h_ + h_, 0:D], o)

    return k, [
        nrm(Rq, H, D, dt="f2"),
        nrm(pages, G, page, D, dt="f2"),
        nrm(pages, G, page, D, dt="f2"),
        R.integers(0, pages, (Rq, most)).astype("i4"),
        np.array([0, 5, 16], "i4"),
        z(Rq, H, D),
    ]


def fp8_ws(blocks=3):
    M, N, K, t, slots = 32, 32 * blocks, 160, 32, 3
    e = ml_dtypes.float8_e4m3fn

    @T.program
    def k(
        A: T.Tensor((M, K), "f8e4m3"),
        B: T.Tensor((N, K), "f8e4m3"),
        S: T.Tensor((N,), "f32"),
        C: T.Tensor((M, N), "f32"),
    ):
        with T.Kernel(block=blocks, warpgroup=3) as bx:
            a = T.alloc((slots, M, t), "f8e4m3", level="l1")
            b = T.alloc((slots, t, t), "f8e4m3", level="l1")
            with T.Scale("warpgroup") as (wg, _):
                full = T.alloc((slots,), "i32", level="l1")
                empty = T.alloc((slots,), "i32", level="l1")
                c = T.alloc((M // 2, t), "f32")
                s = T.alloc((t,), "f32")
                if wg == 0:
                    for i in T.serial(K // t):
                        if i >= slots:
                            T.wait(empty[i % slots], 2 * (i // slots))
                        T.copy(a[i % slots, 0:M, 0:t], A[0, i * t])
                        T.copy(b[i % slots, 0:t, 0:t], B[bx * t, i * t])
                        T.signal(full[i % slots], dst=1)
                        T.signal(full[i % slots], dst=2)
                else:
                    T.clear(c)
                    for i in T.serial(K // t):
                        T.wait(full[i % slots], i // slots + 1)
                        T.gemm(
                            a[i % slots, (wg - 1) * (M // 2) : (wg - 1) * (M // 2) + M // 2, 0:t],
                            b[i % slots],
                            c,
                            transpose_B=True,
                        )
                        T.signal(empty[i % slots], dst=0)
                    T.copy(s, S[bx * t])
                    for i, j in T.Parallel(M // 2, t):
                        c[i, j] = c[i, j] * s[j]
                    T.copy(C[(wg - 1) * (M // 2), bx * t], c)

    return k, [nrm(M, K, dt=e), nrm(N, K, dt=e), nrm(N), z(M, N)]


def cluster_mc():
    @T.program
    def k(A: T.Tensor((4 * 20, 24), "f16"), B: T.Tensor((24, 16 * 3), "f16"), C: T.Tensor((80, 48), "f32")):
        with T.Kernel(cluster=3, block=4, threads=64), T.Scale("cluster") as cx, T.Scale("block") as (b, _):
            a = T.alloc((20, 24), "f16", level="l1")
            s = T.alloc((24, 16), "f16", level="l1")
            c = T.alloc((20, 16), "f32")
            T.copy(a, A[b * 20, 0])
            if b == 0:
                T.copy(s, B[0, cx * 16])
                for d in range(1, 4):
                    T.copy(s, s, dst=d)
            T.barrier()
            T.gemm(a, s, c, clear_accum=True)
            T.copy(C[b * 20, cx * 16], c)

    return k, [nrm(80, 24, dt="f2"), nrm(24, 48, dt="f2"), z(80, 48)]


def layernorm_bf16():
    M, N = 13, 50
    bf = ml_dtypes.bfloat16

    @T.program
    def k(X: T.Tensor((M, N), "bf16"), G: T.Tensor((N,), "f32"), Y: T.Tensor((M, N), "bf16")):
        with T.Kernel(block=T.ceildiv(M, 4), threads=64) as bx:
            x = T.alloc((4, N), "f32")
            mu = T.alloc((4,), "f32")
            va = T.alloc((4,), "f32")
            g = T.alloc((N,), "f32")
            y = T.alloc((4, N), "bf16")
            sq = T.alloc((4, N), "f32")
            T.copy(x, X[bx * 4, 0])
            T.copy(g, G)
            T.reduce_sum(x, mu, dim=1)
            for i, j in T.Parallel(4, N):
                x[i, j] = x[i, j] - mu[i] / N
                sq[i, j] = x[i, j] * x[i, j]
            T.reduce_sum(sq, va, dim=1)
            for i, j in T.Parallel(4, N):
                y[i, j] = T.cast(x[i, j] * T.rsqrt(va[i] / N + 1e-5) * g[j], "bf16")
            T.copy(Y[bx * 4, 0], y)

    return k, [nrm(M, N).astype(bf), nrm(N), z(M, N, dt=bf)]


def tp_mlp3():
    M, D, F, n_, t = 20, 12, 18, 3, 10

    @T.program
    def k(
        X: T.Tensor((M, D), "f32"),
        W1: T.Tensor((D, F), "f32"),
        W2: T.Tensor((F, D), "f32"),
        Y: T.Tensor((M, D), "f32"),
    ):
        with T.Kernel(device=n_, block=M // t, threads=64) as bx:
            with T.Scale("device"):
                x_ = T.view(X, layout=T.Replica)
                w1 = T.view(W1, layout=T.FullCol)
                w2 = T.view(W2, layout=T.FullRow)
                y_ = T.view(Y, layout=T.Replica)
                h_ = T.alloc((M, F // n_), "f32", level="l2")
            with T.Scale("block"):
                x = T.alloc((t, D), "f32", level="l1")
                w = T.alloc((D, F // n_), "f32", level="l1")
                h = T.alloc((t, F // n_), "f32")
                T.copy(x, x_[bx * t, 0])
                T.copy(w, w1)
                T.gemm(x, w, h, clear_accum=True)
                for i, j in T.Parallel(t, F // n_):
                    h[i, j] = T.max(h[i, j], 0.0)
                T.copy(h_[bx * t, 0], h)
            with T.Scale("block"):
                g = T.alloc((t, F // n_), "f32", level="l1")
                v = T.alloc((F // n_, D), "f32", level="l1")
                y = T.alloc((t, D), "f32")
                T.copy(g, h_[bx * t, 0])
                T.copy(v, w2)
                T.gemm(g, v, y, clear_accum=True)
                T.copy(y_[bx * t, 0], y)
            with T.Scale("device"):
                T.allreduce(y_)

    return k, [nrm(M, D), nrm(D, F), nrm(F, D), z(M, D)]


def uneven_shards3():
    M, N = 10, 6

    @T.program
    def k(X: T.Tensor((M, N), "f32"), Y: T.Tensor((M, N), "f32")):
        with T.Kernel(device=3, block=2, threads=32) as bx:
            with T.Scale("device"):
                x_ = T.view(X, layout=T.FullRow)
                y_ = T.view(Y, layout=T.FullRow)
            with T.Scale("block"):
                t = T.alloc((2, N), "f32")
                T.copy(t, x_[bx * 2, 0])
                for i, j in T.Parallel(2, N):
                    t[i, j] = t[i, j] + 1.0
                T.copy(y_[bx * 2, 0], t)

    return k, [nrm(M, N), z(M, N)]


def transpose_odd():
    M, N, t = 33, 21, 16

    @T.program
    def k(X: T.Tensor((M, N), "f32"), Y: T.Tensor((N, M), "f32")):
        with T.Kernel(block=(T.ceildiv(N, t), T.ceildiv(M, t)), threads=64) as (bx, by):
            a = T.alloc((t, t), "f32", level="l1")
            b = T.alloc((t, t), "f32", level="l1")
            T.copy(a, X[by * t, bx * t])
            for i, j in T.Parallel(t, t):
                b[i, j] = a[j, i]
            T.copy(Y[bx * t, by * t], b)

    return k, [nrm(M, N), z(N, M)]


def topk_argmax():
    M, N = 6, 11

    @T.program
    def k(X: T.Tensor((M, N), "f32"), At: T.Tensor((M,), "i32")):
        with T.Kernel(block=M, threads=32) as r:
            best = T.alloc((1,), "f32")
            at = T.alloc((1,), "i32")
            best[0] = -1e30
            at[0] = 0
            for j in T.serial(N):
                if X[r, j] > best[0]:
                    best[0] = X[r, j]
                    at[0] = j
            At[r] = at[0]

    return k, [nrm(M, N), z(M, dt="i4")]


def scan_blocks():  # decoupled: block b waits for block b-1
    n_, t = 5, 8

    @T.program
    def k(X: T.Tensor((n_ * t,), "f32"), Y: T.Tensor((n_ * t,), "f32")):
        with T.Kernel(block=n_, threads=32) as b:
            x = T.alloc((t,), "f32", level="l1")
            y = T.alloc((t,), "f32", level="l1")
            carry = T.alloc((1,), "f32", level="l1")
            f = T.alloc((1,), "i32", level="l1")
            T.copy(x, X[b * t])
            T.cumsum(x, y, dim=0)
            T.clear(carry)
            T.barrier()
            if b > 0:
                T.wait(f, 1)
            for i in T.Parallel(t):
                y[i] = y[i] + carry[0]
            if b < n_ - 1:
                T.copy(carry, y[t - 1 : t], dst=b + 1)
                T.signal(f, dst=b + 1)
            T.copy(Y[b * t], y)

    return k, [nrm(n_ * t), z(n_ * t)]


def scatter_rows():
    n, D = 12, 5

    @T.program
    def k(X: T.Tensor((n, D), "f32"), P: T.Tensor((n,), "i32"), Y: T.Tensor((n, D), "f32")):
        with T.Kernel(block=3, threads=32) as b:
            x = T.alloc((4, D), "f32", level="l1")
            T.copy(x, X[b * 4, 0])
            for i in T.serial(4):
                at = T.read_scalar(P[b * 4 + i], bound=n - 1)
                T.copy(Y[at, 0:D], x[i, 0:D])

    return k, [nrm(n, D), R.permutation(n).astype("i4"), z(n, D)]


def scatter_elementwise():
    n, D = 12, 5

    @T.program
    def k(X: T.Tensor((n, D), "f32"), P: T.Tensor((n,), "i32"), Y: T.Tensor((n, D), "f32")):
        with T.Kernel(block=3, threads=32) as b:
            for i, j in T.Parallel(4, D):
                Y[P[b * 4 + i], j] = X[b * 4 + i, j] * 2.0

    return k, [nrm(n, D), R.permutation(n).astype("i4"), z(n, D)]


def gather_elementwise():
    n, D = 13, 5

    @T.program
    def k(
        X: T.Tensor((n, D), "f32"),
        P: T.Tensor((n,), "i32"),
        W: T.Tensor((n,), "f32"),
        Y: T.Tensor((n, D), "f32"),
    ):
        with T.Kernel(block=T.ceildiv(n, 4), threads=32) as b:
            for i, j in T.Parallel(4, D):
                if b * 4 + i < n:
                    Y[b * 4 + i, j] = X[P[b * 4 + i], j] * W[b * 4 + i]

    return k, [nrm(n, D), R.integers(0, n, n).astype("i4"), nrm(n), z(n, D)]


def moe_topk():  # route, expert gemm by masked, combine with atomics
    tok, D, F, E, K = 10, 8, 6, 4, 2

    @T.program
    def k(
        X: T.Tensor((tok, D), "f32"),
        W: T.Tensor((E, D, F), "f32"),
        Id: T.Tensor((tok, K), "i32"),
        P: T.Tensor((tok, K), "f32"),
        Y: T.Tensor((tok, F), "f32"),
    ):
        with T.Kernel(block=E, threads=32) as e:
            x = T.alloc((tok, D), "f32", level="l1")
            w = T.alloc((D, F), "f32", level="l1")
            y = T.alloc((tok, F), "f32")
            g = T.alloc((tok,), "f32")
            T.copy(x, X)
            T.copy(w, W[e, 0, 0])
            T.gemm(x, w, y, clear_accum=True)
            T.clear(g)
            for s in T.serial(K):
                for i in T.Parallel(tok):
                    if Id[i, s] == e:
                        g[i] = g[i] + P[i, s]
            for i, j in T.Parallel(tok, F):
                y[i, j] = y[i, j] * g[i]
            T.atomic_add(Y[0, 0], y)

    ids = np.stack([R.permutation(3)[:2] for _ in range(tok)]).astype("i4")  # expert 3 is empty
    return k, [nrm(tok, D), nrm(E, D, F), ids, np.abs(nrm(tok, K)), z(tok, F)]


def moe_ep3():  # expert parallel: counts per device, all_to_all, grouped gemm by blocks, back
    n, tok, D = 3, 8, 4

    @T.program
    def k(
        X: T.Tensor((n * tok, D), "f32"),
        C: T.Tensor((n * n,), "i32"),
        W: T.Tensor((n, D, D), "f32"),
        Y: T.Tensor((n * tok, D), "f32"),
    ):
        with T.Kernel(device=n, block=3, threads=32) as b, T.Scale("device") as (_r, _m):
            x = T.view(X, layout=T.FullRow)
            c = T.view(C, layout=T.FullRow)
            w = T.view(W, layout=T.FullRow)
            y = T.view(Y, layout=T.FullRow)
            got = T.alloc((n * tok, D), "f32", level="l2")
            out = T.alloc((n * tok, D), "f32", level="l2")
            rec = T.alloc((n,), "i32", level="l2")
            rec2 = T.alloc((n,), "i32", level="l2")
            T.clear(got)
            T.all_to_all(got, x, c, rec)
            with T.Scale("block"):
                t = T.alloc((8, D), "f32", level="l1")
                ww = T.alloc((D, D), "f32", level="l1")
                o = T.alloc((8, D), "f32")
                T.copy(t, got[b * 8, 0])
                T.copy(ww, w[0])
                T.gemm(t, ww, o, clear_accum=True)
                T.copy(out[b * 8, 0], o)
            T.all_to_all(y, out, rec, rec2)

    c = np.array([[3, 5, 0], [0, 8, 0], [1, 0, 7]], "i4").reshape(-1)
    return k, [nrm(n * tok, D), c, nrm(n, D, D), z(n * tok, D)]


def split_kv_decode():
    H, S, D, parts, t = 4, 50, 8, 3, 10
    per = -(-S // (parts * t))

    @T.program
    def k(
        Q: T.Tensor((H, D), "f32"),
        K: T.Tensor((S, D), "f32"),
        V: T.Tensor((S, D), "f32"),
        PO: T.Tensor((parts, H, D), "f32"),
        PM: T.Tensor((parts, H), "f32"),
        PL: T.Tensor((parts, H), "f32"),
        Out: T.Tensor((H, D), "f32"),
    ):
        with T.Kernel(device=1, block=parts, threads=32) as b:
            with T.Scale("block"):
                q = T.alloc((H, D), "f32", level="l1")
                kk = T.alloc((t, D), "f32", level="l1")
                v = T.alloc((t, D), "f32", level="l1")
                s = T.alloc((H, t), "f32")
                o = T.alloc((H, D), "f32")
                m = T.alloc((H,), "f32")
                m0 = T.alloc((H,), "f32")
                den = T.alloc((H,), "f32")
                p = T.alloc((H,), "f32")
                T.copy(q, Q)
                T.clear(o)
                T.clear(den)
                T.fill(m, -1e30)
                for i in T.Pipelined(per, num_stages=2):
                    T.copy(kk, K[(b * per + i) * t, 0])
                    T.copy(v, V[(b * per + i) * t, 0])
                    T.gemm(q, kk, s, transpose_B=True, clear_accum=True)
                    for h, j in T.Parallel(H, t):
                        s[h, j] = T.if_then_else((b * per + i) * t + j < S, s[h, j], -1e30)
                    T.copy(m0, m)
                    T.reduce_max(s, m, dim=1, clear=False)
                    for h, j in T.Parallel(H, t):
                        s[h, j] = T.if_then_else((b * per + i) * t + j < S, T.exp(s[h, j] - m[h]), 0.0)
                    T.reduce_sum(s, p, dim=1)
                    for h in T.Parallel(H):
                        den[h] = den[h] * T.exp(m0[h] - m[h]) + p[h]
                    for h, d in T.Parallel(H, D):
                        o[h, d] *= T.exp(m0[h] - m[h])
                    T.gemm(s, v, o)
                T.copy(PO[b, 0:H, 0:D], o)
                T.copy(PM[b, 0:H], m)
                T.copy(PL[b, 0:H], den)
            with T.Scale("block"):
                if b == 0:
                    po = T.alloc((parts, H, D), "f32")
                    pm = T.alloc((parts, H), "f32")
                    pl = T.alloc((parts, H), "f32")
                    out = T.alloc((H, D), "f32")
                    tot = T.alloc((H,), "f32")
                    top = T.alloc((H,), "f32")
                    T.copy(po, PO)
                    T.copy(pm, PM)
                    T.copy(pl, PL)
                    T.reduce_max(pm, top, dim=0)
                    T.clear(out)
                    T.clear(tot)
                    for i in T.serial(parts):
                        for h in T.Parallel(H):
                            tot[h] = tot[h] + pl[i, h] * T.exp(pm[i, h] - top[h])
                        for h, d in T.Parallel(H, D):
                            out[h, d] = out[h, d] + po[i, h, d] * T.exp(pm[i, h] - top[h])
                    for h, d in T.Parallel(H, D):
                        out[h, d] /= tot[h]
                    T.copy(Out, out)

    return k, [nrm(H, D), nrm(S, D), nrm(S, D), z(parts, H, D), z(parts, H), z(parts, H), z(H, D)]


def varlen_attention():
    B, H, D, maxs, bM = 3, 2, 8, 16, 8
    lens = np.array([5, 16, 9], "i4")
    off = np.array([0, 5, 21], "i4")
    tot = 30

    @T.program
    def k(
        Q: T.Tensor((tot, H, D), "f32"),
        K: T.Tensor((tot, H, D), "f32"),
        V: T.Tensor((tot, H, D), "f32"),
        L: T.Tensor((B,), "i32"),
        S: T.Tensor((B,), "i32"),
        Out: T.Tensor((tot, H, D), "f32"),
    ):
        with T.Kernel(block=(T.ceildiv(maxs, bM), H, B), threads=32) as (bx, h, b):
            q = T.alloc((bM, D), "f32", level="l1")
            kk = T.alloc((maxs, D), "f32", level="l1")
            v = T.alloc((maxs, D), "f32", level="l1")
            s = T.alloc((bM, maxs), "f32")
            o = T.alloc((bM, D), "f32")
            m = T.alloc((bM,), "f32")
            den = T.alloc((bM,), "f32")
            n = T.read_scalar(L[b], bound=maxs)
            st = T.read_scalar(S[b], bound=tot)
            T.copy(q, Q[st + bx * bM : st + bx * bM + bM, h, 0:D])
            T.copy(kk, K[st : st + maxs, h, 0:D])
            T.copy(v, V[st : st + maxs, h, 0:D])
            T.gemm(q, kk, s, transpose_B=True, clear_accum=True)
            for i, j in T.Parallel(bM, maxs):
                s[i, j] = T.if_then_else(j < n, s[i, j], -1e30)
            T.reduce_max(s, m, dim=1)
            for i, j in T.Parallel(bM, maxs):
                s[i, j] = T.exp(s[i, j] - m[i])
            T.reduce_sum(s, den, dim=1)
            T.gemm(s, v, o, clear_accum=True)
            for i, j in T.Parallel(bM, D):
                if bx * bM + i < n:
                    Out[st + bx * bM + i, h, j] = o[i, j] / den[i]

    return k, [nrm(tot, H, D), nrm(tot, H, D), nrm(tot, H, D), lens, off, z(tot, H, D)]


def ticket_gemm():
    M, N, K, t, blocks = 50, 40, 30, 16, 3
    gm, gn = -(-M // t), -(-N // t)

    @T.program
    def k(
        A: T.Tensor((M, K), "f32"),
        B: T.Tensor((K, N), "f32"),
        Q: T.Tensor((1,), "i32"),
        C: T.Tensor((M, N), "f32"),
    ):
        with T.Kernel(block=blocks, threads=32):
            a = T.alloc((t, K), "f32", level="l1")
            b = T.alloc((K, t), "f32", level="l1")
            c = T.alloc((t, t), "f32")
            w = T.atomic_add(Q[0], 1, return_prev=True)
            while T.bounded(w < gm * gn, 64):
                T.copy(a, A[w // gn * t, 0])
                T.copy(b, B[0, w % gn * t])
                T.gemm(a, b, c, clear_accum=True)
                T.copy(C[w // gn * t, w % gn * t], c)
                w = T.atomic_add(Q[0], 1, return_prev=True)

    return k, [nrm(M, K), nrm(K, N), z(1, dt="i4"), z(M, N)]


def summa_2x3():
    px, py, t = 3, 2, 6
    M, N, K = py * t, px * t, 6 * t

    @T.program
    def k(A: T.Tensor((M, K), "f32"), B: T.Tensor((K, N), "f32"), C: T.Tensor((M, N), "f32")):
        with T.Kernel(device=(px, py), block=1, threads=32), T.Scale("device") as rank:
            x, y = rank.coords
            Am = T.view(A, layout=(T.Shard(1), T.Shard(0)))
            Bm = T.view(B, layout=(T.Shard(1), T.Shard(0)))
            Cm = T.view(C, layout=(T.Shard(1), T.Shard(0)))
            a = T.alloc((t, t), "f32", level="l2")
            b = T.alloc((t, t), "f32", level="l2")
            T.fill(Cm, 0)
            for i in T.serial(6):
                if x == i // 2:
                    T.copy(a, Am[0, (i % 2) * t])
                if y == i // 3:
                    T.copy(b, Bm[(i % 3) * t, 0])
                T.broadcast(a, root=i // 2, axis=0)
                T.broadcast(b, root=i // 3, axis=1)
                T.gemm(a, b, Cm)

    return k, [nrm(M, K), nrm(K, N), z(M, N)]


def cta_cluster_gemm():
    M, N, K = 64, 96, 32

    @T.program
    def k(A: T.Tensor((M, K), "f16"), B: T.Tensor((K, N), "f16"), C: T.Tensor((M, N), "f32")):
        with T.Kernel(cta_cluster=2, block=(6, 4), threads=64) as (bx, by):
            a = T.alloc((16, K), "f16", level="l1")
            b = T.alloc((K, 16), "f16", level="l1")
            c = T.alloc((16, 16), "f32")
            T.copy(a, A[by * 16, 0])
            T.copy(b, B[0, bx * 16])
            T.gemm(a, b, c, clear_accum=True)
            T.copy(C[by * 16, bx * 16], c)

    return k, [nrm(M, K, dt="f2"), nrm(K, N, dt="f2"), z(M, N)]


def multicast_impl():
    @T.program
    def k(B: T.Tensor((24, 48), "f32"), C: T.Tensor((4, 24, 48), "f32")):
        with T.Kernel(cluster=3, block=4, threads=64), T.Scale("cluster") as cx, T.Scale("block") as (b, _):
            s = T.alloc((24, 16), "f32", level="l1")
            T.clear(s)
            if b == 1:
                T.copy(s, B[0, cx * 16])
            T.broadcast(s, root=1, impl="multicast")
            T.copy(C[b, 0:24, cx * 16 : cx * 16 + 16], s)

    return k, [nrm(24, 48), z(4, 24, 48)]


def rs_ag_rows3():
    n, M, N = 3, 9, 4

    @T.program
    def k(X: T.Tensor((n * M, N), "f32"), Y: T.Tensor((n * M, N), "f32")):
        with T.Kernel(device=n, block=1, threads=32), T.Scale("device") as (_r, _m):
            x = T.view(X, layout=T.FullRow)
            y = T.view(Y, layout=T.FullRow)
            p = T.alloc((M // n, N), "f32", level="l2")
            q = T.alloc((M, N), "f32", level="l2")
            T.reduce_scatter(p, x)
            T.allgather(q, p)
            T.copy(y, q)

    return k, [nrm(n * M, N), z(n * M, N)]


def conv1d_halo3():
    n, L = 3, 7

    @T.program
    def k(X: T.Symmetric((L + 2,), "f32"), Y: T.Symmetric((L,), "f32")):
        with T.Kernel(device=n, block=1, threads=32), T.Scale("device") as (r, m):
            if r + 1 < m:
                T.copy(X[0:1], X[L : L + 1], dst=r + 1)
            if r > 0:
                T.copy(X[L + 1 : L + 2], X[1:2], dst=r - 1)
            T.barrier()
            for i in T.Parallel(L):
                Y[i] = 0.25 * X[i] + 0.5 * X[i + 1] + 0.25 * X[i + 2]

    x = nrm(n, L + 2)
    x[0, 0] = 0
    x[-1, -1] = 0
    return k, [x, z(n, L)]


def wafer_gemv():
    p, q, h, w = 3, 4, 5, 6

    @T.program
    def k(A: T.Tensor((q * h, p * w), "f32"), X: T.Tensor((p * w,), "f32"), Y: T.Tensor((q * h,), "f32")):
        with T.Kernel(block=(p, q), threads=32) as (x, y):
            a = T.alloc((h, w), "f32", level="l1")
            v = T.alloc((w,), "f32", level="l1")
            s = T.alloc((h,), "f32", level="l1")
            t = T.alloc((h, w), "f32", level="l1")
            T.copy(a, A[y * h, x * w])
            T.copy(v, X[x * w])
            for i, j in T.Parallel(h, w):
                t[i, j] = a[i, j] * v[j]
            T.reduce_sum(t, s, dim=1)
            T.allreduce(s, axis=0)
            if x == 0:
                T.copy(Y[y * h], s)

    return k, [nrm(q * h, p * w), nrm(p * w), z(q * h)]
