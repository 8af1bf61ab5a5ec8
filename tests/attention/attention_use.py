"""What ranks do in the tests of everyday use: every layout and length, sub-groups, torch's own attention."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise, product

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from tests.attention.attention_cases import Cases, environment, shards, single_device, tensors, with_gradients
from torch.distributed.device_mesh import DeviceMesh

from megatile.attention import (
    AttentionError,
    PeerError,
    hamilton_attention,
    hamilton_attention_forward_full_flash_attn,
    make_schedule,
    position_ids,
    ring_flash_attn_qkvpacked_func,
    sequence_parallel_attention,
    shard_sequence,
    unshard_sequence,
)
from megatile.hda import machine as load_machine


def check_use(rank):
    """Layouts, sub-groups, contexts; mistakes on one rank are errors on all."""
    cases = Cases()
    _check_layouts(cases)
    _check_contexts(cases)
    if dist.get_world_size() == 3:
        _check_tags(cases, rank)
        _check_computed(cases)
    _check_mistakes_of_one_rank(cases, rank)
    _check_meshes(cases)
    if dist.get_world_size() > 3:
        _check_subgroup(cases, rank)
        dist.barrier()  # rank 0, which is in no sub-group, keeps the store that the others need
    return cases.failures, cases.count, cases.worst


def _check_layouts(cases):
    """Divided and put together again, every layout, also with fewer tokens than ranks."""
    ranks = dist.get_world_size()
    for length in (0, 1, ranks - 1, ranks + 1, 4 * ranks + 3):
        whole = torch.arange(2.0 * length).reshape(1, length, 2)
        for arguments in (
            *({"layout": x} for x in ("contiguous", "zigzag", "striped", "cycles")),
            *({"schedule": x, "causal": True} for x in ("ring", "zigzag", "striped", "hamilton", "ulysses")),
            {"causal": True, "cu_seqlens": [0, length // 2, length]},
        ):
            part = shard_sequence(whole, **arguments)
            cases.compare(f"{arguments} {length}", [unshard_sequence(part, **arguments)], [whole.double()])
            own = position_ids(length, **arguments)
            if "cu_seqlens" not in arguments:
                cases.compare(f"positions {arguments} {length}", [part[0, :, 0]], [2 * own.double()])


def _check_tags(cases, rank):
    """Tokens in another layout than the schedule's: refused where that is known, right where it is said."""
    ranks = dist.get_world_size()
    length = 8 * ranks + 3
    boundaries = [0, 2 * ranks + 1, 2 * ranks + 2, length]
    q, k, v, d_out = tensors(2, *[(1, length, 2, 4)] * 4)
    exact = with_gradients(
        lambda *x: single_device(*x, causal=True), [x.double() for x in (q, k, v)], d_out.double()
    )
    for schedule, layout in product(("ring", "hamilton", "direct"), ("contiguous", "zigzag", "striped")):
        parts = [shard_sequence(x, layout=layout) for x in (q, k, v)]
        plain, d_part = [x.clone() for x in parts], shard_sequence(d_out, layout=layout)
        options = {"causal": True, "schedule": schedule}
        if make_schedule(schedule, ranks).causal_layout != layout:
            told = f"q was divided in {layout} layout over {ranks} ranks, schedule '{schedule}' expects"
            cases.refuses(f"{schedule} {layout}", AttentionError, told, hamilton_attention, *parts, **options)
            last = [x if rank == ranks - 1 else x.clone() for x in parts]
            told = f"rank {ranks - 1}: {told}"
            cases.refuses("the last rank knows", AttentionError, told, hamilton_attention, *last, **options)
        for given in (parts, plain):
            got = with_gradients(
                lambda *x, o=options, y=layout: hamilton_attention(*x, layout=y, **o), given, d_part
            )
            cases.compare(f"{schedule} said {layout}", got, shards(exact, {"layout": layout}))
        out = hamilton_attention(*parts, layout=("BSND", layout), **options)
        told = f"was divided in {layout} layout"
        other = "zigzag" if layout != "zigzag" else "striped"
        cases.refuses("put together", AttentionError, told, unshard_sequence, out, layout=other)
        cases.compare("put together", [unshard_sequence(out, layout=layout)], exact[:1])
    _check_slices(cases, [x[0] for x in (q, k, v)], boundaries)


