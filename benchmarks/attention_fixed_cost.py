"""What a short call of attention costs besides its exchange and its kernels, over gloo.

    python benchmarks/attention_fixed_cost.py [--ranks 4] [--tokens 16] [--rounds 200]

The same processes take turns at three things: a causal call of zig-zag attention (forward), its exchange of
keys and values and its kernels written by hand, and the exchange alone, which is the floor. Fixed cost is the
call less what is written by hand. Times are for one call: wall time, and processor time of all threads of a
process.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from statistics import median

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from megatile.attention import hamilton_attention

HEADS, DIM = 8, 64
CALL, BY_HAND, EXCHANGE = "call", "exchange and kernels by hand", "exchange"


def exchange(packed: Tensor, ranks: int, rank: int) -> Tensor:
    """Send this rank's KV to all others; return theirs."""
    sizes = [0 if peer == rank else packed.numel() for peer in range(ranks)]
    found = packed.new_empty(sum(sizes))
    dist.all_to_all_single(found, torch.cat([packed] * (ranks - 1)), sizes, sizes)
    return found


def kernels(q: Tensor, k: Tensor, v: Tensor, theirs: Tensor, ranks: int, rank: int) -> None:
    """Run those of zig-zag attention: own tokens; early queries on earlier keys, late ones on the rest."""
    run = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    run(q, k, v, 0.0, True)
    half = q.shape[2] // 2
    keys, values = theirs.view(ranks - 1, 2, -1, HEADS, DIM).unbind(1)
    keys, values = (x.reshape(1, -1, HEADS, DIM).transpose(1, 2) for x in (keys, values))
    calls = (q[:, :, :half], rank * half), (q[:, :, half:], (2 * (ranks - 1) - rank) * half)
    for queries, length in calls:
        if length:
            run(queries, keys[:, :, :length], values[:, :, :length], 0.0, False)


def measure(rank: int, ranks: int, tokens: int, rounds: int, port: int, queue: mp.SimpleQueue) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(ranks))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    q, k, v = (torch.randn(1, tokens // ranks, HEADS, DIM) for _ in range(3))
    inner = [x.transpose(1, 2) for x in (q, k, v)]
    packed = torch.cat([k.flatten(), v.flatten()])
    work: dict[str, Callable[[], object]] = {
        CALL: lambda: hamilton_attention(q, k, v, causal=True, layout="zigzag"),
        BY_HAND: lambda: kernels(*inner, exchange(packed, ranks, rank), ranks, rank),
        EXCHANGE: lambda: exchange(packed, ranks, rank),
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in work}
    with torch.no_grad():
        for _ in range(rounds):
            for name, function in work.items():
                found[name].append(one(function, ranks))
    if rank == 0:
        queue.put(found)
    dist.destroy_process_group()


def one(function: Callable[[], object], ranks: int) -> tuple[float, float]:
    """Return wall time and processor time, each the mean of the ranks."""
    dist.barrier()
    wall, processor = time.perf_counter(), time.process_time()
    function()
    used = torch.tensor([time.perf_counter() - wall, time.process_time() - processor], dtype=torch.float64)
    dist.all_reduce(used)
    mean: list[float] = (used / ranks).tolist()
    return mean[0], mean[1]


def times(ranks: int, tokens: int, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Return [wall, processor] of every round, in seconds."""
    queue = mp.get_context("spawn").SimpleQueue()
    arguments = (ranks, tokens, rounds, 29000 + os.getpid() % 900, queue)
    processes = mp.spawn(measure, arguments, nprocs=ranks, join=False)
    found: dict[str, list[tuple[float, float]]] = queue.get()
    processes.join()
    return found


def lines(found: dict[str, list[tuple[float, float]]]) -> Iterator[str]:
    for clock, name in enumerate(("wall", "processor")):
        for title, reduce in (("least", min), ("median", median)):
            ms = {what: reduce([x[clock] for x in every]) * 1e3 for what, every in found.items()}
            each = ", ".join(f"{what} {x:.2f}" for what, x in ms.items())
            yield f"{name}, {title} (ms): {each}; fixed cost {ms[CALL] - ms[BY_HAND]:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=200)
    given = parser.parse_args()
    print("\n".join(lines(times(given.ranks, given.tokens, given.rounds))))


if __name__ == "__main__":
    main()
