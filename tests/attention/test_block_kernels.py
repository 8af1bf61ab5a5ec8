"""Local kernels against the definition, the merge of parts, and flash-attn's windows through a stand-in."""

from __future__ import annotations

import sys
import types
from contextlib import contextmanager
from itertools import pairwise

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: the attention functions cannot run")

import torch.nn.functional as F  # noqa: E402
from hypothesis import (  # noqa: E402
    given,
    settings,
    strategies as st,
)

from megatile.attention import _update_out_and_lse, flash, hamilton_attention  # noqa: E402
from megatile.attention.backward import attention_backward  # noqa: E402
from megatile.attention.block_kernels import BackwardInputs, Blocked, CpuFlash, KernelOptions  # noqa: E402
from megatile.attention.causal import rectangles, squares  # noqa: E402
from megatile.attention.engine import AttentionEngine  # noqa: E402
from megatile.attention.flash import choose_kernel  # noqa: E402
from megatile.attention.merge import Accumulator  # noqa: E402
from megatile.attention.schedules import Mask, division_for, make_schedule  # noqa: E402
from megatile.attention.schedules.bands import Band, MaskTile  # noqa: E402
from megatile.core.placement import local_length  # noqa: E402

bands = st.builds(
    Band, st.one_of(st.none(), st.integers(-12, 12)), st.one_of(st.none(), st.integers(-12, 12))
).filter(lambda band: band.lower is None or band.upper is None or band.lower <= band.upper)


def definition(q, k, v, tile, slopes):
    """out, lse and what is visible, for a whole block."""
    groups = q.shape[2] // k.shape[2]
    k, v = k.repeat_interleave(groups, 2), v.repeat_interleave(groups, 2)
    i, j = torch.arange(q.shape[1])[:, None], torch.arange(k.shape[1])[None, :]
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * 0.3
    if slopes is not None:
        scores = scores - slopes[:, None, None] * (tile.stride * (j - i) + tile.offset).abs()
    seen = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool)
    if tile.band.lower is not None:
        seen &= j - i >= tile.band.lower
    if tile.band.upper is not None:
        seen &= j - i <= tile.band.upper
    scores = scores.masked_fill(~seen, float("-inf"))
    out = torch.einsum("bhij,bjhd->bihd", torch.softmax(scores, -1).nan_to_num(), v)
    return out, torch.logsumexp(scores, -1), seen


def run(kernel, q, k, v, d_out, tile, options):
    """A block through a kernel's parts: the sum of its parts, forward and backward."""
    result = Accumulator(q.shape[0], q.shape[1], q.shape[2], v.shape[-1], q.device)
    for part in kernel.divide(tile, q.shape[1], k.shape[1]):
        rows, columns = slice(*part.rows), slice(*part.columns)
        block = kernel.forward(q[:, rows], k[:, columns], v[:, columns], part.tile, options)
        result.add([part.rows], *block)
    out, lse = result.result(q.dtype)
    d_q, d_k, d_v = (torch.zeros_like(x) for x in (q, k, v))
    for part in kernel.divide(tile, q.shape[1], k.shape[1]):
        rows, columns = slice(*part.rows), slice(*part.columns)
        block = BackwardInputs(
            d_out[:, rows],
            q[:, rows],
            k[:, columns],
            v[:, columns],
            out[:, rows],
            lse[:, :, rows],
        )
        grads = kernel.backward(block, part.tile, options)
        for target, where, grad in zip((d_q, d_k, d_v), (rows, columns, columns), grads, strict=True):
            target[:, where] += grad
    return out, lse, d_q, d_k, d_v


def compare(kernel, tile, rows, columns, slopes=None, dim_v=4):
    torch.manual_seed(rows * 100 + columns)
    shapes = [(2, rows, 4, 4), (2, columns, 2, 4), (2, columns, 2, dim_v), (2, rows, 4, dim_v)]
    q, k, v, d_out = (torch.randn(shape) for shape in shapes)
    inputs = [x.double().requires_grad_() for x in (q, k, v)]
    out, lse, _ = definition(*inputs, tile, None if slopes is None else slopes.double())
    grads = torch.autograd.grad(out, inputs, d_out.double())
    got = run(kernel, q, k, v, d_out, tile, KernelOptions(0.3, slopes))
    for a, b in zip(got, (out, lse, *grads), strict=True):
        torch.testing.assert_close(
            a.double(), b.detach().nan_to_num(neginf=float("-inf")), rtol=1e-5, atol=2e-5
        )


