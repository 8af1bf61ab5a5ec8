"""Single kernels of ``data/validation.csv``: floors from the rates of the machine files.

A floor is a launch and the longer of computing, at the rate that lasts under load, and moving the data once;
nothing is fitted. Real kernels stay above it: the ends of a kernel overlap with nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from megatile.core.dtypes import itemsize
from megatile.hda import machine
from megatile.timing.attention_kernels import KernelTimes


@dataclass(frozen=True)
class Product:
    """A matrix product (m × k) · (k × n) with its result in ``into``, or a matrix and a vector (m = 1)."""

    machine: str
    dtype: str
    m: int
    n: int
    k: int
    into: str = "bf16"

    def us(self) -> float:
        hda = machine(self.machine)
        times = KernelTimes.of(hda, self.dtype)
        moved = (self.m + self.n) * self.k * itemsize(self.dtype) + self.m * self.n * itemsize(self.into)
        sustained = next(e.sustained for e in hda.engines if e.kind == "tensor")
        work = 2 * self.m * self.n * self.k / (times.peak * sustained)
        return 1e6 * (times.launch + max(work, moved / times.bandwidth))


KERNELS: dict[str, Product] = {
    "V12": Product("dgx-h100", "bf16", 8192, 8192, 8192),
    "V13": Product("dgx-h100", "f16", 8192, 8192, 256),
    "V14": Product("dgx-h100", "f8", 64, 7168, 16384),
    "V15": Product("mi300x-8", "bf16", 4096, 4864, 32896),
    "V16": Product("hgx-a100", "f16", 1, 16384, 16384),
}
ELSEWHERE = {
    "V17": "is under Tile programs",
    "V18": "is under Attention",
    "V19": "is not predicted",
    "V20": "is not predicted",
}
