"""A collective kernel that waits for what nobody sends."""


def kernel_args(*, n_elem, world_size, **config):
    return (n_elem,)


def kernel(t_ptr, n_elem, tl):
    mine = t_ptr + tl.rank * n_elem * 2
    tl.store(mine, tl.recv(dir="W", shape=(n_elem,), dtype="f16"))
