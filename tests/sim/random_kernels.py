"""Random plans in which kernels of a library take compute units from blocks beside them, by seed."""

from __future__ import annotations

import random
from functools import cache

from tests.sim.random_cases import Case

from megatile.hda import HDA, machine
from megatile.plan.model import Plan
from megatile.timing import Faults

SMALL = {"gpus": 2, "hw_spec.pe_groups.gpu.num_units": 1}
"""Two devices of 22 SMs."""


@cache
def small() -> HDA:
    return machine("dgx-h100", **SMALL)


def random_kernels(seed: int) -> Case:
    """Blocks of different lengths in slots; beside them devices exchange messages by kernels of a library,
    one after another, and do other things in between."""
    rng = random.Random(seed)
    blocks, slots = rng.choice([1, 7, 22, 40, 70]), rng.choice([1, 1, 2])
    size, protocol = rng.choice([8, 256, 4096]), rng.choice(["LL", "LL128", "Simple"])
    lines = [
        f'plan("kernels{seed}", scale="device", grid=(2,))',
        f'block = level(scale="block", grid=({blocks},), parent="device", slots={slots})',
        f'nccl = transport("kernel", library="nccl", algorithm="ring", protocol="{protocol}")',
        f'x = tile(f32, ({size},), memory="hbm", role="inout")',
        'y = tile(f32, (64,), memory="hbm")',
        'work = tile(f32, (64,), memory="shared", level="block")',
        f"ring = channel(source=(unit + 1) % 2, slots={rng.randint(1, 3)}, slot_bytes={4 * size}, "
        'memory="hbm", transport="nccl")',
        "over = flag(members=1)",
        f'with units((0, {2 * blocks}, 1), level="block"):',
        "    work <- fill(value=1.0, flops=64)",
        f"    for k in range(0, unit * {rng.randint(1, 7)} % {rng.randint(2, 9)}, 1):",
        f"        work <- exp(work, flops={rng.choice([2_000, 40_000])})",
        *["    work <- copy(y, bytes=256)"] * rng.randint(0, 2),
        f"    signal(over, to=unit // {blocks})",
        "with units((0, 2, 1)):",
    ]
    for number in range(rng.randint(1, 3)):
        if rng.random() < 0.4:
            lines.append(f"    y <- fill(value={number}, flops={rng.choice([64, 100_000])})")
        if rng.random() < 0.3:
            lines.append(f"    wait(over, value={rng.randint(1, blocks)})")
        lines += [
            f'    start(nccl, "all_reduce", ranks=2, bytes={4 * size})',
            f"    for i{number} in range(0, {rng.randint(0, 4)}, 1):",
            f"        send(ring, x, to=(unit + 1) % 2, bytes={4 * size})",
            f"        m{number} <- receive(ring, f32[{size}], bytes={4 * size})",
            f'        x <- add(x, m{number}, flops={size}, bytes={12 * size}, by="nccl")',
            f"        free(m{number})",
        ]
        if rng.random() < 0.3:
            lines.append(f'    x <- copy(x, engine="vector", bytes={4 * size}, by="nccl")')
    plan = Plan.from_text("\n".join(lines) + "\n")
    return Case(seed, plan, small(), ("kernels",), Faults(jitter=rng.choice([None, None, seed])), None)