def _check_computed(cases):
    """What is computed from shards carries no layout: refused where no shard so long was divided as it should
    be, unless it is said, or checks are off. Debug mode insists on knowing."""
    (q,) = tensors(3, (1, 50 * dist.get_world_size(), 2, 4))
    computed = [q.tensor_split(dist.get_world_size(), 1)[dist.get_rank()] * f for f in (1.0, 2.0, 3.0)]
    told = "shard_sequence made no shard of its 50 tokens, and"
    for schedule in ("ring", "zigzag"):
        options = {"causal": True, "schedule": schedule}
        cases.refuses("plain", AttentionError, told, hamilton_attention, *computed, **options)
        with environment(MEGATILE_ATTENTION_CHECK="0"):
            hamilton_attention(*computed, **options)  # divided by hand: taken as the schedule expects
    hamilton_attention(*computed, schedule="zigzag")  # without a mask it does not matter
    own = shard_sequence(q, causal=True, schedule="ring")
    computed = [own * factor for factor in (1.0, 2.0, 3.0)]
    right = hamilton_attention(*computed, causal=True, schedule="ring")
    for schedule in ("zigzag", "hamilton"):
        told = "shard_sequence made shards in contiguous layout over"
        options = {"causal": True, "schedule": schedule}
        cases.refuses("computed", AttentionError, told, hamilton_attention, *computed, **options)
        said = hamilton_attention(*computed, layout="contiguous", **options)
        cases.compare(f"computed and said {schedule}", [said], [right.double()])
    shard_sequence(q, causal=True, schedule="zigzag")
    told = "made shards in zigzag layout over"
    options = {"causal": True, "schedule": "ring"}
    hamilton_attention(*computed, **options)
    with environment(MEGATILE_ATTENTION_DEBUG="1"):
        cases.refuses("both", AttentionError, told, hamilton_attention, *computed, **options)


def _check_slices(cases, whole, boundaries):
    """A pack that was cut into consecutive slices, whatever the documents are."""
    for causal, schedule in product((False, True), ("ring", "zigzag", "hamilton")):
        parts = [single_device(*(x[None, a:b].double() for x in whole), causal=causal)
                 for a, b in pairwise(boundaries)]  # fmt: skip
        exact, packed = torch.cat(parts, 1)[0], {"cu_seqlens": boundaries}
        place = {"dim": 0, "layout": "slices", **packed}
        tagged = [shard_sequence(x, **place) for x in whole]
        options = {"causal": causal, "schedule": schedule, **packed}
        told = "was divided in slices layout of 3 packed sequences"
        cases.refuses("slices", AttentionError, told, hamilton_attention, *tagged, **options)
        slices = [x.tensor_split(dist.get_world_size())[dist.get_rank()].clone() for x in whole]
        out = hamilton_attention(*slices, layout="slices", **options)
        cases.compare(f"slices {schedule} causal={causal}", [out], [shard_sequence(exact, **place)])
        each = [shard_sequence(x, dim=0, causal=causal, schedule=schedule) for x in whole]
        cases.refuses("one sequence", AttentionError, "was divided in", hamilton_attention, *each, **options)


def _check_contexts(cases):
    """Grouped heads, half precision, one context in another, an exception inside."""
    length = 5 * dist.get_world_size() + 1
    q, k, v, d_out = tensors(1, *[(1, length, h, 8) for h in (4, 2, 2, 4)])

    def through_torch(*x, causal):
        inner = [y.transpose(1, 2) for y in x]
        return F.scaled_dot_product_attention(*inner, is_causal=causal, enable_gqa=True).transpose(1, 2)

    for causal, schedule in ((False, "ring"), (True, "zigzag"), (True, "auto")):
        arguments = {"causal": causal, "schedule": schedule}
        exact = with_gradients(
            lambda *x, c=causal: single_device(*x, causal=c), [x.double() for x in (q, k, v)], d_out.double()
        )
        parts, d_part = (
            [shard_sequence(x, **arguments) for x in (q, k, v)],
            shard_sequence(d_out, **arguments),
        )
        with sequence_parallel_attention(schedule="striped"):
            try:
                with sequence_parallel_attention(schedule=schedule):
                    raise KeyError
            except KeyError:
                pass
            layout = make_schedule(schedule, dist.get_world_size()).layout(causal).name
            debug = environment(MEGATILE_ATTENTION_DEBUG="1")
            with debug, sequence_parallel_attention(schedule=schedule, layout=layout):
                got = with_gradients(lambda *x, c=causal: through_torch(*x, causal=c), parts, d_part)
                narrow = through_torch(*(x.half() for x in parts), causal=causal)
        cases.compare(f"torch's attention, {schedule}", got, shards(exact, arguments))
        cases.compare("in half precision", [narrow], shards(exact[:1], arguments), limit=1e-2)