@settings(max_examples=60, deadline=None)
@given(bands, st.integers(1, 12), st.integers(1, 12), st.sampled_from([CpuFlash, Blocked]))
def test_kernels_follow_the_definition(band, rows, columns, kernel):
    compare(kernel(), MaskTile(band), rows, columns)


@settings(max_examples=25, deadline=None)
@given(bands, st.integers(1, 9), st.integers(1, 9), st.integers(1, 3), st.integers(-9, 9))
def test_alibi_and_another_dim_of_v(band, rows, columns, stride, offset):
    compare(
        Blocked(), MaskTile(band, stride, offset), rows, columns, torch.tensor([0.5, 0.1, 0.2, 0.3]), dim_v=6
    )


@pytest.mark.parametrize("band", [Band(-300, 40), Band(None, 100), Band(-7, None), Band(-3, 600)])
def test_many_row_blocks(band):
    compare(CpuFlash(), MaskTile(band), 700, 500)


@pytest.mark.parametrize("rows", [192, 211, 256 + 64 + 1])
def test_a_causal_square_is_divided(rows):
    tile = MaskTile(Band(None, 0))
    compare(CpuFlash(), tile, rows, rows)
    seen = torch.zeros(rows, rows)
    for at in squares(rows):
        for x in at.of(torch.arange(rows), 0):
            seen[x[0] : x[-1] + 1, x[0] : x[-1] + 1] += torch.ones(len(x), len(x)).tril()
    for below in rectangles(rows):
        for x, y in zip(*(at.of(torch.arange(rows), 0) for at in (below.rows, below.columns)), strict=True):
            seen[x[0] : x[-1] + 1, y[0] : y[-1] + 1] += 1
    assert torch.equal(seen, torch.ones(rows, rows).tril())


def test_the_kernel_fits_the_case():
    x = torch.zeros(1, 1, 1, 4)
    assert isinstance(choose_kernel(x, x, KernelOptions(1.0)), CpuFlash)
    assert isinstance(choose_kernel(x, x, KernelOptions(1.0, torch.ones(1))), Blocked)
    assert isinstance(choose_kernel(x, torch.zeros(1, 1, 1, 6), KernelOptions(1.0)), Blocked)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 6), st.floats(0.1, 300.0))
def test_merging_parts_is_softmax_of_the_union(parts, spread):
    torch.manual_seed(parts)
    scores = torch.randn(1, 2, 3, 4 * parts, dtype=torch.float64) * spread  # [B, H, S, keys]
    values = torch.randn(1, 2, 4 * parts, 5, dtype=torch.float64)
    out = lse = None
    for part in range(parts):
        block = slice(4 * part, 4 * part + 4)
        block_out = torch.softmax(scores[..., block], -1) @ values[:, :, block]
        out, lse = _update_out_and_lse(
            out, lse, block_out.transpose(1, 2), torch.logsumexp(scores[..., block], -1)
        )
    want = (torch.softmax(scores, -1) @ values).transpose(1, 2)
    torch.testing.assert_close(out.double(), want, rtol=0, atol=2e-5)
    torch.testing.assert_close(
        lse[..., 0].transpose(1, 2).double(), torch.logsumexp(scores, -1), rtol=1e-6, atol=1e-4
    )


def test_merging_rows_that_see_nothing():
    nothing = torch.full((1, 1, 2), float("-inf"))
    out, lse = _update_out_and_lse(
        torch.zeros(1, 2, 1, 3), nothing[..., None].transpose(1, 2), torch.ones(1, 2, 1, 3), nothing
    )
    assert torch.equal(out, torch.zeros(1, 2, 1, 3))
    assert torch.isneginf(lse).all()
    out, lse = _update_out_and_lse(out, lse, torch.ones(1, 2, 1, 3), torch.zeros(1, 1, 2))
    assert torch.equal(out, torch.ones(1, 2, 1, 3))
    assert torch.equal(lse, torch.zeros(1, 2, 1, 1))


