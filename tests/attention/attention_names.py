"""What ranks do in the tests of all other names: forward functions, packed names, context, sub-groups."""

from __future__ import annotations

from itertools import product

import torch
import torch.distributed as dist
import torch.nn.functional as F
from tests.attention.attention_cases import Cases, single_device, tensors, with_gradients

from megatile.attention import (
    AttentionError,
    calculate_in_mapping_circle,
    calculate_inter_node_mapping,
    calculate_intra_node_out_mapping_two_nodes,
    calculate_out_mapping_circle,
    calculate_source_rank_per_iter,
    gen_hamilton_circle,
    gen_hamilton_circle_two_nodes,
    gen_hamilton_path_local,
    hamilton_attention,
    kv_chunks,
    position_ids,
    sequence_parallel_attention,
    shard_sequence,
    unshard_sequence,
)
from megatile.compat import hamilton as forwards
from megatile.compat.ring_flash_attn.functions import FUNCTIONS


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
    inter_in, inter_out = calculate_inter_node_mapping(nodes, m)
    inside = {
        "out_mapping": calculate_intra_node_out_mapping_two_nodes(gen_hamilton_path_local(m)),
        "inter_out_mapping": inter_out,
        "inter_in_mapping": inter_in,
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
                *([{}] if nodes == gen_hamilton_circle_two_nodes(ranks) else []),
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
            out, _, times = profiled(
                group, *turned[0], *turned[1], None, layout="BNSD", world_size=ranks, **variants[0]
            )
            whole = unshard_sequence(out.transpose(1, 2), causal=causal, schedule="zigzag")
            cases.compare(f"{function}_profile", [whole], [exact])
            if not plausible(times):
                cases.failures.append(f"{function}_profile: {times}")
        for prefix, layout in (("", "ring"), ("zigzag_", "zigzag")):
            arguments = {"causal": causal, "schedule": layout}
            parts = [shard_sequence(x, **arguments) for x in (q, k, v)]
            function = f"{prefix}ring_attention_forward_flash_attn"
            out, _ = getattr(forwards, function)(group, *parts, None, causal=causal)
            cases.compare(function, [unshard_sequence(out, **arguments)], [exact])
            profiled = getattr(forwards, f"{function}_profile")
            out, _, times = profiled(group, *parts, None, causal=causal, world_size=ranks)
            cases.compare(f"{function}_profile", [unshard_sequence(out, **arguments)], [exact])
            if not plausible(times):
                cases.failures.append(f"{function}_profile: {times}")
    return cases.failures, cases.count, cases.worst


def plausible(times):
    """Milliseconds, as published: at least a microsecond, at most a minute."""
    total, moved, worked = (times[name] for name in ("total_time", "comm_total_time", "comp_total_time"))
    return len(times) == 3 and 1e-3 < worked <= total < 6e4 and 0 <= moved <= total


def chunk_calls(ranks, causal):
    """The functions with lists of chunks: (name, cycles, arguments)."""
    kind = "causal" if causal else "full"
    name, cycles = f"hamilton_attention_forward_{kind}_flash_attn", gen_hamilton_circle(ranks)
    given = {"looping": [list(range(ranks))]}
    calls = [(name, cycles, {}), (name, given["looping"], given)]
    if ranks % 2 == 0:
        calls.append((f"{name}_two_nodes", gen_hamilton_circle_two_nodes(ranks), {}))
    return [(n + suffix, *rest) for n, *rest in calls for suffix in ("", "_profile")]


def check_any_length(rank):
    """What ``shard_sequence`` gives, of any length: odd parts, one token more than others, or none at all."""
    ranks, cases = dist.get_world_size(), Cases()
    lengths = {1, 2, ranks, 2 * ranks - 1, 2 * ranks + 1, 3 * ranks, *range(7 * ranks, 9 * ranks + 2)}
    for length, causal in product(sorted(lengths), (True, False)):
        q, k, v = tensors(length, (1, length, 4, 4), *[(1, length, 2, 4)] * 2)
        exact = single_device(*(x.double() for x in (q, k, v)), causal=causal)
        arguments = {"causal": causal, "schedule": "zigzag"}
        local, *kv = [shard_sequence(x, **arguments) for x in (q, k, v)]
        calls = [(name, [kv_chunks(x, len(cycles), causal=causal) for x in kv], more)
                 for name, cycles, more in chunk_calls(ranks, causal)]  # fmt: skip
        whole = [f"zigzag_ring_attention_forward_flash_attn{suffix}" for suffix in ("", "_profile")]
        for name, pieces, more in calls + [(name, kv, {"causal": causal}) for name in whole]:
            out, lse, *_ = getattr(forwards, name)(None, local, *pieces, None, **more)
            cases.compare(f"{name} of {length}", [unshard_sequence(out, **arguments)], [exact])
            if lse.shape != (1, 4, local.shape[1]):
                cases.failures.append(f"{name} of {length}: lse {lse.shape}")
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
        functions = FUNCTIONS
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
