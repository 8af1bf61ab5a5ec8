"""What the ranks do in the tests with real processes. Every function returns a list of failures, empty when
all is well.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from itertools import pairwise

import torch
import torch.distributed as dist
import torch.nn.functional as F

from megatile.attention import (
    A2AComm,
    AttentionError,
    RingComm,
    calculate_in_mapping_circle,
    calculate_inter_node_mapping,
    calculate_intra_node_out_mapping_two_nodes,
    calculate_out_mapping_circle,
    calculate_source_rank_per_iter,
    forwards,
    gen_hamilton_circle,
    gen_hamilton_circle_two_nodes,
    gen_hamilton_path_local,
    hamilton_attention,
    kv_chunks,
    make_schedule,
    position_ids,
    ring_flash,
    sequence_parallel_attention,
    shard_sequence,
    unshard_sequence,
)

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


def schedules_of(ranks):
    names = ["ring", "zigzag", "striped", "direct", "hamilton", "ulysses"] + (["auto"] if ranks < 4 else [])
    for m in range(2, ranks):
        if ranks % m == 0:
            names += [f"hamilton:{m}x{ranks // m}", f"ulysses:{m}", f"ulysses:{m}+zigzag"]
    return names + (["hamilton:2"] if ranks > 3 else [])


def check_schedules(rank, names, low_precision):
    """Every schedule, full and causal, even and uneven lengths, GQA; forward and backward."""
    ranks, cases = dist.get_world_size(), Cases()
    variants = [(4 * ranks, 2, 2), (7 * ranks + 3, 4, 2)]
    for seed, (length, heads, kv_heads) in enumerate(variants):
        if seed == 0 and ranks > 5:
            continue  # time: uneven lengths and GQA are the harder case
        shapes = [
            (2, length, heads, 8),
            (2, length, kv_heads, 8),
            (2, length, kv_heads, 8),
            (2, length, heads, 8),
        ]
        for causal in (False, True):
            for dtype in [torch.float32, *(low_precision if seed else [])]:
                q, k, v, d_out = tensors(seed, *shapes, dtype=dtype)
                exact = with_gradients(
                    lambda *x, c=causal: single_device(*x, causal=c),
                    [x.double() for x in (q, k, v)],
                    d_out.double(),
                )
                allowed = None if dtype == torch.float32 else allowed_errors(q, k, v, d_out, causal, exact)
                for name in names:
                    arguments = {"schedule": name, "causal": causal}
                    got = divided(q, k, v, d_out, arguments)
                    label = f"{name} causal={causal} {length} {dtype}"
                    cases.compare(label, got, shards(exact, arguments), allowed=allowed)
    return cases.failures, cases.count, cases.worst


def allowed_errors(q, k, v, d_out, causal, exact):
    """For low precision: 2.5 times the error of flash attention on one device, and 2e-3."""

    def attention(*x):
        inner = [y.transpose(1, 2) for y in x]
        return F.scaled_dot_product_attention(*inner, is_causal=causal, enable_gqa=True).transpose(1, 2)

    single = with_gradients(attention, (q, k, v), d_out)
    return [2.5 * (a.double() - b).abs().max().item() + 2e-3 for a, b in zip(single, exact, strict=True)]


def check_masks(rank):
    """Windows, ALiBi, cross lengths, packed sequences, short sequences, another dim of v, layouts, scale,
    transports.
    """
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
    boundaries = [0, 2 * ranks + 1, 2 * ranks + 2, 7 * ranks]
    q, k, v, d_out = tensors(5, *[(boundaries[-1], 2, 4)] * 4)
    for causal in (False, True):

        def packed(*x, c=causal):
            parts = [single_device(*(y[None, a:b] for y in x), causal=c) for a, b in pairwise(boundaries)]
            return torch.cat(parts, 1)[0]

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
            local = with_gradients(
                lambda *x, c=call: hamilton_attention(*x, **c), parts, shard_sequence(d_out, **arguments)
            )
            cases.compare(
                f"{schedule} packed causal={causal}", [unshard_sequence(x, **arguments) for x in local], exact
            )


def check_forwards(rank, m, u):
    """The functions with explicit chunks and mappings, and their profiling variants."""
    ranks, cases = dist.get_world_size(), Cases()
    group = dist.group.WORLD
    cycles = gen_hamilton_circle(ranks)
    nodes = gen_hamilton_circle_two_nodes(ranks, u)
    tables = {
        "out_mapping": calculate_out_mapping_circle(cycles),
        "in_mapping": calculate_in_mapping_circle(cycles),
    }
    inside = {
        "out_mapping": calculate_intra_node_out_mapping_two_nodes(gen_hamilton_path_local(m)),
        "inter_out_mapping": calculate_inter_node_mapping(nodes, m),
        "inter_in_mapping": calculate_inter_node_mapping(nodes, m, "in"),
    }
    sources = calculate_source_rank_per_iter(cycles)
    length = 2 * ranks * max(1, len(cycles)) * len(nodes)
    q, k, v = tensors(6, *[(1, length, 2, 4)] * 3)
    for causal in (False, True):
        exact = single_device(*(x.double() for x in (q, k, v)), causal=causal)
        name = "causal" if causal else "full"
        local = [shard_sequence(x, causal=causal, schedule="zigzag") for x in (q, k, v)]
        chunks = [kv_chunks(x, len(cycles), causal=causal) for x in local[1:]]
        extra = {"source_rank_per_iter": sources} if causal else {}
        calls = {
            f"hamilton_attention_forward_{name}_flash_attn": [
                {"looping": cycles, **tables, **extra},
                tables,
                {},
            ]
        }
        if u > 1:
            calls[f"hamilton_attention_forward_{name}_flash_attn_two_nodes"] = [
                inside,
                *([{}] if u == 2 else []),
            ]
        for function, variants in calls.items():
            pieces = (
                chunks
                if "two" not in function
                else [kv_chunks(x, len(nodes), causal=causal) for x in local[1:]]
            )
            for variant in variants:
                out, lse = getattr(forwards, function)(group, local[0], *pieces, None, **variant)
                whole = unshard_sequence(out, causal=causal, schedule="zigzag")
                cases.compare(function, [whole], [exact])
                if lse.shape != (1, 2, local[0].shape[1]) or lse.dtype != torch.float32:
                    cases.failures.append(f"{function}: lse {lse.shape} {lse.dtype}")
            turned = [x.transpose(1, 2) for x in local[:1]], [[c.transpose(1, 2) for c in x] for x in pieces]
            profiled = getattr(forwards, f"{function}_profile")
            out, _, total, communication, computation = profiled(
                group, *turned[0], *turned[1], None, layout="BNSD", **variants[0]
            )
            whole = unshard_sequence(out.transpose(1, 2), causal=causal, schedule="zigzag")
            cases.compare(f"{function}_profile", [whole], [exact])
            if not 0 < computation <= total or not 0 <= communication <= total:
                cases.failures.append(f"{function}_profile: {total}, {communication}, {computation}")
        for prefix, layout in (("", "ring"), ("zigzag_", "zigzag")):
            arguments = {"causal": causal, "schedule": layout}
            parts = [shard_sequence(x, **arguments) for x in (q, k, v)]
            function = f"{prefix}ring_attention_forward_flash_attn"
            out, _ = getattr(forwards, function)(group, *parts, None, causal=causal)
            cases.compare(function, [unshard_sequence(out, **arguments)], [exact])
            out, _, total, *_ = getattr(forwards, f"{function}_profile")(group, *parts, None, causal=causal)
            cases.compare(f"{function}_profile", [unshard_sequence(out, **arguments)], [exact])
    return cases.failures, cases.count, cases.worst


def check_names(rank):
    """ring-flash-attention's names, the context manager, positions, sub-groups, ranks in another order."""
    ranks, cases = dist.get_world_size(), Cases()
    length = 2 * ranks * 3
    q, k, v, d_out = tensors(7, *[(1, length, 2, 4)] * 4)
    exact = with_gradients(
        lambda *x: single_device(*x, causal=True), [x.double() for x in (q, k, v)], d_out.double()
    )
    for prefix, schedule in (
        ("ring_flash_attn", "ring"),
        ("zigzag_ring_flash_attn", "zigzag"),
        ("stripe_flash_attn", "striped"),
    ):
        arguments = {"causal": True, "schedule": schedule}
        parts = [shard_sequence(x, **arguments) for x in (q, k, v)]
        functions = ring_flash.FUNCTIONS
        calls = {
            "func": lambda *x, f=functions, p=prefix: f[f"{p}_func"](*x, causal=True),
            "kvpacked": lambda a, b, c, f=functions, p=prefix: f[f"{p}_kvpacked_func"](
                a, torch.stack([b, c], 2), causal=True
            ),
            "qkvpacked": lambda *x, f=functions, p=prefix: f[f"{p}_qkvpacked_func"](
                torch.stack(x, 2), causal=True
            ),
        }
        if prefix != "stripe_flash_attn":
            cu = torch.tensor([0, length // ranks])
            calls["varlen"] = lambda *x, f=functions, p=prefix, cu=cu: f[f"{p}_varlen_qkvpacked_func"](
                torch.stack([y[0] for y in x], 1), cu, length // ranks, causal=True, return_attn_probs=True
            )[0][None]
        for name, call in calls.items():
            local = with_gradients(call, parts, shard_sequence(d_out, **arguments))
            cases.compare(f"{prefix} {name}", [unshard_sequence(x, **arguments) for x in local], exact)

    def through_torch(*x):
        return F.scaled_dot_product_attention(*(y.transpose(1, 2) for y in x), is_causal=True).transpose(1, 2)

    parts = [shard_sequence(x, causal=True) for x in (q, k, v)]
    before = F.scaled_dot_product_attention
    with sequence_parallel_attention():
        local = with_gradients(through_torch, parts, shard_sequence(d_out, causal=True))
        cases.refuses(
            "mask", AttentionError, "attn_mask", F.scaled_dot_product_attention, q, k, v, attn_mask=q
        )
    cases.compare("sdpa", [unshard_sequence(x, causal=True) for x in local], exact)
    if F.scaled_dot_product_attention is not before:
        cases.failures.append("sdpa: not put back")
    whole = unshard_sequence(position_ids(length, causal=True)[None, :].float(), causal=True)
    cases.compare("positions", [whole], [torch.arange(length).double()[None]])
    _check_subgroup(cases, rank, ranks)
    return cases.failures, cases.count, cases.worst


def _check_subgroup(cases, rank, ranks):
    members = list(range(1, ranks))
    group = dist.new_group(members)
    if rank not in members:
        cases.refuses(
            "outside",
            AttentionError,
            "not a member",
            hamilton_attention,
            *tensors(1, *[(1, 2, 1, 4)] * 3),
            group=group,
        )
        return
    q, k, v = tensors(8, *[(1, 4 * ranks, 2, 4)] * 3)
    exact = single_device(*(x.double() for x in (q, k, v)), causal=True)
    arguments = {"causal": True, "group": group}
    out = hamilton_attention(*(shard_sequence(x, **arguments) for x in (q, k, v)), **arguments)
    cases.compare("sub-group", [unshard_sequence(out, **arguments)], [exact])


def check_errors(rank):
    """Wrong use: one clear error on every rank, and the group stays usable."""
    cases = Cases()
    ranks = dist.get_world_size()
    x = torch.randn(1, 6, 4, 8)
    y = torch.randn(1, 6, 4, 8)

    def attend(*tensors, **kwargs):
        return hamilton_attention(*tensors, **kwargs)

    last = rank == ranks - 1
    heads = torch.randn(1, 6, 2 if last else 4, 8)
    cases.refuses(
        "heads", AttentionError, "disagree on query heads: 4 on rank 0", attend, heads, heads, heads
    )
    wrong = x.double() if last else x
    cases.refuses(
        "dtype", AttentionError, f"rank {ranks - 1}: q, k and v must share", attend, wrong, wrong, wrong
    )
    cases.refuses("mixed", AttentionError, "got bfloat16, float32", attend, x, x.bfloat16(), x)
    cases.refuses("dropout", AttentionError, "dropout", attend, x, x, x, dropout_p=0.1)
    cases.refuses("shape", AttentionError, "four dimensions", attend, x[0], x, x)
    cases.refuses("dim", AttentionError, "same head dim", attend, x, x[..., :4], x)
    cases.refuses("kv", AttentionError, "must agree", attend, x, x, x[:, :3])
    cases.refuses("groups", AttentionError, "no multiple", attend, x, x[:, :, :3], x[:, :, :3])
    cases.refuses("window", AttentionError, "window_size", attend, x, x, x, window_size=(3, -2))
    cases.refuses("layout", AttentionError, "did you mean 'BSND'", attend, x, x, x, layout="BSN")
    cases.refuses("schedule", AttentionError, "did you mean 'zigzag'", attend, x, x, x, schedule="zigzac")
    cases.refuses("nodes", AttentionError, "is for 99 ranks", attend, x, x, x, schedule="hamilton:33x3")
    cases.refuses("causal", AttentionError, "disagree on mask", attend, x, x, x, causal=last)
    cases.refuses(
        "names",
        AttentionError,
        "disagree on schedule",
        attend,
        x,
        x,
        x,
        schedule="ring" if last else "zigzag",
    )
    cases.refuses("group", AttentionError, "process group, got str", attend, x, x, x, group="world")
    cases.refuses("slopes", AttentionError, "alibi_slopes", attend, x, x, x, alibi_slopes=torch.ones(3))
    uneven = torch.randn(1, 7 if last else 6, 4, 8)
    cases.refuses(
        "uneven",
        AttentionError,
        "zigzag layout",
        attend,
        uneven,
        uneven,
        uneven,
        causal=True,
        schedule="zigzag",
    )
    cases.refuses("packed", AttentionError, "gives it", attend, x[0], x[0], x[0], cu_seqlens=[0, 7 * ranks])
    cases.refuses(
        "boundaries", AttentionError, "begin with 0", attend, x[0], x[0], x[0], cu_seqlens=[3, 6 * ranks]
    )
    torch.manual_seed(0)
    same = torch.randn(1, 6, 4, 8)
    with environment(MEGATILE_ATTENTION_DEBUG="1"):
        cases.refuses("unsharded", AttentionError, "the sequence was not divided", attend, same, same, same)
    with environment(MEGATILE_ATTENTION_TRANSPORT="pigeon"):
        cases.refuses("transport", AttentionError, "no transport: 'pigeon'", attend, x, x, x)
    cycles = gen_hamilton_circle(ranks)
    full = forwards.hamilton_attention_forward_full_flash_attn
    cases.refuses("chunks", AttentionError, "kv_chunks", full, None, x, [x], [x, x], None)
    cases.refuses("size", AttentionError, "world_size is 77", full, None, x, [x], [x], None, world_size=77)
    causal = forwards.hamilton_attention_forward_causal_flash_attn
    odd = [torch.randn(1, 3, 4, 8) for _ in cycles]
    cases.refuses("halves", AttentionError, "two equal halves", causal, None, x, odd, odd, None)
    got = attend(x + rank, y, y, schedule=make_schedule("direct", ranks))
    if not torch.isfinite(got).all():
        cases.failures.append("the group is not usable after errors")
    return cases.failures, cases.count, cases.worst


def check_communication_classes(rank):
    """RingComm and A2AComm, and a call without the comparison of arguments."""
    cases, ranks = Cases(), dist.get_world_size()
    ring = RingComm(dist.group.WORLD)
    k, v = ring.send_recv_kv(torch.full((3,), float(rank)), torch.full((2, 2), -float(rank)))
    cases.refuses("not awaited", AttentionError, "were not awaited", ring.commit)
    ring.wait()
    before = float((rank - 1) % ranks)
    cases.compare("ring", [k, v], [torch.full((3,), before).double(), torch.full((2, 2), -before).double()])
    everyone = A2AComm(dist.group.WORLD)
    received = [torch.empty(p + 1, 2) for p in range(ranks)]
    everyone.all_to_all([torch.full((rank + 1, 2), 10.0 * rank + p) for p in range(ranks)], received)
    everyone.wait()
    expected = [torch.full((p + 1, 2), 10.0 * p + rank).double() for p in range(ranks)]
    cases.compare("all to all", received[:4], expected[:4])
    cases.refuses("too few", AttentionError, "one tensor per rank", everyone.all_to_all, [k], [k])
    q, k, v = tensors(2, *[(1, 4 * ranks, 2, 4)] * 3)
    exact = single_device(*(x.double() for x in (q, k, v)))
    with environment(MEGATILE_ATTENTION_CHECK="0"):
        out = hamilton_attention(*(shard_sequence(x) for x in (q, k, v)))
    cases.compare("unchecked", [out], shards([exact], {}))
    cases.refuses("tokens", AttentionError, "gives them", unshard_sequence, out[:, rank:], layout="striped")
    return cases.failures, cases.count, cases.worst


def dies_in_the_middle(rank, schedule, victim, causal):
    """One rank ends while the others work; they must name it."""
    from megatile.attention import engine

    x = torch.randn(1, 16, 2, 8)
    hamilton_attention(x, x, x, schedule=schedule, causal=causal)
    if rank == victim:
        original = engine.Engine._forward_call

        def deadly(self, *args):
            deadly.calls += 1
            if deadly.calls == 2:
                os._exit(17)
            return original(self, *args)

        deadly.calls = 0
        engine.Engine._forward_call = deadly
    for _ in range(3):
        hamilton_attention(x, x, x, schedule=schedule, causal=causal)


def never_calls(rank, victim, seconds):
    """One rank does not take part; the others must name it after their timeout."""
    import time

    x = torch.randn(1, 8, 2, 8)
    if rank == victim:
        time.sleep(5)
        return
    with environment(MEGATILE_ATTENTION_TIMEOUT=seconds):
        hamilton_attention(x, x, x)


@contextmanager
def environment(**values):
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
