"""What ranks do in the tests with real processes: functions that return their failures."""

from __future__ import annotations

import os
from contextlib import contextmanager
from functools import partial
from itertools import accumulate, pairwise, product

import torch
import torch.distributed as dist
import torch.nn.functional as F

from megatile.attention import hamilton_attention, shard_sequence

F32_LIMIT = 1e-5


def single_device(q, k, v, causal=False, window=(-1, -1), scale=None, slopes=None):
    """Attention by its definition in double precision; [B, S, H, D], ends aligned."""
    groups = q.shape[2] // k.shape[2]
    k, v = k.repeat_interleave(groups, 2), v.repeat_interleave(groups, 2)
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    i = torch.arange(q.shape[1])[:, None] + k.shape[1] - q.shape[1]
    j = torch.arange(k.shape[1])[None, :]
    if slopes is not None:
        scores = scores - slopes.double()[:, None, None] * (i - j).abs()
    hidden = torch.zeros(i.shape[0], j.shape[1], dtype=torch.bool)
    if causal:
        hidden |= j > i
    if window[0] >= 0:
        hidden |= j < i - window[0]
    if window[1] >= 0 and not causal:
        hidden |= j > i + window[1]
    weights = torch.softmax(scores.masked_fill(hidden, float("-inf")), -1)
    return torch.einsum("bhij,bjhd->bihd", torch.nan_to_num(weights), v)


def tensors(seed, *shapes, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def with_gradients(function, inputs, d_out):
    """The output and the gradients of all inputs."""
    inputs = [x.detach().requires_grad_() for x in inputs]
    out = function(*inputs)
    return [out.detach(), *torch.autograd.grad(out, inputs, d_out)]


@contextmanager
def environment(**values):
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


class Cases:
    """Runs cases, remembers what failed and how large errors were."""

    def __init__(self):
        self.failures, self.worst, self.count = [], 0.0, 0

    def compare(self, name, got, want, limit=F32_LIMIT, allowed=None):
        """Errors relative to the scale of each tensor, or absolute ones no larger than ``allowed``."""
        self.count += 1
        for index, (a, b) in enumerate(zip(got, want, strict=True)):
            scale = max(b.abs().max().item(), 1e-3) if b.numel() else 1.0
            bound = limit * scale if allowed is None else allowed[index]
            error = (a.double() - b).abs().max().item() if b.numel() else 0.0
            self.worst = max(self.worst, error / bound)
            if a.shape != b.shape or not error <= bound:
                what = ("out", "dq", "dk", "dv")[index]
                self.failures.append(f"{name}: {what} off by {error:.2e}, allowed {bound:.2e}")

    def refuses(self, name, error, message, function, *args, **kwargs):
        self.count += 1
        try:
            function(*args, **kwargs)
        except error as caught:
            if message not in str(caught):
                self.failures.append(f"{name}: says {caught}")
        else:
            self.failures.append(f"{name}: was not refused")


def divided(q, k, v, d_out, layout_arguments, **kwargs):
    """The divided function on whole tensors: shard, run forward and backward. Results stay divided."""
    parts = [shard_sequence(x, **layout_arguments) for x in (q, k, v)]
    d_part = shard_sequence(d_out, **layout_arguments)
    return with_gradients(lambda *x: hamilton_attention(*x, **layout_arguments, **kwargs), parts, d_part)


def shards(whole, layout_arguments):
    """This rank's part of each reference result."""
    return [shard_sequence(x, **layout_arguments) for x in whole]


def check_schedules(rank, wanted, low_precision):
    """Every case of the matrix, forward and backward; also returns what was done."""
    ranks, cases, done = dist.get_world_size(), Cases(), []
    for lengths, (length, heads, kv_heads) in (
        ("equal", (2 * ranks * max(1, ranks - 1), 2, 2)),
        ("uneven", (7 * ranks + 3, 4, 2)),
    ):
        shapes = [(1 + (lengths == "uneven"), length, h, 8) for h in (heads, kv_heads, kv_heads, heads)]
        for causal, dtype in product((False, True), [torch.float32, *low_precision]):
            if lengths == "equal" and dtype != torch.float32:
                continue
            q, k, v, d_out = tensors(length, *shapes, dtype=dtype)
            exact = with_gradients(
                lambda *x, c=causal: single_device(*x, causal=c),
                [x.double() for x in (q, k, v)],
                d_out.double(),
            )
            allowed = None if dtype == torch.float32 else allowed_errors(q, k, v, d_out, causal, exact)
            for case in wanted:
                if case.causal == causal and case.lengths == lengths:
                    arguments = {"schedule": case.schedule, "causal": causal}
                    got = divided(q, k, v, d_out, arguments)
                    cases.compare(f"{case.label} {dtype}", got, shards(exact, arguments), allowed=allowed)
                    done.append((case, str(dtype)))
    return cases.failures, cases.count, cases.worst, done


def allowed_errors(q, k, v, d_out, causal, exact):
    """For low precision: 2.5 times the error of flash attention on one device, and 2e-3."""

    def attention(*x):
        inner = [y.transpose(1, 2) for y in x]
        return F.scaled_dot_product_attention(*inner, is_causal=causal, enable_gqa=True).transpose(1, 2)

    single = with_gradients(attention, (q, k, v), d_out)
    return [2.5 * (a.double() - b).abs().max().item() + 2e-3 for a, b in zip(single, exact, strict=True)]


def check_low_precision(rank):
    """Grouped heads in bf16 are as exact by every schedule, on one rank too: sums are made in f32."""
    cases, heads = Cases(), (32, 4, 4, 32)
    q, k, v, d_out = tensors(11, *[(1, 512, h, 16) for h in heads], dtype=torch.bfloat16)
    exact = with_gradients(single_device, [x.double() for x in (q, k, v)], d_out.double())
    for schedule in ("ring", "ulysses", "hamilton"):
        arguments = {"schedule": schedule}
        got = divided(q, k, v, d_out, arguments)
        cases.compare(f"bf16 {schedule}", got, shards(exact, arguments), limit=6e-3)
    return cases.failures, cases.count, cases.worst


def check_masks(rank):
    """Windows, ALiBi, cross lengths, packed and short sequences, another dim of v, transports."""
    ranks, cases = dist.get_world_size(), Cases()
    length = 6 * ranks + 1
    q, k, v, d_out = tensors(3, (1, length, 4, 8), (1, length, 2, 8), (1, length, 2, 8), (1, length, 4, 8))
    double = [x.double() for x in (q, k, v)]
    slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625])
    for schedule in ("hamilton", "ring", "striped", "direct", "ulysses"):
        for causal, window in ((True, (5, 0)), (False, (4, 3)), (False, (-1, 2)), (True, (1, 0))):
            exact = with_gradients(
                lambda *x, c=causal, w=window: single_device(*x, causal=c, window=w), double, d_out.double()
            )
            arguments = {"schedule": schedule, "causal": causal}
            got = divided(q, k, v, d_out, arguments, window_size=window)
            cases.compare(f"{schedule} window {window} causal={causal}", got, shards(exact, arguments))
        for causal in (False, True):
            exact = with_gradients(
                lambda *x, c=causal: single_device(*x, causal=c, slopes=slopes, scale=0.2),
                double,
                d_out.double(),
            )
            arguments = {"schedule": schedule, "causal": causal}
            got = divided(q, k, v, d_out, arguments, alibi_slopes=slopes, softmax_scale=0.2)
            cases.compare(f"{schedule} ALiBi causal={causal}", got, shards(exact, arguments))
    _check_lengths(cases, ranks)
    _check_packed(cases, ranks)
    length = 2 * ranks * max(1, ranks - 1) * 2  # equal chunks, as gloo's list form needs them
    q, k, v, d_out = tensors(9, *[(1, length, 2 * ranks, 4)] * 4)
    exact = with_gradients(
        lambda *x: single_device(*x, causal=True), [x.double() for x in (q, k, v)], d_out.double()
    )
    for transport in ("all_to_all", "all_to_all_single", "point_to_point"):
        with environment(MEGATILE_ATTENTION_TRANSPORT=transport):
            for schedule in ("hamilton", "ring", "ulysses"):
                if schedule == "ring" and transport == "all_to_all":
                    continue
                arguments = {"schedule": schedule, "causal": True}
                got = divided(q, k, v, d_out, arguments)
                cases.compare(f"{schedule} by {transport}", got, shards(exact, arguments))
    return cases.failures, cases.count, cases.worst