def stand_in():
    """A module with the two functions of flash-attn that are used, by their documented meaning."""

    def visible(q, k, left, right):
        corner = k.shape[1] - q.shape[1]
        distance = torch.arange(k.shape[1])[None, :] - torch.arange(q.shape[1])[:, None] - corner
        assert left >= -1
        assert right >= -1
        return Band(None if left < 0 else corner - left, None if right < 0 else corner + right), distance

    def _flash_attn_forward(
        q,
        k,
        v,
        dropout_p,
        softmax_scale,
        causal,
        window_size_left,
        window_size_right,
        softcap,
        alibi_slopes,
        return_softmax,
    ):
        band, _ = visible(q, k, window_size_left, 0 if causal else window_size_right)
        out, lse = Blocked().forward(q, k, v, MaskTile(band), KernelOptions(softmax_scale))
        return out, lse, None, None

    def _flash_attn_backward(
        dout, q, k, v, out, softmax_lse, dq, dk, dv, dropout_p, softmax_scale, causal, window_size_left,
        window_size_right, softcap, alibi_slopes, deterministic, rng_state=None,
    ):  # fmt: skip
        band, _ = visible(q, k, window_size_left, 0 if causal else window_size_right)
        given = BackwardInputs(dout, q, k, v, out, softmax_lse)
        grads = Blocked().backward(given, MaskTile(band), KernelOptions(softmax_scale))
        for target, grad in zip((dq, dk, dv), grads, strict=True):
            target.copy_(grad)

    def parts(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k):
        assert cu_seqlens_q.dtype == cu_seqlens_k.dtype == torch.int32
        both = [list(pairwise(x.tolist())) for x in (cu_seqlens_q, cu_seqlens_k)]
        assert [max(b - a for a, b in x) for x in both] == [max_seqlen_q, max_seqlen_k]
        return [(slice(*rows), slice(*columns)) for rows, columns in zip(*both, strict=True)]

    def _flash_attn_varlen_forward(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, causal,
        window_size_left, window_size_right, softcap, alibi_slopes, return_softmax,
    ):  # fmt: skip
        package.calls.append("many")
        given = dropout_p, softmax_scale, causal, window_size_left, window_size_right
        got = [
            _flash_attn_forward(q[None, r], k[None, c], v[None, c], *given, softcap, None, False)
            for r, c in parts(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
        ]
        return torch.cat([x[0][0] for x in got]), torch.cat([x[1][0] for x in got], 1), None, None

    def _flash_attn_varlen_backward(
        dout, q, k, v, out, softmax_lse, dq, dk, dv, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,
        dropout_p, softmax_scale, causal, window_size_left, window_size_right, softcap, alibi_slopes,
        deterministic, rng_state=None,
    ):  # fmt: skip
        package.calls.append("many")
        for r, c in parts(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k):
            _flash_attn_backward(
                dout[None, r], q[None, r], k[None, c], v[None, c], out[None, r], softmax_lse[None, :, r],
                dq[None, r], dk[None, c], dv[None, c], dropout_p, softmax_scale, causal, window_size_left,
                window_size_right, softcap, None, deterministic,
            )  # fmt: skip

    package = types.ModuleType("flash_attn")
    package.calls = []
    functions = (_flash_attn_forward, _flash_attn_backward)
    functions += (_flash_attn_varlen_forward, _flash_attn_varlen_backward)
    package.flash_attn_interface = types.SimpleNamespace(**{f.__name__: f for f in functions})
    return package


@contextmanager
def flash_attn():
    """The stand-in in the place of the package."""
    before = sys.modules.get("flash_attn")
    sys.modules["flash_attn"] = package = stand_in()
    flash._interface.cache_clear()
    try:
        yield package
    finally:
        flash._interface.cache_clear()
        sys.modules.pop("flash_attn") if before is None else sys.modules.update(flash_attn=before)


@settings(max_examples=60, deadline=None)
@given(bands, st.integers(1, 10), st.integers(1, 10))
def test_bands_as_windows_of_flash_attn(band, rows, columns):
    with flash_attn():
        compare(flash.FlashAttention(), MaskTile(band), rows, columns)


def test_one_rank_needs_no_process_group_and_equals_torch():
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 1024, 8, 64) for _ in range(3))
    inner = [x.transpose(1, 2) for x in (q, k, v)]
    with torch.no_grad():
        for causal in (False, True):
            want = F.scaled_dot_product_attention(*inner, is_causal=causal).transpose(1, 2)
            torch.testing.assert_close(hamilton_attention(q, k, v, causal=causal), want, rtol=0, atol=1e-5)


LENGTHS = [3, 0, 17, 1, 40, 8, 8, 25, 2, 33]


