"""The first kernel: every processing element sends its tile east and keeps what comes from the west."""

import numpy as np

import megatile as mt
from megatile.language import tl
from megatile.plan.check import check
from megatile.plan.execute import execute


def hello_send(t_ptr, n_elem, tl):
    mine = t_ptr + tl.program_id(0) * n_elem * 2
    tl.send(dir="E", src=tl.load(mine, shape=(n_elem,), dtype="f16"))
    tl.store(mine, tl.recv(dir="W", shape=(n_elem,), dtype="f16"))


def main():
    inputs = [np.full(8, rank + 1, dtype="f2") for rank in range(4)]

    # As plain Python, with no machine at all.
    outputs = tl.run_kernel_in_mock(hello_send, 4, "ring_1d", inputs, (8,))
    print("mock:    ", [int(o[0]) for o in outputs])

    # Read once into a plan, then checked and run.
    plan = tl.read_kernel(hello_send, [tl.Tensor("t", (8,), "f16"), 8], world_size=4, topology="ring_1d")
    check(plan, mt.machine("ahbm"))
    result = execute(plan, {"t": np.stack(inputs)})["t"]
    print("executed:", [int(row[0]) for row in result])
    print(plan)


if __name__ == "__main__":
    main()
