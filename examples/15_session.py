"""Two kernels after another on one machine: the second finds what the first left in memory."""

import numpy as np

import megatile as mt
from megatile.language import tl

RANKS, ELEMENTS = 8, 64


def shift(t_ptr, n_elem, tl):
    mine = t_ptr + tl.program_id(0) * n_elem * 2
    tl.send(dir="E", src=tl.load(mine, (n_elem,)))
    tl.store(mine, tl.recv(dir="W", shape=(n_elem,)))


def all_reduce(t_ptr, n_elem, world_size, tl):
    mine = t_ptr + tl.program_id(0) * n_elem * 2
    total = current = tl.load(mine, (n_elem,))
    for _ in range(world_size - 1):
        tl.send(dir="E", src=current)
        current = tl.recv(dir="W", shape=(n_elem,))
        total = total + current
    tl.store(mine, total)


def main():
    tensor = tl.Tensor("t", (ELEMENTS,), "f16")
    queues = {"world_size": RANKS, "topology": "ring_1d", "n_slots": 2, "slot_size": 2 * ELEMENTS}
    first = tl.read_kernel(shift, [tensor, ELEMENTS], **queues)
    second = tl.read_kernel(all_reduce, [tensor, ELEMENTS, RANKS], **queues)
    x = np.arange(RANKS * ELEMENTS).reshape(RANKS, ELEMENTS) % 7

    with mt.Session("ahbm") as session:
        session.install(first)  # the queues, once per processing element
        session.launch(first, {"t": x})
        session.launch(second)  # "t" is still there, shifted
        print(session.summary())
        print(session.why_slow(limit=4))
        assert (session.read("t") == x.sum(axis=0)).all()


if __name__ == "__main__":
    main()