def _check_differences(cases, wrong):
    """What only a comparison can find: each rank alone has done nothing wrong."""
    ranks = dist.get_world_size()
    (x,) = tensors(dist.get_rank(), (1, 4, 2, 8))
    if ranks == 1:
        return
    refuses = partial(cases.refuses, error=AttentionError)
    leaf = x.clone().requires_grad_(wrong)
    refuses("gradient of one", message="disagree on gradient", function=hamilton_attention, q=leaf, k=x, v=x)
    options = {"function": hamilton_attention, "q": x, "k": x, "v": x, "causal": True}
    machine = "mi300x-8" if wrong else "dgx-h100"
    refuses("machine of one", message="disagree on machine", machine=machine, **options)
    smaller = load_machine("mi300x-8", gpus=4 if wrong else 8)  # the name is the same
    refuses("contents of machine", message="disagree on machine: mi300x-8 (", machine=smaller, **options)
    same = load_machine("mi300x-8") if wrong else "mi300x-8"
    cases.compare(
        "one machine", [hamilton_attention(x, x, x, machine=same).isfinite().all()], [torch.tensor(1.0)]
    )
    chosen = make_schedule("zigzag", ranks)
    other = replace(chosen, causal_layout="contiguous") if wrong else chosen  # nor does this show in the name
    refuses("division of one", message="disagree on division: contiguous, ", schedule=other, **options)
    boundaries = [0, 2 * ranks, 4 * ranks]
    packed = np.array(boundaries) if wrong else torch.tensor(boundaries)
    one = hamilton_attention(x[0], x[0], x[0], cu_seqlens=packed, layout="contiguous")
    cases.compare("boundaries of all kinds", [one.isfinite().all()], [torch.tensor(1.0)])
    empty = x.to("meta") if wrong else x
    refuses("meta", message="device 'meta' have", function=hamilton_attention, q=empty, k=empty, v=empty)
    batched = torch.vmap(lambda a: hamilton_attention(a, a, a))
    cases.refuses("vmap", AttentionError, "torch.vmap cannot reach", batched, x.repeat(2, 1, 1, 1, 1))
    refuses("a list as layout", message="no tensor layout", layout=["B"] if wrong else "BSND", **options)
    refuses("tensor as dropout", message="dropout", dropout_p=torch.ones(2) if wrong else 0.0, **options)
    refuses("shape", message="disagree on shape", function=unshard_sequence, x=x[..., : 8 - wrong])
    refuses("dtype", message="disagree on dtype", function=unshard_sequence, x=x.half() if wrong else x)
    refuses("no tensor", message="must be a tensor", function=unshard_sequence, x=[1] if wrong else x)
    if ranks > 2:
        ring = list(range(ranks))
        looping = [ring[::-1] if wrong else ring]
        refuses(
            "cycles", message="disagree on cycles", function=hamilton_attention_forward_full_flash_attn,
            process_group=dist.group.WORLD, q=x, k=[x], v=[x], softmax_scale0=None, looping=looping,
        )  # fmt: skip
    qkv = torch.randn(1, 4, 2 if wrong else 3, 2, 8)
    refuses("packed", message="packed tensors have 3", function=ring_flash_attn_qkvpacked_func, qkv=qkv)


