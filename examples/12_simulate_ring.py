"""A ring all-reduce as a kernel: how long it takes, why, and what a slow link does to it."""

import numpy as np

from megatile.language import tl
from megatile.sim import faults, simulate


def ring(t_ptr, n_elem, world_size, tl):
    """Forward the tile that came last, add every tile up."""
    mine = t_ptr + tl.program_id(0) * n_elem * 2
    total = current = tl.load(mine, shape=(n_elem,), dtype="f16")
    for _ in range(world_size - 1):
        tl.send(dir="E", src=current)
        current = tl.recv(dir="W", shape=(n_elem,), dtype="f16")
        total = total + current
    tl.store(mine, total)


ranks, elements = 8, 4096
x = np.random.default_rng(0).integers(-4, 5, (ranks, elements)).astype("f2")

for buffer in ("tcm", "sram", "hbm"):
    arguments = [tl.Tensor("t", (elements,)), elements, ranks]
    plan = tl.read_kernel(ring, arguments, world_size=ranks, buffer_kind=buffer)
    r = simulate(plan, {"t": x}, machine="ahbm")
    assert (r.outputs["t"] == x.sum(axis=0)).all()
    print(f"queues in {buffer:<4}: {r.time_ns:8.1f} ns, exposed communication {r.exposed_ns:8.1f} ns")

print()
print(r.summary())
print()
print(r.why_slow(limit=5))
print()
print("trace for ui.perfetto.dev:", r.write_trace("ring.json.gz"))

with faults(slow_link={("pe:0", "pe:1"): 16.0}):
    slow = simulate(plan, machine="ahbm")
print(f"one link at a sixteenth of its speed: {slow.time_ns / r.time_ns:.2f} times as long")
