"""What ranks do in the tests of names that callers have: llama3, yunchang, torch's context."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.distributed as dist
import torch.nn.functional as F
from tests.attention.attention_cases import Cases, single_device, tensors, with_gradients
from torch.distributed.device_mesh import DeviceMesh

from megatile.attention import AttentionError
from megatile.compat import ring_flash_attn, torch_context_parallel, yunchang
from megatile.compat.ring_flash_attn.utils import update_out_and_lse


def check_adopted(rank):
    cases = Cases()
    _check_llama3(cases, rank)
    _check_yunchang(cases, rank)
    _check_torch(cases)
    _check_merge(cases)
    return cases.failures, cases.count, cases.worst


def exact_of(q, k, v, d_out, causal):
    inputs = [x.double() for x in (q, k, v)]
    return with_gradients(lambda *x: single_device(*x, causal=causal), inputs, d_out.double())


def _check_llama3(cases, rank):
    ranks = dist.get_world_size()
    ends = torch.tensor([0, 5, 6, 40, 12 * ranks], dtype=torch.int32)
    q, k, v, d_out = tensors(20, *[(12 * ranks, 2, 8)] * 4)
    for causal in (True, False):
        parts = [
            exact_of(*(x[None, a:b] for x in (q, k, v, d_out)), causal) for a, b in pairwise(ends.tolist())
        ]
        want = [torch.cat([part[i][0] for part in parts]).tensor_split(ranks)[rank] for i in range(4)]
        prepare = ring_flash_attn.llama3_flash_attn_prepare_cu_seqlens
        *local, where = prepare(ends, causal, rank, ranks)
        own = [x.tensor_split(ranks)[rank].clone() for x in (q, k, v)]
        function = ring_flash_attn.llama3_flash_attn_varlen_func
        more = {"heads_k_stride": 1, "local_k_slice": where, "causal": causal}
        got = with_gradients(
            lambda *x, local=local, more=more, f=function: f(*x, *local, **more),
            own,
            d_out.tensor_split(ranks)[rank],
        )
        cases.compare(f"llama3 causal={causal}", got, want)
        other = [local[0] + 1, *local[1:]]
        told = "must come from llama3_flash_attn_prepare_cu_seqlens"
        cases.refuses("unprepared", AttentionError, told, function, *own, *other, **more)


def _check_yunchang(cases, rank):
    ranks = dist.get_world_size()
    q, k, v, d_out = tensors(21, *[(2, 8 * ranks, 4, 8)] * 4)
    for low, ring, causal in ((True, "zigzag", True), (False, "strip", True), (True, "basic", False)):
        degrees = 2, ranks // 2
        yunchang.set_seq_parallel_pg(*degrees, rank, ranks, use_ulysses_low=low)
        if low:
            cut = yunchang.EXTRACT_FUNC_DICT[ring]
            place = {"rank": rank, "world_size": ranks, "rd": degrees[1], "ud": degrees[0]}
            mine = [cut(x, **place) for x in (q, k, v, d_out)]
        else:  # rings of neighbours: the parts follow the groups, not the rank
            mine = [
                yunchang.stripe_extract_local(x, rank, ranks, degrees[1], degrees[0])
                for x in (q, k, v, d_out)
            ]
            cut, place = yunchang.stripe_extract_local, {"rank": rank, "world_size": ranks, "rd": 2, "ud": 2}
        want = [cut(x, **place) for x in exact_of(q, k, v, d_out, causal)]
        layer = yunchang.LongContextAttention(ring_impl_type=ring)
        got = with_gradients(lambda *x, c=causal, f=layer: f(*x, causal=c), mine[:3], mine[3])
        cases.compare(f"yunchang {ring} low={low}", got, want)
        packed = yunchang.LongContextAttentionQKVPacked(ring_impl_type=ring)
        cases.compare("packed", [packed(torch.stack(mine[:3], 2), causal=causal)], want[:1])
    layer, told = yunchang.LongContextAttention(), "3 heads cannot be divided over the 2"
    cases.refuses("heads", AttentionError, told, layer, *(x[:, :, :3] for x in mine[:3]))
    mine = [x.chunk(ranks, 1)[rank].clone() for x in (q, k, v)]
    out = yunchang.UlyssesAttention()(*mine, causal=True)
    cases.compare("ulysses", [out], [exact_of(q, k, v, d_out, True)[0].chunk(ranks, 1)[rank]])


def _check_torch(cases):
    mesh = DeviceMesh("cpu", torch.arange(dist.get_world_size()))
    q, k, v = (x.transpose(1, 2).contiguous() for x in tensors(22, *[(1, 4 * mesh.size() + 3, 2, 8)] * 3))
    before, kept = q.clone(), torch.zeros(1)
    for causal, rotation in ((True, "alltoall"), (True, "allgather"), (False, "alltoall")):
        torch_context_parallel.set_rotate_method(rotation)
        exact = single_device(*(x.transpose(1, 2).double() for x in (q, k, v)), causal=causal).transpose(1, 2)
        buffers = {"buffers": [q, k, v], "buffer_seq_dims": [2, 2, 2]}
        with torch_context_parallel.context_parallel(mesh, **buffers):
            out = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        (whole,) = torch_context_parallel.context_parallel_unshard(mesh, [out], [2])
        cases.compare(f"context_parallel {rotation}", [whole, q], [exact, before.double()])
    cases.refuses(
        "rotation", NotImplementedError, "no rotation", torch_context_parallel.set_rotate_method, "x"
    )
    context = torch_context_parallel.context_parallel(
        mesh, buffers=[q], buffer_seq_dims=[2], no_restore_buffers={kept}
    )
    cases.refuses("not a buffer", ValueError, "must be some of", context.__enter__)


def _check_merge(cases):
    """A block into some rows: as the whole, rows without it stay."""
    out, block = tensors(23, (1, 6, 2, 4), (1, 3, 2, 4))
    lse, block_lse = tensors(24, (1, 2, 6), (1, 2, 3))
    first = update_out_and_lse(None, None, out, lse)
    rows = slice(None), slice(3, None)
    got = update_out_and_lse(*(x.clone() for x in first), block, block_lse, slice_=rows)
    want = update_out_and_lse(*(x[rows] for x in first), block, block_lse)
    for a, b, c in zip(got, want, first, strict=True):
        cases.compare("merged rows", [a], [torch.cat([c[:, :3], b], 1).double()])
    cases.refuses(
        "first", RuntimeError, "takes no slice_", update_out_and_lse, None, None, block, block_lse, rows
    )
