"""Pairs of kernels of several devices: one talks more, later or less evenly than it need, and its twin."""

import megatile.language as T


def sums(pieces=1, rows=1024, n=1024, devices=4):
    """A tile summed over the devices, in one collective or in many."""
    each = rows // pieces

    @T.program
    def summed(X: T.Tensor((devices * rows, n), "f32"), Y: T.Tensor((rows, n), "f32")):
        with T.Kernel(device=devices), T.Scale("device"):
            x, y = T.view(X, layout=T.FullRow), T.view(Y, layout=T.Replica)
            part = T.alloc((rows, n), "f32", level="l2")
            T.copy(part, x)
            for p in range(pieces):
                T.allreduce(part[p * each : (p + 1) * each, :])
            T.copy(y, part)

    return summed


def divided_product(parts=1, M=2048, N=2048, K=8192, devices=2):
    """A product summed over the devices, in parts of its rows."""
    rows, each = M // parts, K // devices

    @T.program
    def layer(A: T.Tensor((M, K), "f16"), B: T.Tensor((K, N), "f16"), C: T.Tensor((M, N), "f16")):
        with T.Kernel(device=devices, block=(N // 128, rows // 128), threads=256) as (bx, by):
            with T.Scale("device"):
                a, b = T.view(A, layout=T.FullCol), T.view(B, layout=T.FullRow)
                c = T.view(C, layout=T.Replica)
            for p in range(parts):
                with T.Scale("block"):
                    left = T.alloc((128, 64), "f16", level="l1")
                    right = T.alloc((64, 128), "f16", level="l1")
                    total = T.alloc((128, 128), "f32")
                    T.clear(total)
                    for k in T.Pipelined(each // 64, num_stages=3):
                        T.copy(left, a[p * rows + by * 128, k * 64])
                        T.copy(right, b[k * 64, bx * 128])
                        T.gemm(left, right, total)
                    T.copy(c[p * rows + by * 128, bx * 128], total)
                with T.Scale("device"):
                    T.allreduce(c[p * rows : (p + 1) * rows, :])

    return layer


def halo(whole=False, n=1 << 20, devices=4, steps=4):
    """Every device puts its vector into its neighbour's memory, which reads 1024 elements of it."""
    wide = n if whole else 1024

    @T.program
    def relaxed(X: T.Tensor((devices, n), "f32"), Y: T.Tensor((devices, n), "f32")):
        with T.Kernel(device=devices), T.Scale("device") as (r, count):
            x, y = T.view(X, layout=T.FullRow), T.view(Y, layout=T.FullRow)
            edge = T.alloc((1, wide), "f32", level="l2")
            for _ in T.serial(steps):
                T.copy(edge, x[:, n - wide : n], dst=(r + 1) % count)
                T.barrier()
                for i, j in T.Parallel(1, 1024):
                    y[i, j] = x[i, j] + edge[i, j]
                T.barrier()

    return relaxed


def own_part(whole=False, n=1 << 22, devices=8):
    """Every device takes its part of a sum: of all of it, or of a reduce-scatter."""
    part = n // devices

    @T.program
    def summed(X: T.Tensor((devices, n), "f32"), Y: T.Tensor((devices, part), "f32")):
        with T.Kernel(device=devices), T.Scale("device") as (r, _):
            x, y = T.view(X, layout=T.FullRow), T.view(Y, layout=T.FullRow)
            if whole:
                t = T.alloc((1, n), "f32", level="l2")
                T.copy(t, x)
                T.allreduce(t)
                T.copy(y, t[:, r * part : (r + 1) * part])
            else:
                p = T.alloc((1, part), "f32", level="l2")
                T.reduce_scatter(p, x)
                T.copy(y, p)

    return summed


def gemm_allreduce(halves=False, M=2048, N=4096, K=4096, devices=8, bM=128, bN=128, bK=64):
    """A tensor parallel product, summed over the devices: at the end, or its first half while the second is
    computed."""
    inner, wide = K // devices, N // 2 if halves else N

    @T.program
    def layer(
        A: T.Tensor((M, K), "f16"),
        B: T.Tensor((2, K, N // 2), "f16"),
        C: T.Tensor((M, N // 2), "f16"),
        D: T.Tensor((M, N // 2), "f16"),
    ):
        with T.Kernel(device=devices, block=(wide // bN, M // bM), threads=256) as (bx, by):
            with T.Scale("device"):
                left, right = T.view(A, layout=T.FullCol), T.view(B, layout=T.Shard(1))
                one, two = T.view(C, layout=T.Replica), T.view(D, layout=T.Replica)

                def product(half, out, first):
                    a = T.alloc((bM, bK), "f16", level="l1")
                    b = T.alloc((bK, bN), "f16", level="l1")
                    c = T.alloc((bM, bN), "f32", level="l0")
                    T.clear(c)
                    for k in T.Pipelined(inner // bK, num_stages=3):
                        T.copy(a, left[by * bM, k * bK])
                        T.copy(b, right[half, k * bK : k * bK + bK, first * bN : first * bN + bN])
                        T.gemm(a, b, c)
                    T.copy(out[by * bM, first * bN], c)

                if halves:
                    with T.Scale("block"):
                        product(0, one, bx)
                    with T.Scale("block"):
                        product(1, two, bx)
                else:
                    with T.Scale("block"):
                        if bx < wide // bN // 2:
                            product(0, one, bx)
                        else:
                            product(1, two, bx - wide // bN // 2)
                T.allreduce(one)
                T.allreduce(two)

    return layer


def shift(pieces=1, n=1 << 20, devices=8):
    """Every device puts its vector into its neighbour's, in one message or in many."""
    each = n // pieces

    @T.program
    def moved(X: T.Tensor((devices, n), "f32"), Y: T.Tensor((devices, n), "f32")):
        with T.Kernel(device=devices), T.Scale("device") as (r, count):
            x, y = T.view(X, layout=T.FullRow), T.view(Y, layout=T.FullRow)
            landing = T.alloc((1, n), "f32", level="l2")
            for i in T.serial(pieces):
                T.copy(
                    landing[:, i * each : i * each + each],
                    x[:, i * each : i * each + each],
                    dst=(r + 1) % count,
                )
            T.barrier()
            T.copy(y, landing)

    return moved


def stencil(every_step=True, steps=64, cells=1 << 16, devices=8):
    """Independent work on every device; a barrier is needed once, at the end."""

    @T.program
    def relaxed(X: T.Tensor((devices, cells), "f32"), Y: T.Tensor((devices, cells), "f32")):
        with T.Kernel(device=devices), T.Scale("device"):
            x, y = T.view(X, layout=T.FullRow), T.view(Y, layout=T.FullRow)
            for s in T.serial(steps):
                for i, j in T.Parallel(1, cells):
                    y[i, j] = x[i, j] * 0.5
                if every_step:
                    T.barrier()
            T.barrier()

    return relaxed


def exchange(many=True, n=4096, devices=8, steps=8):
    """Both neighbours' edges, with a barrier behind each put, or behind the second alone."""

    @T.program
    def kernel(X: T.Tensor((devices, n), "f32")):
        with T.Kernel(block=devices, threads=128) as x:
            with T.Scale("block"):
                mine = T.view(X, layout=T.FullRow)
                u = T.alloc((2, n + 2), "f32", level="l1")
                T.clear(u)
                T.copy(u[0, 1 : n + 1], mine[0, 0:n])
                T.barrier()
                for t in T.serial(steps):
                    now, new = t % 2, (t + 1) % 2
                    if x > 0:
                        T.copy(u[now, n + 1], u[now, 1], dst=x - 1)
                    if many:
                        T.barrier()
                    if x < devices - 1:
                        T.copy(u[now, 0], u[now, n], dst=x + 1)
                    T.barrier()
                    for i in T.Parallel(n):
                        u[new, i + 1] = u[now, i] + u[now, i + 2]
                T.copy(mine[0, 0:n], u[steps % 2, 1 : n + 1])

    return kernel


def gathered(all_of_it=True, rows_of_all=False, M=4096, N=1024, K=1024, devices=4, bM=128, bN=128, bK=64):
    """A product of the unit's own rows, read out of all rows or where they are; or of all rows."""
    rows = M // devices
    mine, whole_rows = 0 if rows_of_all else rows, M if rows_of_all else rows

    @T.program
    def kernel(A: T.Tensor((M, K), "f16"), B: T.Tensor((K, N), "f16"), C: T.Tensor((M, N), "f16")):
        with T.Kernel(device=devices, block=(N // bN, whole_rows // bM), threads=256) as (bx, by):
            with T.Scale("device") as (r, _):
                my_A = T.view(A, layout=T.FullRow)
                my_B = T.view(B, layout=T.Replica)
                my_C = T.view(C, layout=T.Replica if rows_of_all else T.FullRow)
                if all_of_it:
                    whole = T.alloc((M, K), "f16", level="l2")
                    T.allgather(whole, my_A)
                with T.Scale("block"):
                    a = T.alloc((bM, bK), "f16", level="l1")
                    b = T.alloc((bK, bN), "f16", level="l1")
                    c = T.alloc((bM, bN), "f32")
                    T.clear(c)
                    for k in T.Pipelined(K // bK, num_stages=2):
                        if all_of_it:
                            T.copy(a, whole[r * mine + by * bM, k * bK])
                        else:
                            T.copy(a, my_A[by * bM, k * bK])
                        T.copy(b, my_B[k * bK, bx * bN])
                        T.gemm(a, b, c)
                    T.copy(my_C[by * bM, bx * bN], c)

    return kernel


def on_devices(body, n=1 << 18, devices=8, dtype="f32"):
    """A program whose body gets a device's rows of two tensors, its rank, and the number of devices."""

    @T.program
    def rows(X: T.Tensor((devices, n), dtype), Y: T.Tensor((devices, n), dtype)):
        with T.Kernel(device=devices), T.Scale("device") as (r, count):
            body(T.view(X, layout=T.FullRow), T.view(Y, layout=T.FullRow), r, count)

    return rows


def edge_by_gather(x, y, r, count):
    n = x.shape[1]
    every = T.alloc((8, n), "f32", level="l2")
    T.allgather(every, x)
    for i, j in T.Parallel(1, n - 1):
        y[i, j] = x[i, j] + x[i, j + 1]
    y[0, n - 1] = x[0, n - 1] + every[(r + 1) % count, 0]


def edge_by_message(x, y, r, count):
    n = x.shape[1]
    edge = T.alloc((1, 1), "f32", level="l2")
    T.copy(edge, x[:, 0:1], dst=(r + count - 1) % count)
    T.barrier()
    for i, j in T.Parallel(1, n - 1):
        y[i, j] = x[i, j] + x[i, j + 1]
    y[0, n - 1] = x[0, n - 1] + edge[0, 0]


def sum_at_root(x, y, r, count):
    n = x.shape[1]
    inbox, total = T.alloc((8, n), "f32", level="l2"), T.alloc((1, n), "f32", level="l2")
    T.copy(inbox[r, 0:n], x[0, 0:n], dst=0)
    T.barrier()
    if r == 0:
        T.reduce_sum(inbox, total[0, 0:n], dim=0)
        for p in range(1, 8):
            T.copy(total, total, dst=p)
    T.barrier()
    T.copy(y, total)


def sum_of_all(x, y, r, count, dtype="f32"):
    total = T.alloc((1, x.shape[1]), dtype, level="l2")
    T.copy(total, x)
    T.allreduce(total)
    T.copy(y, total)


def exchanged(turned):
    def body(x, y, r, count):
        each = x.shape[1] // 8
        landing = T.alloc((1, x.shape[1]), "f32", level="l2")
        for p in T.serial(8):
            to = (p + r) % 8 if turned else p
            T.copy(landing[:, r * each : r * each + each], x[:, to * each : to * each + each], dst=to)
        T.barrier()
        T.copy(y, landing)

    return body


def worked(alone):
    def body(x, y, r, count):
        total = T.alloc((1, x.shape[1]), "f32", level="l2")
        T.copy(total, x)
        if alone:
            if r == 0:
                for _ in T.serial(16):
                    for i, j in T.Parallel(1, x.shape[1]):
                        total[i, j] = T.exp(total[i, j])
        else:
            for _ in T.serial(2):
                for i, j in T.Parallel(1, x.shape[1]):
                    total[i, j] = T.exp(total[i, j])
        T.allreduce(total)
        T.copy(y, total)

    return body


def across_nodes(whole, n=1 << 20):
    """A sum over two nodes: of all that every device has, or of a part."""

    @T.program
    def summed(X: T.Tensor((16, n), "f32"), Y: T.Tensor((16, n), "f32")):
        with T.Kernel(node=2, device=8), T.Scale("node"):
            x_node, y_node = T.view(X, layout=T.FullRow), T.view(Y, layout=T.FullRow)
            with T.Scale("device"):
                x, y = T.view(x_node, layout=T.FullRow), T.view(y_node, layout=T.FullRow)
                if whole:
                    total = T.alloc((1, n), "f32", level="l2")
                    T.copy(total, x)
                    T.allreduce(total)
                    T.allreduce(total, scale="node")
                    T.copy(y, total)
                else:
                    part = T.alloc((1, n // 8), "f32", level="l2")
                    T.reduce_scatter(part, x)
                    T.allreduce(part, scale="node")
                    T.allgather(y, part)

    return summed


def summed_up(every_step):
    def body(x, y, r, count):
        n = x.shape[1]
        part, total = T.alloc((1, n), "f32", level="l2"), T.alloc((1, n), "f32", level="l2")
        T.clear(total)
        for s in T.serial(8):
            for i, j in T.Parallel(1, n):
                part[i, j] = x[i, j] * 0.5
            if every_step:
                T.allreduce(part)
            for i, j in T.Parallel(1, n):
                total[i, j] = total[i, j] + part[i, j]
        if not every_step:
            T.allreduce(total)
        T.copy(y, total)

    return body


def root_puts(x, y, r, count):
    mine = T.alloc((1, x.shape[1]), "f32", level="l2")
    T.copy(mine, x)
    T.barrier()
    if r == 0:
        for p in T.serial(7):
            T.copy(mine, x, dst=p + 1)
    T.barrier()
    T.copy(y, mine)


def broadcast(x, y, r, count):
    mine = T.alloc((1, x.shape[1]), "f32", level="l2")
    T.copy(mine, x)
    T.broadcast(mine, root=0)
    T.copy(y, mine)


def ring(early, devices=4, rows=512, K=512, N=512):
    """Weights go round: sent on after the product that reads them, or before it."""

    @T.program
    def products(
        A: T.Tensor((devices * rows, K), "f16"),
        B: T.Tensor((devices * K, N), "f16"),
        C: T.Tensor((devices * rows, N), "f32"),
    ):
        with T.Kernel(device=devices, block=(N // 128, rows // 128), threads=256) as (bx, by):
            with T.Scale("device") as (r, n):
                a, w, c = (
                    T.view(A, layout=T.FullRow),
                    T.view(B, layout=T.Replica),
                    T.view(C, layout=T.FullRow),
                )
                buffer = T.alloc((2, K, N), "f16", level="l2")
                T.copy(buffer[0], w[r * K : r * K + K, :])
                T.clear(c)
                T.barrier()
                for s in T.serial(n):
                    if early:
                        T.copy(buffer[(s + 1) % 2], buffer[s % 2], dst=(r + 1) % n)
                    with T.Scale("block"):
                        x, y = T.alloc((128, 64), "f16", level="l1"), T.alloc((64, 128), "f16", level="l1")
                        z = T.alloc((128, 128), "f32")
                        T.copy(z, c[by * 128, bx * 128])
                        for k in T.Pipelined(K // 64, num_stages=3):
                            T.copy(x, a[by * 128, k * 64])
                            T.copy(y, buffer[s % 2, k * 64, bx * 128])
                            T.gemm(x, y, z)
                        T.copy(c[by * 128, bx * 128], z)
                    if not early:
                        T.barrier()
                        T.copy(buffer[(s + 1) % 2], buffer[s % 2], dst=(r + 1) % n)
                    T.barrier()

    return products


def summed_by_gather(x, y, r, count):
    n = x.shape[1]
    every, total = T.alloc((8, n), "f32", level="l2"), T.alloc((n,), "f32", level="l2")
    T.allgather(every, x)
    T.reduce_sum(every, total, dim=0)
    T.copy(y[0, 0:n], total)


def exchanged_parts(of_a_view, n=1 << 16, devices=8):
    """An all-to-all of a part of a view, which copies do, or of a tile, which the library does."""

    @T.program
    def exchange(X: T.Tensor((devices, devices, n), "f16"), Y: T.Tensor((devices, devices, n), "f16")):
        with T.Kernel(device=devices), T.Scale("device"):
            x, y = T.view(X, layout=T.Shard(0)), T.view(Y, layout=T.Shard(0))
            got, mine = T.alloc((devices, n), "f16", level="l2"), T.alloc((devices, n), "f16", level="l2")
            if of_a_view:
                T.all_to_all(got, x[0])
            else:
                T.copy(mine, x[0])
                T.all_to_all(got, mine)
            T.copy(y[0], got)

    return exchange


def gathered_rows(by_hand, M=2048, N=512, K=2048, devices=8):
    """A product with rows of all devices, which a ring of messages brings, or the library."""

    @T.program
    def kernel(
        A: T.Tensor((M, K), "bf16"),
        B: T.Tensor((K, N * devices), "bf16"),
        C: T.Tensor((M, N * devices), "bf16"),
    ):
        with T.Kernel(device=devices, block=(N // 128, M // 128), threads=256) as (bx, by):
            with T.Scale("device") as (r, n):
                own, w = T.view(A, layout=T.FullRow), T.view(B, layout=T.FullCol)
                out, rows = T.view(C, layout=T.FullCol), M // devices
                whole = T.alloc((M, K), "bf16", level="l2")
                if by_hand:
                    T.copy(whole[r * rows : r * rows + rows, :], own)
                    T.barrier()
                    for s in range(devices - 1):
                        at = (r + n - s) % n * rows
                        T.copy(whole[at : at + rows, :], whole[at : at + rows, :], dst=(r + 1) % n)
                        T.barrier()
                else:
                    T.allgather(whole, own)
                with T.Scale("block"):
                    a, b = T.alloc((128, 32), "bf16", level="l1"), T.alloc((32, 128), "bf16", level="l1")
                    c = T.alloc((128, 128), "f32")
                    T.clear(c)
                    for k in T.Pipelined(K // 32, num_stages=3):
                        T.copy(a, whole[by * 128, k * 32])
                        T.copy(b, w[k * 32, bx * 128])
                        T.gemm(a, b, c)
                    T.copy(out[by * 128, bx * 128], c)

    return kernel


PAIRS = {
    "a ring of messages for an all-gather": (
        "collective by hand", gathered_rows(True), gathered_rows(False), "mi300x-8"
    ),
    "all of a vector for its edge": ("unused bytes", halo(True), halo(), "dgx-h100"),
    "all of a sum for a part": ("whole result", own_part(True), own_part(), "dgx-h100"),
    "a sum in 16 pieces": ("small messages", sums(16), sums(), "dgx-h100"),
    "sum after the product": (
        "exposed communication",
        gemm_allreduce(K=2048, devices=2),
        gemm_allreduce(halves=True, K=2048, devices=2),
        "dgx-h100",
    ),
    "256 messages": ("small messages", shift(256, n=1 << 18), shift(n=1 << 18), "dgx-h100"),
    "a barrier each step": ("barriers", stencil(), stencil(False), "dgx-h100"),
    "a barrier behind each put": ("barriers", exchange(), exchange(False), "dgx-h100"),
    "gathered for nothing": ("unread parts", gathered(), gathered(False), "dgx-h100"),
    "all rows for an edge": (
        "unread parts", on_devices(edge_by_gather), on_devices(edge_by_message), "dgx-h100"
    ),
    "through device 0": (
        "collective by hand", on_devices(sum_at_root, 1 << 20), on_devices(sum_of_all, 1 << 20), "dgx-h100"
    ),
    "to device 0 first": (
        "incast", on_devices(exchanged(False), 1 << 22), on_devices(exchanged(True), 1 << 22), "dgx-h100"
    ),
    "device 0 works": (
        "unit balance", on_devices(worked(True), 1 << 20), on_devices(worked(False), 1 << 20), "dgx-h100"
    ),
    "f32 on the links": (
        "wide messages",
        on_devices(lambda *args: sum_of_all(*args, dtype="f32"), 1 << 22, dtype="f16"),
        on_devices(lambda *args: sum_of_all(*args, dtype="f16"), 1 << 22, dtype="f16"),
        "dgx-h100",
    ),
    "all across the nodes": ("nested sums", across_nodes(True), across_nodes(False), "h100-cluster"),
    "a sum in every step": (
        "collective in a loop", on_devices(summed_up(True)), on_devices(summed_up(False)), "dgx-h100"
    ),
    "root puts to all": (
        "collective by hand", on_devices(root_puts, 1 << 20), on_devices(broadcast, 1 << 20), "dgx-h100"
    ),
    "all-to-all of a view": (
        "collective by copies", exchanged_parts(True), exchanged_parts(False), "mi300x-8"
    ),
    "sent on after the product": ("late messages", ring(False), ring(True), "dgx-h100"),
    "all of it to be summed": (
        "collective by hand",
        on_devices(summed_by_gather),
        on_devices(sum_of_all),
        "dgx-h100",
    ),
}  # fmt: skip
"""By the mistake: the finding it should lead to, the slow program, its twin, and the machine."""
