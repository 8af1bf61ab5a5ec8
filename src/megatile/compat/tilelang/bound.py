"""The least time a kernel can take on a machine: matrix products at peak, every tensor moved once, but for
results that a cache may keep.

This is a bound that nothing can beat, not a prediction: caches, latency, occupancy and everything elementwise
are left out. Products under conditions, and in loops whose length is known only at run time, count nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from megatile.core.dtypes import itemsize
from megatile.core.expr import known
from megatile.core.quantities import format_bytes, format_time
from megatile.hda import HDA
from megatile.ir import nodes as n
from megatile.ir.program import Program


@dataclass(frozen=True)
class Bound:
    """Work that must be done, and the time it takes at least."""

    flops: int
    nbytes: int
    seconds: float

    def __str__(self) -> str:
        work = f"{self.flops:.3g} FLOP, {format_bytes(self.nbytes)}"
        return f"{format_time(self.seconds * 1e12)} at least ({work})"


def least_time(program: Program, machine: HDA) -> Bound:
    """The bound of one launch on one device."""
    work: dict[str, int] = {}
    blocks = program.launch.count(program.launch.dispatch)
    _count(program.body, blocks, work, _dtypes(program))
    nbytes = sum(math.prod(int(e) for e in p.shape) * itemsize(p.dtype) for p in program.params)
    device = machine.scale("device").name
    seconds = (nbytes - _kept(program, machine)) / float(machine.memory("l2").bandwidth)
    busy = sum(flops / (machine.throughput(device, dtype) or math.inf) for dtype, flops in work.items())
    return Bound(sum(work.values()), nbytes, max(seconds, busy))


def _kept(program: Program, machine: HDA) -> int:
    """Bytes of results that may lie in a cache when the kernel ends."""
    touched = {access: set[str]() for access in ("read", "write")}
    for node in n.walk(program.body):
        for access, region in n.regions(node):
            for kind in touched:
                if kind in access:
                    touched[kind].add(region.source)
    results = [p for p in program.params if p.name in touched["write"] - touched["read"]]
    room = max((m.size for m in machine.memories if m.cache and m.write == "write_back"), default=0)
    return min(int(room), sum(math.prod(int(e) for e in p.shape) * itemsize(p.dtype) for p in results))


def _dtypes(program: Program) -> dict[str, str]:
    from megatile.ir.program import bindings

    return {name: binding.dtype for name, binding in bindings(program).items()}


def _count(body: tuple[n.Node, ...], times: int, work: dict[str, int], dtypes: dict[str, str]) -> None:
    for node in body:
        if isinstance(node, n.Gemm):
            extents = [known(e) or 0 for region in (node.a, node.c) for e in region.extents[-2:]]
            flops = 2 * math.prod(extents[2:]) * extents[0 if node.transpose_a else 1]
            element = dtypes[node.a.source]
            work[element] = work.get(element, 0) + flops * times
        elif isinstance(node, n.Loop):
            bounds = [known(e) for e in (node.start, node.stop, node.step)]
            if node.kind != "bounded" and None not in bounds:
                _count(node.body, times * len(range(*bounds)), work, dtypes)  # type: ignore[arg-type]
        elif isinstance(node, n.Scale):
            _count(node.body, times, work, dtypes)


def bounds(kernel: Any, machine: HDA) -> list[Bound]:
    """The bound of each launch of a kernel."""
    return [least_time(program, machine) for program in kernel.programs]