def _check_mistakes_of_one_rank(cases, rank):
    ranks = dist.get_world_size()
    wrong, x = rank == ranks - 1, torch.randn(1, 2, 6, 8)
    with sequence_parallel_attention():
        for what, arguments, options, message in (
            ("mask", (x, x, x, torch.ones(6, 6)), {}, "attn_mask cannot be divided"),
            (
                "lengths",
                (x, x[:, :, :3], x[:, :, :3]),
                {"is_causal": True},
                "is_causal with different lengths",
            ),
            ("heads", (x, x[:, :1], x[:, :1]), {}, "enable_gqa"),
            ("list", ([1], x, x), {}, "must be tensors"),
            ("dropout", (x, x, x), {"dropout_p": 0.5}, "dropout"),
        ):
            call = (arguments, options) if wrong else ((x, x, x), {})
            name = f"{what} on one rank"
            told = f"rank {ranks - 1}: {message}" if what in ("mask", "lengths") else message
            cases.refuses(name, AttentionError, told, F.scaled_dot_product_attention, *call[0], **call[1])
    _check_differences(cases, wrong)
    y = x.transpose(1, 2)
    with environment(MEGATILE_ATTENTION_MERGE="fussed" if wrong else "torch"):
        told = f"rank {ranks - 1}: MEGATILE_ATTENTION_MERGE is one of fused, torch"
        cases.refuses("merges on one rank", AttentionError, told, hamilton_attention, y, y, y)
    integers = y.int() if wrong else y
    with environment(MEGATILE_ATTENTION_DEBUG="1"):
        cases.refuses(
            "whole numbers", AttentionError, "int32", hamilton_attention, integers, integers, integers
        )
        packed = {"cu_seqlens": [0, "a"] if wrong else [0, 6 * ranks], "layout": "contiguous"}
        cases.refuses(
            "boundaries", AttentionError, "whole numbers", hamilton_attention, y[0], y[0], y[0], **packed
        )
        same = torch.ones(1, 6, 2, 8) * torch.arange(6)[:, None, None]
        cases.refuses(
            "the same on all", AttentionError, "was not divided", hamilton_attention, same, same, same
        )


def _check_meshes(cases):
    """A DeviceMesh of one dimension is a group; of more, one has to be picked."""
    ranks = dist.get_world_size()
    q, k, v = tensors(2, *[(1, 4 * ranks, 2, 4)] * 3)
    exact = single_device(*(x.double() for x in (q, k, v)))
    named = DeviceMesh("cpu", torch.arange(ranks).reshape(1, ranks), mesh_dim_names=("dp", "cp"))
    for group in (DeviceMesh("cpu", torch.arange(ranks)), named["cp"]):
        out = hamilton_attention(*(shard_sequence(x, group=group) for x in (q, k, v)), group=group)
        cases.compare("mesh", [out], shards([exact], {}))
    options = {"q": q, "k": k, "v": v, "function": hamilton_attention, "error": AttentionError}
    cases.refuses("named mesh", message='mesh["dp"] or mesh["cp"]', group=named, **options)
    plain = DeviceMesh("cpu", torch.arange(ranks).reshape(ranks, 1))
    cases.refuses("mesh", message="one dimension of a DeviceMesh, this one has 2", group=plain, **options)


def _check_subgroup(cases, rank):
    """Two of the ranks, in another order; the others may not call, and a group of one needs nobody."""
    pair, alone = dist.new_group([3, 1]), dist.new_group([2])
    q, k, v, d_out = tensors(8, *[(1, 11, 2, 4)] * 4)
    exact = with_gradients(
        lambda *x: single_device(*x, causal=True), [x.double() for x in (q, k, v)], d_out.double()
    )
    groups = [group for group, members in ((pair, (3, 1)), (alone, (2,))) if rank in members]
    for group in groups:
        arguments = {"causal": True, "group": group}
        parts = [shard_sequence(x, **arguments) for x in (q, k, v)]
        got = with_gradients(
            lambda *x, a=arguments: hamilton_attention(*x, **a), parts, shard_sequence(d_out, **arguments)
        )
        cases.compare("sub-group", got, shards(exact, arguments))
        cases.compare("sub-group whole", [unshard_sequence(got[0], **arguments)], exact[:1])
    if rank not in (1, 3):
        cases.refuses("outside", AttentionError, "not a member", hamilton_attention, q, k, v, group=pair)


def calls_with_another_group(rank, victim):
    """One rank calls with a group of its own: the others are told that it did not come."""
    own = [dist.new_group([r]) for r in range(dist.get_world_size())]
    x = torch.randn(1, 8, 2, 8)
    try:
        hamilton_attention(x, x, x, group=own[rank] if rank == victim else None)
    except PeerError as error:
        return str(error)
    return "done"
