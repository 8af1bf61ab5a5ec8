"""Exact attention of one sequence divided over four processes, forward and backward, checked against one
device.
"""

import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

from megatile.attention import hamilton_attention, position_ids, shard_sequence, unshard_sequence

RANKS, LENGTH, HEADS, KV_HEADS, DIM = 4, 509, 8, 2, 32  # a prime length: nothing has to divide evenly


def on_one_device(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    inner = (x.transpose(1, 2) for x in (q, k, v))
    out = torch.nn.functional.scaled_dot_product_attention(*inner, is_causal=True, enable_gqa=True)
    return out.transpose(1, 2)


def rank_main(rank: int, port: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS)
    torch.manual_seed(0)  # the same whole sequence everywhere, to have something to compare with
    shapes = [(1, LENGTH, heads, DIM) for heads in (HEADS, KV_HEADS, KV_HEADS)]
    whole = [torch.randn(shape, requires_grad=True) for shape in shapes]
    reference = on_one_device(*whole)
    reference.square().sum().backward()

    for schedule in ("zigzag", "direct", "hamilton", "hamilton:2x2", "ulysses:2+hamilton"):
        parts = [shard_sequence(x.detach(), causal=True, schedule=schedule).requires_grad_() for x in whole]
        out = hamilton_attention(*parts, causal=True, schedule=schedule)
        out.square().sum().backward()  # each rank's part of the loss
        results = [(out, reference), *((part.grad, x.grad) for part, x in zip(parts, whole, strict=True))]
        errors = [
            (unshard_sequence(mine, causal=True, schedule=schedule) - want).abs().max().item()
            for mine, want in results
        ]
        if rank == 0:
            print(f"{schedule:20} largest error of out, dq, dk, dv: " + "  ".join(f"{e:.1e}" for e in errors))
            assert max(errors) < 1e-4
    if rank == 0:
        mine = position_ids(LENGTH, causal=True)
        print(f"rank 0 holds {len(mine)} of {LENGTH} tokens: {mine[0]}, {mine[1]} … {mine[-1]}")
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    multiprocessing.spawn(rank_main, (port,), nprocs=RANKS)
