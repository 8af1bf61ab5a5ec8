"""Local kernels against the definition, the merge of parts, and flash-attn's windows through a stand-in."""

from __future__ import annotations

import sys
import types

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: the attention functions cannot run")

import torch.nn.functional as F  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from megatile.attention import _update_out_and_lse, flash, hamilton_attention  # noqa: E402
from megatile.attention.flash import choose_kernel  # noqa: E402
from megatile.attention.kernels import Block, Blocked, CpuFlash, KernelOptions  # noqa: E402
from megatile.attention.merge import Accumulator  # noqa: E402
from megatile.attention.schedules.bands import Band, Tile  # noqa: E402

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
        block = Block(
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
    compare(kernel(), Tile(band), rows, columns)


@settings(max_examples=25, deadline=None)
@given(bands, st.integers(1, 9), st.integers(1, 9), st.integers(1, 3), st.integers(-9, 9))
def test_alibi_and_another_dim_of_v(band, rows, columns, stride, offset):
    compare(Blocked(), Tile(band, stride, offset), rows, columns, torch.tensor([0.5, 0.1, 0.2, 0.3]), dim_v=6)


@pytest.mark.parametrize("band", [Band(-300, 40), Band(None, 100), Band(-7, None), Band(-3, 600)])
def test_many_row_blocks(band):
    compare(CpuFlash(), Tile(band), 700, 500)


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
        out, lse = Blocked().forward(q, k, v, Tile(band), KernelOptions(softmax_scale))
        return out, lse, None, None

    def _flash_attn_backward(
        dout, q, k, v, out, softmax_lse, dq, dk, dv, dropout_p, softmax_scale, causal, window_size_left,
        window_size_right, softcap, alibi_slopes, deterministic, rng_state=None,
    ):  # fmt: skip
        band, _ = visible(q, k, window_size_left, 0 if causal else window_size_right)
        given = Block(dout, q, k, v, out, softmax_lse)
        grads = Blocked().backward(given, Tile(band), KernelOptions(softmax_scale))
        for target, grad in zip((dq, dk, dv), grads, strict=True):
            target.copy_(grad)

    package = types.ModuleType("flash_attn")
    package.flash_attn_interface = types.SimpleNamespace(
        _flash_attn_forward=_flash_attn_forward, _flash_attn_backward=_flash_attn_backward
    )
    return package


@settings(max_examples=60, deadline=None)
@given(bands, st.integers(1, 10), st.integers(1, 10))
def test_bands_as_windows_of_flash_attn(band, rows, columns):
    before = sys.modules.get("flash_attn")
    sys.modules["flash_attn"] = stand_in()
    flash._interface.cache_clear()
    try:
        compare(flash.FlashAttention(), Tile(band), rows, columns)
    finally:
        flash._interface.cache_clear()
        sys.modules.pop("flash_attn") if before is None else sys.modules.update(flash_attn=before)


def test_one_rank_needs_no_process_group_and_equals_torch():
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 1024, 8, 64) for _ in range(3))
    inner = [x.transpose(1, 2) for x in (q, k, v)]
    with torch.no_grad():
        for causal in (False, True):
            want = F.scaled_dot_product_attention(*inner, is_causal=causal).transpose(1, 2)
            torch.testing.assert_close(hamilton_attention(q, k, v, causal=causal), want, rtol=0, atol=1e-5)