def _check_lengths(cases, ranks):
    for q_length, k_length in (
        (3 * ranks, 5 * ranks + 2),
        (ranks - 1, ranks + 1),
        (1, 1),
        (5 * ranks, 2 * ranks),
    ):
        shapes = [(2, q_length, 2, 4), (2, k_length, 1, 4), (2, k_length, 1, 6), (2, q_length, 2, 6)]
        q, k, v, d_out = tensors(4, *shapes)
        for causal in (False, True):
            exact = with_gradients(
                lambda *x, c=causal: single_device(*x, causal=c),
                [x.double() for x in (q, k, v)],
                d_out.double(),
            )
            for schedule in ("hamilton", "direct", "ring"):
                arguments = {"schedule": schedule, "causal": causal}
                got = divided(q, k, v, d_out, arguments)
                name = f"{schedule} lengths {q_length}, {k_length} causal={causal}"
                cases.compare(name, got, shards(exact, arguments))


def _check_packed(cases, ranks):
    few, many = [0, 2 * ranks + 1, 2 * ranks + 2, 7 * ranks], [0, *accumulate(5 * i % 23 for i in range(12))]
    masks = (False, (-1, -1)), (True, (-1, -1)), (True, (3, 0))
    for boundaries, (causal, window) in product((few, many), masks):
        q, k, v, d_out = tensors(5, *[(boundaries[-1], 2, 4)] * 4)

        def packed(*x, bounds=boundaries, **mask):
            parts = [single_device(*(y[None, a:b] for y in x), **mask) for a, b in pairwise(bounds)]
            return torch.cat(parts, 1)[0]

        packed = partial(packed, causal=causal, window=window)
        exact = with_gradients(packed, [x.double() for x in (q, k, v)], d_out.double())
        for schedule in ("hamilton", "ring", "striped", "ulysses"):
            arguments = {
                "schedule": schedule,
                "causal": causal,
                "cu_seqlens": torch.tensor(boundaries),
                "dim": 0,
            }
            parts = [shard_sequence(x, **arguments) for x in (q, k, v)]
            call = {name: value for name, value in arguments.items() if name != "dim"}
            call["window_size"] = window
            local = with_gradients(
                lambda *x, c=call: hamilton_attention(*x, **c), parts, shard_sequence(d_out, **arguments)
            )
            cases.compare(f"{schedule} packed causal={causal}", local, shards(exact, arguments))
