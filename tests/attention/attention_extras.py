"""What ranks do in the tests of softcap, sinks, mask functions, padding, f64, lse and compiled graphs."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.distributed as dist
from tests.attention.attention_cases import Cases, environment, tensors

from megatile.attention import (
    AttentionError,
    MaskFunction,
    document_mask,
    hamilton_attention,
    position_ids,
    shard_sequence,
    unshard_sequence,
)

SCHEDULES = ("ring", "zigzag", "hamilton", "direct", "striped", "ulysses")


def by_definition(q, k, v, *, causal=False, softcap=0.0, sinks=None, mask_mod=None):
    """Attention in f64, [B, S, H, D]; the output and the log-sum-exp."""
    groups = q.shape[2] // k.shape[2]
    k, v = k.repeat_interleave(groups, 2), v.repeat_interleave(groups, 2)
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * q.shape[-1] ** -0.5
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    i, j = torch.arange(q.shape[1])[:, None], torch.arange(k.shape[1])[None, :]
    seen = (j <= i) if causal else torch.ones(q.shape[1], k.shape[1], dtype=torch.bool)
    if mask_mod is not None:
        b, h = torch.arange(q.shape[0])[:, None, None, None], torch.arange(q.shape[2])[None, :, None, None]
        seen = seen & mask_mod(b, h, i, j)
    scores = scores.masked_fill(~seen, float("-inf"))
    if sinks is not None:
        column = sinks[None, :, None, None].expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, column], -1)
    lse = torch.logsumexp(scores, -1)
    weights = torch.exp(scores - lse.masked_fill(lse == float("-inf"), 0)[..., None])[..., : k.shape[1]]
    return torch.einsum("bhij,bjhd->bihd", weights, v), lse


def documents(length):
    return (torch.arange(length) * 5 // max(1, length)) ** 2


def options_of(length):
    rows = torch.stack([documents(length), documents(length) // 2])
    return {
        "softcap": {"softcap": 0.7},
        "sinks": {"sinks": torch.tensor([0.3, -1.0, 2.0, 0.1], dtype=torch.float64)},
        "documents": {"mask_mod": document_mask(documents(length))},
        "of a batch": {"mask_mod": document_mask(rows)},
        "all": {
            "softcap": 1.5,
            "sinks": torch.ones(4, dtype=torch.float64),
            "mask_mod": lambda b, h, q, kv: (q - kv).abs() <= 3 + h,
        },
    }


def check_extras(rank):
    ranks, cases = dist.get_world_size() if dist.is_initialized() else 1, Cases()
    length = 4 * ranks + 3
    whole = [x.double() for x in tensors(5, *[(2, length, h, 8) for h in (4, 2, 2, 4)])]
    for number, (name, options) in enumerate(options_of(length).items()):
        for causal in (False, True):
            schedules = [SCHEDULES[(number + causal + i) % len(SCHEDULES)] for i in (0, 3)]
            for schedule in schedules:
                _check_case(cases, f"{name} {schedule} causal={causal}", whole, schedule, causal, options)
    _check_blocks(cases, ranks)
    _check_padding(cases, ranks)
    _check_balanced(cases, ranks)
    _check_unshard(cases, rank, ranks)
    if ranks > 1:
        _check_positions(cases, rank, ranks)
        _check_compiled(cases, ranks)
    return cases.failures, cases.count, cases.worst


def _check_case(cases, name, whole, schedule, causal, options):
    """Output, log-sum-exp and all gradients, also through the log-sum-exp, in f64."""
    *qkv, d_out = whole
    sinks = options.get("sinks")
    given = [x.clone().requires_grad_() for x in (*qkv, *([sinks] if sinks is not None else []))]
    more = {**options, **({"sinks": given[3]} if sinks is not None else {})}
    out, lse = by_definition(*given[:3], causal=causal, **more)
    loss = (out * d_out).sum() + (lse.masked_fill(lse == float("-inf"), 0) * 0.1).sum()
    want = torch.autograd.grad(loss, given)
    place = {"schedule": schedule, "causal": causal}
    local = [shard_sequence(x, **place).detach().requires_grad_() for x in qkv]
    local += [x.detach().clone().requires_grad_() for x in given[3:]]
    more = {**options, **({"sinks": local[3]} if sinks is not None else {})}
    got, got_lse = hamilton_attention(*local[:3], return_lse=True, **place, **more)
    finite = got_lse.masked_fill(got_lse == float("-inf"), 0)
    grads = torch.autograd.grad((got * shard_sequence(d_out, **place)).sum() + (finite * 0.1).sum(), local)
    cases.compare(name, [got], [shard_sequence(out, **place)], limit=1e-11)
    sums = shard_sequence(lse.masked_fill(lse == float("-inf"), 0), dim=2, **place)
    cases.compare(f"{name} lse", [finite], [sums], limit=1e-11)
    cases.compare(f"{name} gradients", grads[:3], [shard_sequence(x, **place) for x in want[:3]], limit=1e-10)
    if sinks is not None:
        total = grads[3].clone()
        if dist.is_initialized():
            dist.all_reduce(total)
        cases.compare(f"{name} sinks", [total], [want[3]], limit=1e-10)


def _check_blocks(cases, ranks):
    """Blocks in which nothing is visible are skipped, and counted."""
    length = 16 * ranks
    q, k, v = (x.double() for x in tensors(6, *[(1, length, 2, 4)] * 3))
    mask = MaskFunction(document_mask(torch.arange(length) // 8), block_size=8)
    place = {"schedule": "ring"}
    out = hamilton_attention(*(shard_sequence(x, **place) for x in (q, k, v)), mask_mod=mask, **place)
    exact, _ = by_definition(q, k, v, mask_mod=mask.mask_mod)
    cases.compare("blocks", [out], [shard_sequence(exact, **place)], limit=1e-11)
    counted = torch.tensor([mask.blocks, mask.empty, mask.full]).double()
    cases.compare("counts", [counted], [torch.tensor([4.0 * ranks, 4 * ranks - 2, 2]).double()], limit=1e-9)


def _check_padding(cases, ranks):
    """Packed sequences with padding after each: as without, and 0 in the padding."""
    lengths = [3, 2 * ranks, 5]
    padded = [2 * ranks * (-(-n // (2 * ranks)) + (n > 4)) for n in lengths]
    ends, places = ([sum(x[:i]) for i in range(4)] for x in (lengths, padded))
    q, k, v, d_out = (x.double() for x in tensors(7, *[(places[-1], 2, 4)] * 4))
    real = torch.cat([torch.arange(a, a + n) for a, n in zip(places, lengths, strict=False)])
    given = [x[real].requires_grad_() for x in (q, k, v)]
    parts = [by_definition(*(x[None, a:b] for x in given), causal=True)[0][0]
             for a, b in pairwise(ends)]  # fmt: skip
    exact = torch.zeros_like(q).index_copy(0, real, torch.cat(parts))
    want = [torch.zeros_like(q).index_copy(0, real, x)
            for x in torch.autograd.grad((exact * d_out).sum(), given)]  # fmt: skip
    for schedule in ("zigzag", "hamilton", "striped"):
        place = {"schedule": schedule, "causal": True, "cu_seqlens": places}
        local = [shard_sequence(x, dim=0, **place).requires_grad_() for x in (q, k, v)]
        options = {**place, "cu_seqlens": ends, "cu_seqlens_padded": places}
        out = hamilton_attention(*local, **options)
        grads = torch.autograd.grad((out * shard_sequence(d_out, dim=0, **place)).sum(), local)
        wanted = [shard_sequence(x, dim=0, **place) for x in (exact, *want)]
        cases.compare(f"padding {schedule}", [out, *grads], wanted, limit=1e-11)


def _check_balanced(cases, ranks):
    """Slices of documents dealt out over ranks: the same results, put together again too."""
    ends = [0, 3, 3, 4, 30 * ranks + 2, 34 * ranks]
    q, k, v, d_out = (x.double() for x in tensors(11, *[(ends[-1], 2, 4)] * 4))
    for causal, schedule in (
        (True, "hamilton"),
        (False, "zigzag"),
        (True, "ulysses:2" if ranks == 2 else "direct"),
    ):
        given = [x.clone().requires_grad_() for x in (q, k, v)]
        parts = [
            by_definition(*(x[None, a:b] for x in given), causal=causal)[0][0] for a, b in pairwise(ends)
        ]
        exact = torch.cat(parts)
        want = [exact, *torch.autograd.grad((exact * d_out).sum(), given)]
        place = {"schedule": schedule, "causal": causal, "cu_seqlens": ends, "layout": "balanced"}
        local = [shard_sequence(x, dim=0, **place).requires_grad_() for x in (q, k, v)]
        out = hamilton_attention(*local, **place)
        grads = torch.autograd.grad((out * shard_sequence(d_out, dim=0, **place)).sum(), local)
        wanted = [shard_sequence(x.detach(), dim=0, **place) for x in want]
        cases.compare(f"balanced {schedule} causal={causal}", [out, *grads], wanted, limit=1e-11)
        cases.compare(
            "balanced, whole", [unshard_sequence(out, dim=0, **place)], [exact.detach()], limit=1e-11
        )


def _check_unshard(cases, rank, ranks):
    """A loss on the whole sequence of every rank: the gradients of all of them arrive."""
    (x,) = tensors(8, (1, 3 * ranks + 1, 2))
    part = shard_sequence(x, causal=True).requires_grad_()
    whole = unshard_sequence(part, causal=True)
    (whole * whole * (rank + 1)).sum().backward()
    factor = ranks * (ranks + 1)
    cases.compare("unshard", [part.grad], [factor * part.detach().double()])


def _check_positions(cases, rank, ranks):
    """Positions are compared with the layout; consecutive slices and whole sequences are refused."""
    length = 6 * ranks + 12  # of no other test
    q, k, v = tensors(9, *[(1, length, 2, 8)] * 3)
    exact, _ = by_definition(*(x.double() for x in (q, k, v)), causal=True)
    place = {"causal": True, "schedule": "zigzag"}
    wrong = [x.tensor_split(ranks, 1)[rank] for x in (q, k, v)]
    cases.refuses("slices", AttentionError, "the layout of q is unknown", hamilton_attention, *wrong, **place)
    cases.refuses("whole", AttentionError, "the layout of q is", hamilton_attention, q, k, v, causal=True)
    cases.refuses("whole, full", AttentionError, "was not divided", hamilton_attention, q, k, v)
    ids = torch.arange(length).tensor_split(ranks)[rank]
    told = "position_ids are those of contiguous layout"
    cases.refuses("ids", AttentionError, told, hamilton_attention, *wrong, position_ids=ids, **place)
    with environment(MEGATILE_ATTENTION_CHECK="0"):
        hamilton_attention(*wrong, **place)
    where = position_ids(length, rank=rank, ranks=ranks, **place)
    parts = [x[:, where] for x in (q, k, v)]
    for _ in range(2):
        out = hamilton_attention(*parts, position_ids=where, **place)
        cases.compare("positions", [out], [exact[:, where]])
    cases.refuses("too few", AttentionError, "whole numbers for the", hamilton_attention, *parts,
                  position_ids=where[:-1] if rank == 1 else where, **place)  # fmt: skip


def _check_compiled(cases, ranks):
    """One graph, with gradients, also of sinks and through the log-sum-exp."""
    torch._dynamo.reset()
    q, k, v, d_out = tensors(10, *[(1, 4 * ranks + 1, 2, 8)] * 4)
    for schedule in ("hamilton", "ulysses:2" if ranks % 2 == 0 else "ring"):
        place = {"causal": True, "schedule": schedule}
        parts = [shard_sequence(x, **place) for x in (q, k, v)]
        d_part, sinks = shard_sequence(d_out, **place), torch.tensor([0.5, -0.5])
        group = dist.group.WORLD

        def model(q, k, v, sinks, place=place, group=group):
            out, lse = hamilton_attention(q.sin(), k, v, sinks=sinks, return_lse=True, group=group, **place)
            return out.cos() + lse.sum()

        def gradients(function, parts=parts, sinks=sinks, d_part=d_part):
            inputs = [x.detach().clone().requires_grad_() for x in (*parts, sinks)]
            out = function(*inputs)
            return [out.detach(), *torch.autograd.grad(out, inputs, d_part)]

        whole = torch.compile(model, backend="aot_eager", fullgraph=True)
        for got, want in zip(gradients(whole), gradients(model), strict=True):
            cases.compare(f"one graph {schedule}", [got], [want.double()])