def pack(ranks, name="zigzag", causal=True, window=(-1, -1), rank=0, lengths=LENGTHS):
    schedule = make_schedule(name, ranks)
    pieces = schedule.layout(causal).pieces(lengths)
    division = division_for(schedule.routes, pieces, pieces, Mask.of(causal, window), lengths, lengths)
    return division, local_length(pieces[rank])


class Echo:
    """Stands in for the other ranks: what comes from them is what this one sent, or of that kind."""

    def exchange(self, sends, sizes, like, doing):
        generator = torch.Generator().manual_seed(sum(sizes.values()))
        received = {p: torch.randn(n, generator=generator).to(like.dtype) for p, n in sizes.items()}
        return types.SimpleNamespace(wait=lambda: received)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [(-1, -1), (4, 0)])
@pytest.mark.parametrize("name", ["zigzag", "hamilton", "direct"])
@pytest.mark.parametrize("kernel", [CpuFlash, Blocked, flash.FlashAttention])
def test_documents_that_share_kernel_calls_change_nothing(kernel, name, window, causal, monkeypatch):
    """Against the same engine with one call per document, all three kernels, forward and backward."""
    results = []
    for together in (True, False):
        division, tokens = pack(3, name, causal, window)
        q, d_out = torch.randn(2, 1, tokens, 4, 8, generator=torch.Generator().manual_seed(1))
        k, v = torch.randn(2, tokens, 1, 2, 8, generator=torch.Generator().manual_seed(2))
        engine = AttentionEngine(division, 0, Echo(), kernel(), KernelOptions(0.3))
        if not together:
            monkeypatch.setattr(kernel, "kind", lambda *_: None)
        with flash_attn():
            out, lse, last = engine.forward(q, k, v)
            given = BackwardInputs(d_out, q, k, v, out, lse)
            d_q, (d_k, d_v) = attention_backward(engine, given, last)
        results.append((out, lse, d_q, d_k, d_v))
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["zigzag", "ring"])
def test_a_step_of_a_pack_is_one_varlen_call(name):
    division, tokens = pack(3, name, causal=name == "zigzag")
    q, k, v = torch.randn(1, tokens, 2, 8), *torch.randn(2, tokens, 1, 2, 8)
    engine = AttentionEngine(division, 0, Echo(), flash.FlashAttention(), KernelOptions(0.3))
    with flash_attn() as package:
        out, lse, last = engine.forward(q, k, v)
        assert package.calls == ["many"] * 3
        attention_backward(engine, BackwardInputs(out, q, k, v, out, lse), last)
        assert package.calls == ["many"] * 6


def test_kernels_of_many_documents_do_not_grow_with_their_number(monkeypatch):
    """On CPUs one call for each size of document (a power of two), however many there are."""
    counts, forward = [], CpuFlash.forward
    monkeypatch.setattr(CpuFlash, "forward", lambda self, *x: counts.append(1) or forward(self, *x))
    found = []
    for documents in (100, 400):
        lengths = [20 + 7 * i % 40 for i in range(documents)]
        division, tokens = pack(2, lengths=lengths)
        q, (k, v) = torch.randn(1, tokens, 2, 8), torch.randn(2, tokens, 1, 2, 8)
        counts.clear()
        AttentionEngine(division, 0, Echo(), CpuFlash(), KernelOptions(0.3)).forward(q, k, v)
        found.append(len(counts))
    assert found[0] == found[1] < 16


@pytest.mark.parametrize("name", ["zigzag", "hamilton"])
def test_planning_a_pack_grows_with_its_documents_and_no_faster(name, monkeypatch):
    tiles, tile = [], Mask.tile
    monkeypatch.setattr(Mask, "tile", lambda self, *x: tiles.append(1) or tile(self, *x))
    found = []
    for documents in (200, 400):
        division, _ = pack(4, name, lengths=[30 + i % 50 for i in range(documents)])
        tiles.clear()
        for step in range(4):
            division.calls(step, 1)
        found.append(len(tiles))
    assert found[0] > 200
    assert found[1] < 2.2 * found[0]


@pytest.mark.parametrize("ranks", [3, 8])
def test_chunks_of_a_pack_are_equally_long(ranks):
    division, _ = pack(ranks, "hamilton", lengths=[5] * 100)
    for rank in range(ranks):
        lengths = [local_length(chunk) for chunk in division.chunks[rank]]
        assert max(lengths) - min(lengths) <= 1
        rows = division.chunk_rows(rank)
        held = [sum(end - begin for begin, end in runs) for runs in rows]
        assert held == [local_length(chunk) for chunk in division.chunks[rank]]
