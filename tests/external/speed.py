"""Our zig-zag ring beside that of a checkout of ring-flash-attention, both with torch's kernel for CPUs.

    python tests/external/speed.py CHECKOUT [--ranks 2] [--tokens 512 4096 8192] [--documents 64]

A figure above 1 means that ours is faster. Both run in turn; the least time counts, medians stand beside it.
On a machine that others use, processor time (of all ranks together) says more than time on the wall.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import types
from itertools import pairwise
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def kernels() -> types.ModuleType:
    """flash-attn's inner functions, as ring-flash-attention calls them, by torch's kernel for CPUs."""
    aten = torch.ops.aten

    def forward(q, k, v, dropout_p, softmax_scale, causal, window_size_left=-1, window_size_right=-1,
                softcap=0.0, alibi_slopes=None, return_softmax=False):  # fmt: skip
        inner = (x.transpose(1, 2) for x in (q, k, v))
        out, lse = aten._scaled_dot_product_flash_attention_for_cpu(*inner, 0.0, causal, scale=softmax_scale)
        return out.transpose(1, 2), lse, None, None

    def backward(dout, q, k, v, out, softmax_lse, dq, dk, dv, dropout_p, softmax_scale, causal,
                 window_size_left=-1, window_size_right=-1, softcap=0.0, alibi_slopes=None,
                 deterministic=False, rng_state=None):  # fmt: skip
        inner = (x.transpose(1, 2) for x in (dout, q, k, v, out))
        grads = aten._scaled_dot_product_flash_attention_for_cpu_backward(
            *inner, softmax_lse.contiguous(), 0.0, causal, scale=softmax_scale
        )
        for target, grad in zip((dq, dk, dv), grads, strict=True):
            target.copy_(grad.transpose(1, 2))

    def by_document(ends):
        listed = ends.tolist()
        return list(pairwise(listed))

    def varlen_forward(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p,
                       softmax_scale, causal, window_size_left=-1, window_size_right=-1, softcap=0.0,
                       alibi_slopes=None, return_softmax=False, block_table=None):  # fmt: skip
        parts = [
            forward(q[None, a:b], k[None, c:d], v[None, c:d], 0.0, softmax_scale, causal)[:2]
            for (a, b), (c, d) in zip(by_document(cu_seqlens_q), by_document(cu_seqlens_k), strict=True)
        ]
        return torch.cat([x[0][0] for x in parts]), torch.cat([x[1][0] for x in parts], -1), None, None

    def varlen_backward(dout, q, k, v, out, softmax_lse, dq, dk, dv, cu_seqlens_q, cu_seqlens_k, max_seqlen_q,
                        max_seqlen_k, dropout_p, softmax_scale, causal, window_size_left=-1,
                        window_size_right=-1, softcap=0.0, alibi_slopes=None, deterministic=False,
                        rng_state=None):  # fmt: skip
        for (a, b), (c, d) in zip(by_document(cu_seqlens_q), by_document(cu_seqlens_k), strict=True):
            backward(dout[None, a:b], q[None, a:b], k[None, c:d], v[None, c:d], out[None, a:b],
                     softmax_lse[None, :, a:b], dq[None, a:b], dk[None, c:d], dv[None, c:d], 0.0,
                     softmax_scale, causal)  # fmt: skip

    found = types.ModuleType("flash_attn.flash_attn_interface")
    found._flash_attn_forward, found._flash_attn_backward = forward, backward
    found._flash_attn_varlen_forward, found._flash_attn_varlen_backward = varlen_forward, varlen_backward
    return found


def rank_of(rank: int, given: argparse.Namespace, port: int) -> None:
    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(given.ranks)
    )
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    sys.modules["flash_attn"], sys.modules["flash_attn.flash_attn_interface"] = (
        types.ModuleType("flash_attn"),
        kernels(),
    )
    transformers = types.ModuleType("ring_flash_attn.adapters")
    transformers.substitute_hf_flash_attn = transformers.update_ring_flash_attn_params = None
    sys.modules["ring_flash_attn.adapters"] = transformers
    sys.path.insert(0, str(given.checkout))
    dist.init_process_group("gloo")
    import ring_flash_attn as theirs

    from megatile.compat import ring_flash_attn as ours

    for tokens in given.tokens:
        x = [torch.randn(1, tokens // given.ranks, 8, 64, requires_grad=True) for _ in range(3)]
        functions = [m.zigzag_ring_flash_attn_func for m in (theirs, ours)]
        report(
            rank,
            f"{tokens} tokens",
            [lambda f=f, x=x: f(*x, causal=True) for f in functions],
            given.rounds,
            max(1, 4096 // tokens),
        )
    local = max(2, given.tokens[-1] // given.documents // given.ranks // 2 * 2)
    x = [torch.randn(local * given.documents, 8, 64, requires_grad=True) for _ in range(3)]
    ends = torch.arange(given.documents + 1, dtype=torch.int32) * local
    functions = [m.zigzag_ring_flash_attn_varlen_func for m in (theirs, ours)]
    calls = [lambda f=f: f(*x, ends, local, causal=True) for f in functions]
    report(rank, f"{given.documents} documents of {local * given.ranks}", calls, given.rounds)
    dist.destroy_process_group()


def report(rank, name, calls, rounds, repeats=1) -> None:
    """Alternate both, and print theirs over ours: processor time (of all threads of all ranks) and wall."""
    for what in ("forward", "forward and backward"):
        found = [[one_round(call, repeats, what == "forward") for call in calls] for _ in range(rounds)]
        if rank == 0:
            print(
                f"{name}, {what}: " + "; ".join(map(compared, ("processor", "wall"), columns(found))),
                flush=True,
            )


def one_round(call, repeats, forward) -> list[float]:
    """Processor time (all ranks) and wall time of a call, in seconds."""
    dist.barrier()
    wall, processor = time.perf_counter(), time.process_time()
    for _ in range(repeats):
        if forward:
            with torch.no_grad():
                call()
        else:
            call().sum().backward()
    used = torch.tensor([time.process_time() - processor], dtype=torch.float64)
    dist.all_reduce(used)
    return [used.item() / repeats, (time.perf_counter() - wall) / repeats]


def columns(found) -> list[list[list[float]]]:
    """[clock][theirs, ours][round]."""
    return [[[row[who][clock] for row in found] for who in (0, 1)] for clock in (0, 1)]


def compared(clock, times) -> str:
    """Ratios of the least and of the median times."""
    least, middle = ([reduce(x) * 1e3 for x in times] for reduce in (min, median))
    ratios = [a / b for a, b in (least, middle)]
    return f"{clock} {ratios[0]:.2f} ({least[0]:.2f} and {least[1]:.2f} ms), median {ratios[1]:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--tokens", type=int, nargs="+", default=[512, 4096, 8192])
    parser.add_argument("--documents", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=20)
    given = parser.parse_args()
    mp.spawn(rank_of, (given, 29000 + os.getpid() % 900), nprocs=given.ranks)


if __name__ == "__main__":
    main()
