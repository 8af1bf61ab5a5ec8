"""Times of transfers by PEs: to their own memory, to others', and when several ask for the same."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from megatile.core.quantities import format_bytes
from megatile.language.kernel.to_plan import read_kernel
from megatile.language.kernel.values import Tensor
from megatile.sim import simulate

SMALL, LARGE = 256, 16384
MAX_ISSUERS = 512
"""PEs that load at a time: with more, a machine of a million takes minutes."""


class Loads(NamedTuple):
    """Every ``step``-th PE, ``issuers`` in all, reads the memory of PE ``factor * PE + offset``."""

    issuers: int
    step: int = 1
    factor: int = 0
    offset: int = 0


def fetch(t_ptr: Any, loads: Loads, count: int, tl: Any) -> None:
    if tl.rank % loads.step == 0 and tl.rank < loads.issuers * loads.step:
        target = loads.factor * tl.rank + loads.offset
        tl.load(t_ptr + target * count * 2, shape=(count,), dtype="f16")


def transfer_ns(torch: Any, loads: Loads, nbytes: int) -> float:
    """Return the time from the first start to the last arrival of some loads."""
    shape, count = torch.shape, nbytes // 2
    plan = read_kernel(
        fetch,
        [Tensor("t", (count,), memory=shape.hbm), loads, count],
        grid=(shape.pes, shape.cubes, shape.devices),
        topology="none",
        scale=shape.pe_scale,
        scratch=shape.l1,
    )
    events = [e for e in simulate(plan, machine=torch.machine, data=False).trace if e.operation == "copy"]
    return (max(e.end_ps for e in events) - min(e.start_ps for e in events)) / 1000


def cases(torch: Any) -> Iterator[tuple[str, Loads]]:
    """Yield what is measured: its name and its loads."""
    pes, cubes, devices = torch.shape.pes, torch.shape.cubes, torch.shape.devices
    far = max(range(cubes), key=lambda cube: transfer_ns(torch, Loads(1, offset=cube * pes), SMALL))
    yield "own memory", Loads(1)
    yield "another PE of the cube", Loads(1, offset=pes - 1)
    if cubes > 1:
        yield "worst remote cube", Loads(1, offset=far * pes)
    if devices > 1:
        yield "remote SIP", Loads(1, offset=pes * cubes)
    for issuers in range(1, min(3, cubes) + 1):
        yield f"hot target, issuers: {issuers}", Loads(issuers, step=pes)
    some, every = (min(count, MAX_ISSUERS) for count in (pes, pes * cubes))
    if cubes > 1:
        yield f"{some} PEs over one link", Loads(some, factor=1, offset=pes)
        yield f"{some} PEs on PE 0's memory", Loads(some)
    yield f"{every} PEs, each its own memory", Loads(every, factor=1)
    yield f"{every} PEs on PE 0's memory", Loads(every)


def run(torch: Any) -> int:
    """Print a line per case: the time of small loads, of large ones, and the bandwidth of these."""
    print(f" {'':<32} {format_bytes(SMALL):>13} {format_bytes(LARGE):>13} {'bandwidth':>14}")
    for name, loads in cases(torch):
        small, large = (transfer_ns(torch, loads, nbytes) for nbytes in (SMALL, LARGE))
        rate = loads.issuers * LARGE / large
        print(f" {name:<32} {small:>10.1f} ns {large:>10.1f} ns {rate:>9.1f} GB/s")
    return 0
