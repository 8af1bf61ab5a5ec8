"""Both ways to merge attention results, side by side: random states and blocks, and whole runs of ranks."""

from __future__ import annotations

from functools import partial
from itertools import product

import torch
import torch.distributed as dist
from tests.attention.attention_cases import Cases, environment, shards, tensors, with_gradients
from torch.utils._python_dispatch import TorchDispatchMode

from megatile.attention import hamilton_attention
from megatile.attention.merge import Accumulator

NOTHING = float("-inf")
SCHEDULES = ("ring", "zigzag", "striped", "hamilton", "direct", "ulysses")


def strided(x, how):
    """The same values in other memory: turned, in a wider tensor, every second column, columns first."""
    if how == "turned":
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if how == "wider":
        wide = torch.full((*x.shape[:-1], x.shape[-1] + 5), float("nan"), dtype=x.dtype)
        wide[..., 3 : 3 + x.shape[-1]] = x
        return wide[..., 3 : 3 + x.shape[-1]]
    if how == "spread":
        wide = torch.full((*x.shape[:-1], 2 * x.shape[-1]), float("nan"), dtype=x.dtype)
        wide[..., ::2] = x
        return wide[..., ::2]
    if how == "columns first":
        return x.permute(3, 0, 1, 2).contiguous().permute(1, 2, 3, 0)
    return x.contiguous()


def logarithms(shape, spread, empty, generator):
    """Log-sum-exps [B, H, S], some of them of no keys."""
    lse = torch.randn(shape, generator=generator) * spread
    return lse.masked_fill(torch.rand(shape, generator=generator) < empty, NOTHING)


def exact_sum(blocks):
    """What blocks (out, lse) are together, in f64."""
    outs = torch.stack([out.double() for out, _ in blocks])
    lses = torch.stack([lse.double() for _, lse in blocks])
    total = torch.logsumexp(lses, 0)
    shares = torch.exp(lses - total).nan_to_num(0.0).transpose(-2, -1).unsqueeze(-1)
    return (shares * outs).sum(0), total


def many_merges(count, form, rows=48, heads=1, dim=8):
    """Errors of log-sum-exps, of those in plain f32, and of outputs beside their scale, after many merges."""
    generator = torch.Generator().manual_seed(count)
    with environment(MEGATILE_ATTENTION_MERGE=form):
        result = Accumulator(1, rows, heads, dim, torch.device("cpu"))
    blocks = []
    for _ in range(count):
        out = torch.randn(1, rows, heads, dim, generator=generator) + 1
        blocks.append((out, 2 * torch.randn(1, heads, rows, generator=generator) + 3))
        result.add([(0, rows)], out.clone(), blocks[-1][1].clone())
    out, lse = result.result(torch.float32)
    want_out, want = exact_sum(blocks)
    plain = blocks[0][1].clone()
    for _, more in blocks[1:]:
        plain = torch.logaddexp(plain, more)
    errors = [(x.double() - want).abs().max().item() for x in (lse, plain)]
    return *errors, ((out.double() - want_out).abs().max() / want_out.abs().max()).item()


def check_forms(rank):
    """Every kind of schedule, forward and backward: the same with one kernel as with torch's own."""
    cases = Cases()
    ranks = dist.get_world_size()
    length = 7 * ranks + 2
    kinds = [(False, torch.float32, 2e-6), (True, torch.float32, 2e-6), (True, torch.bfloat16, 8e-3)]
    for name, (causal, dtype, limit) in product(SCHEDULES, kinds):
        whole = tensors(3, *[(1, length, 3, 24)] * 4, dtype=dtype)
        *inputs, d_out = shards(whole, {"schedule": name, "causal": causal})
        attention = partial(hamilton_attention, schedule=name, causal=causal)
        with environment(MEGATILE_ATTENTION_MERGE="torch"):
            want = [x.double() for x in with_gradients(attention, inputs, d_out)]
        with environment(MEGATILE_ATTENTION_MERGE="fused"):
            cases.compare(f"{name} {causal} {dtype}", with_gradients(attention, inputs, d_out), want, limit)
    return cases.failures, cases.count, cases.worst


class Operations(TorchDispatchMode):
    """Kernels that torch runs: the bytes each reads and writes of tensors with ``size`` elements."""

    def __init__(self, size):
        super().__init__()
        self.size, self.bytes = size, []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        if not function.is_view:
            tensors = [x for x in (*args, made) if isinstance(x, torch.Tensor) and x.numel() == self.size]
            self.bytes.append(sum(x.numel() * x.element_size() for x in tensors))
        return made
