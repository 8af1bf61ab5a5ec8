"""Kernels that tests read into plans and run in the mock."""

from __future__ import annotations


def global_rank(tl):
    return tl.program_id(axis=1) * tl.num_programs(axis=0) + tl.program_id(axis=0)


def hello_send(t_ptr, n_elem, tl):
    mine = t_ptr + global_rank(tl) * n_elem * 2
    tl.send(dir="E", src=tl.load(mine, shape=(n_elem,), dtype="f16"))
    tl.store(mine, tl.recv(dir="W", shape=(n_elem,), dtype="f16"))


def naive_ring(t_ptr, n_elem, world_size, tl):
    """Forward the tile that came last, add every tile up."""
    mine = t_ptr + global_rank(tl) * n_elem * 2
    total = tl.load(mine, shape=(n_elem,), dtype="f16")
    current = total
    for _ in range(world_size - 1):
        tl.send(dir="E", src=current)
        current = tl.recv(dir="W", shape=(n_elem,), dtype="f16")
        total = total + current
    tl.store(mine, total)


def async_ring(t_ptr, n_elem, world_size, tl):
    mine = t_ptr + global_rank(tl) * n_elem * 2
    total = current = tl.load(mine, shape=(n_elem,), dtype="f16")
    for _ in range(world_size - 1):
        future = tl.recv_async(dir="W", shape=(n_elem,), dtype="f16")
        tl.send(dir="E", src=current)
        current = tl.wait(future)
        total = total + current
    tl.store(mine, total)


def chunked_ring(t_ptr, n_elem, world_size, tl):
    """Reduce-scatter, then all-gather, chunk by chunk."""
    rank, chunk = global_rank(tl), n_elem // world_size
    mine = t_ptr + rank * n_elem * 2

    def at(number):
        return mine + number % world_size * chunk * 2

    for step in range(world_size - 1):
        tl.send(dir="E", src=tl.load(at(rank - step), (chunk,)))
        here = at(rank - step - 1)
        tl.store(here, tl.load(here, (chunk,)) + tl.recv(dir="W", shape=(chunk,)))
    for step in range(world_size - 1):
        tl.send(dir="E", src=tl.load(at(rank + 1 - step), (chunk,)))
        tl.store(at(rank - step), tl.recv(dir="W", shape=(chunk,)))


def two_way_ring(t_ptr, n_elem, world_size, tl):
    """Half of the tile goes east, the other half west."""
    half = n_elem // 2
    mine = t_ptr + global_rank(tl) * n_elem * 2
    for offset, out, back in ((0, "E", "W"), (half * 2, "W", "E")):
        total = tl.load(mine + offset, (half,))
        current = total
        for _ in range(world_size - 1):
            tl.send(dir=out, src=current)
            current = tl.recv(dir=back, shape=(half,))
            total = total + current
        tl.store(mine + offset, total)


def tree(t_ptr, n_elem, world_size, tl):
    rank = global_rank(tl)
    mine = t_ptr + rank * n_elem * 2
    total = tl.load(mine, shape=(n_elem,))
    has_left, has_right = 2 * rank + 1 < world_size, 2 * rank + 2 < world_size
    if has_left:
        total = total + tl.recv(dir="child_left", shape=(n_elem,))
    if has_right:
        total = total + tl.recv(dir="child_right", shape=(n_elem,))
    if rank > 0:
        tl.send(dir="parent", src=total)
        total = tl.recv(dir="parent", shape=(n_elem,))
    if has_left:
        tl.send(dir="child_left", src=total)
    if has_right:
        tl.send(dir="child_right", src=total)
    tl.store(mine, total)


def mesh(t_ptr, n_elem, side, tl):
    """Reduce along rows to the east edge, down that edge to the corner, and back."""
    rank = global_rank(tl)
    row, column = rank // side, rank % side
    mine = t_ptr + rank * n_elem * 2
    total = tl.load(mine, shape=(n_elem,))
    if column > 0:
        total = total + tl.recv(dir="W", shape=(n_elem,))
    if column < side - 1:
        tl.send(dir="E", src=total)
        total = tl.recv(dir="E", shape=(n_elem,))
    else:
        if row > 0:
            total = total + tl.recv(dir="N", shape=(n_elem,))
        if row < side - 1:
            tl.send(dir="S", src=total)
            total = tl.recv(dir="S", shape=(n_elem,))
        if row > 0:
            tl.send(dir="N", src=total)
    if column > 0:
        tl.send(dir="W", src=total)
    tl.store(mine, total)


def halving_doubling(t_ptr, n_elem, steps, tl):
    """Recursive halving, then doubling, over counted directions; written with arithmetic, not branches."""
    rank = global_rank(tl)
    mine = t_ptr + rank * n_elem * 2
    origin = 0
    for step in range(steps):
        size, bit = n_elem >> (step + 1), rank >> step & 1
        keep, give = origin + bit * size, origin + (1 - bit) * size
        for piece in range(size):
            tl.send(dir=step, src=tl.load(mine + (give + piece) * 2, (1,)))
            here = mine + (keep + piece) * 2
            tl.store(here, tl.load(here, (1,)) + tl.recv(dir=step, shape=(1,)))
        origin = keep
    for back in range(steps):
        step = steps - 1 - back
        size, bit = n_elem >> (step + 1), rank >> step & 1
        for piece in range(size):
            tl.send(dir=step, src=tl.load(mine + (origin + piece) * 2, (1,)))
            other = origin + (1 - 2 * bit) * size
            tl.store(mine + (other + piece) * 2, tl.recv(dir=step, shape=(1,)))
        origin = origin - bit * size


def copy_to_destination(t_ptr, n_elem, buffer, tl):
    rank = global_rank(tl)
    nbytes = n_elem * 2
    tl.send(dir="E", src_addr=t_ptr + rank * nbytes, nbytes=nbytes, shape=(n_elem,), dtype="f16", space="hbm")
    got = tl.recv(dir="W", shape=(n_elem,), dst_addr=buffer + rank * nbytes, dst_space="hbm")
    assert got.space == "hbm"
    tl.store(t_ptr + rank * nbytes, got)


def from_anywhere(t_ptr, n_elem, tl):
    mine = t_ptr + global_rank(tl) * n_elem * 2
    own = tl.load(mine, (n_elem,))
    tl.send(dir="E", src=own)
    tl.send(dir="W", src=own)
    total = tl.recv(shape=(n_elem,)) + tl.recv(shape=(n_elem,))
    tl.store(mine, total)


def gemm(a_ptr, b_ptr, out_ptr, M, K, N, tl, DTYPE="f16"):
    M, K, N = int(M), int(K), int(N)
    a = tl.load(int(a_ptr), shape=(M, K), dtype=DTYPE)
    b = tl.load(int(b_ptr), shape=(K, N), dtype=DTYPE)
    tl.store(int(out_ptr), tl.dot(a, b))


def streamed_gemm(a_ptr, b_ptr, out_ptr, M, K, N, tl):
    a, b = tl.ref(a_ptr, (M, K), "f16"), tl.ref(b_ptr, (K, N), "f16")
    tl.composite(op="gemm", a=a, b=b, out_ptr=out_ptr, tile=(4, 8, 8))
