"""Times of transfers by PEs: to their own memory, to others', and when several ask for the same."""

from collections.abc import Iterator, Sequence
from typing import Any

from megatile.core.quantities import format_bytes
from megatile.language.kernel.to_plan import read_kernel
from megatile.language.kernel.values import Tensor
from megatile.sim import simulate

SMALL, LARGE = 256, 16384
MAX_TRANSFERS = 512
"""Each is a branch of the kernel that does them."""
Transfers = Sequence[tuple[int, int]]


def fetch(t_ptr: Any, transfers: Transfers, count: int, tl: Any) -> None:
    for issuer, target in transfers:
        if tl.rank == issuer:
            tl.load(t_ptr + target * count * 2, shape=(count,), dtype="f16")


def transfer_ns(torch: Any, transfers: Transfers, nbytes: int) -> float:
    """Return the time from the first start to the last arrival of loads (PE, PE whose memory it reads)."""
    shape, count = torch.shape, nbytes // 2
    plan = read_kernel(
        fetch,
        [Tensor("t", (count,), memory=shape.hbm), transfers, count],
        grid=(shape.pes, shape.cubes, shape.devices),
        topology="none",
        scale=shape.pe_scale,
        scratch=shape.l1,
    )
    events = [e for e in simulate(plan, machine=torch.machine, data=False).trace if e.operation == "copy"]
    return (max(e.end_ps for e in events) - min(e.start_ps for e in events)) / 1000


def cases(torch: Any) -> Iterator[tuple[str, Transfers, int]]:
    """Yield what is measured: its name, its transfers and their size."""
    pes, cubes, devices = torch.shape.pes, torch.shape.cubes, torch.shape.devices
    pairs, every = min(pes, MAX_TRANSFERS), min(pes * cubes, MAX_TRANSFERS)
    far = max(range(cubes), key=lambda cube: transfer_ns(torch, [(0, cube * pes)], SMALL)) * pes
    yield "own memory", [(0, 0)], SMALL
    yield "another PE of the cube", [(0, pes - 1)], SMALL
    yield "worst remote cube", [(0, far)], SMALL
    if devices > 1:
        yield "remote SIP", [(0, pes * cubes)], SMALL
    for issuers in range(1, min(3, cubes) + 1):
        yield f"hot target, issuers: {issuers}", [(n * pes, 0) for n in range(issuers)], SMALL
    if cubes > 1:
        yield f"{pairs} PEs over one link", [(n, pes + n) for n in range(pairs)], SMALL
    yield f"{pairs} PEs on PE 0's memory", [(n, 0) for n in range(pairs)], SMALL
    yield f"{every} PEs, each its own memory", [(n, n) for n in range(every)], LARGE
    yield f"{every} PEs on PE 0's memory", [(n, 0) for n in range(every)], LARGE


def run(torch: Any) -> int:
    """Print a line per case: size of a transfer, time of all of them, bandwidth."""
    for name, transfers, nbytes in cases(torch):
        took = transfer_ns(torch, transfers, nbytes)
        rate = len(transfers) * nbytes / took
        print(f" {name:<32} {format_bytes(nbytes):>8} {took:>10.1f} ns {rate:>9.1f} GB/s")
    return 0
