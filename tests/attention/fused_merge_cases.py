"""The fused merge in Triton's interpreter; ``test_fused_merge.py`` runs this file in a process of its own."""

from __future__ import annotations

import os

import pytest

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("TRITON_INTERPRET=1 has to be set before Triton is imported", allow_module_level=True)

import torch
from hypothesis import given, settings, strategies as st
from tests.attention.attention_cases import environment, single_device, tensors
from tests.attention.attention_merges import (
    NOTHING,
    check_forms,
    exact_sum,
    logarithms,
    many_merges,
    strided,
)
from tests.attention.attention_processes import run_ranks

from megatile.attention import hamilton_attention
from megatile.attention.fused_merge import INTERPRETED, TILE, merge_rows, runs_on
from megatile.attention.merge import Accumulator, _merge_rows, merge_form

pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
LAYOUTS = ("as it is", "turned", "wider", "spread", "columns first")
LIMIT = 2e-6
"""Beside 1 and the scale of what is compared."""


def near(found, want, what=""):
    scale = max(1.0, want[want.isfinite()].abs().max().item() if want.isfinite().any() else 1.0)
    torch.testing.assert_close(
        found.double(), want.double(), rtol=0, atol=LIMIT * scale, msg=lambda text: f"{what}: {text}"
    )


def test_this_process_interprets():
    assert INTERPRETED
    assert runs_on(torch.device("cpu"))
    with environment(MEGATILE_ATTENTION_MERGE="fused"):
        assert merge_form("cpu") == "fused"
    assert merge_form("cpu") == "torch"


@settings(max_examples=40, deadline=None, database=None)
@given(
    batch=st.integers(1, 2),
    rows=st.integers(1, 40),
    heads=st.integers(1, 3),
    dim=st.sampled_from([1, 3, 16, 40, 96, 128, 192]),
    dtype=st.sampled_from(DTYPES),
    layouts=st.tuples(*[st.sampled_from(LAYOUTS)] * 2),
    spread=st.sampled_from([0.1, 3.0, 80.0]),
    empty=st.sampled_from([0.0, 0.4, 1.0]),
    seed=st.integers(0, 1000),
    data=st.data(),
)
def test_a_block_taken_in(batch, rows, heads, dim, dtype, layouts, spread, empty, seed, data):
    """A run in the middle of a state that merges made, by both forms and by f64."""
    generator = torch.Generator().manual_seed(seed)
    begin = data.draw(st.integers(0, rows - 1))
    end = data.draw(st.integers(begin + 1, rows))
    shape, lses = (batch, rows, heads, dim), (batch, heads, rows)
    blocks = [
        (torch.randn(shape, generator=generator), logarithms(lses, spread, empty, generator))
        for _ in range(2)
    ]
    state = [blocks[0][0].clone(), blocks[0][1].clone(), torch.zeros(lses)]
    state[0].masked_fill_((blocks[0][1] == NOTHING).transpose(1, 2)[..., None], 0.0)
    blocks[0] = state[0].clone(), blocks[0][1]
    _merge_rows(*blocks[1], *state)
    new = torch.randn((batch, end - begin, heads, dim), generator=generator).to(dtype)
    new_lse = logarithms((batch, heads, end - begin), spread, empty, generator)
    given_out = strided(new, layouts[0])
    given_lse = new_lse.transpose(1, 2).contiguous().transpose(1, 2) if seed % 2 else new_lse

    def taken_in(merge):
        out = strided(state[0].clone(), layouts[1])
        lse, rest = state[1].clone(), state[2].clone()
        merge(given_out, given_lse, out[:, begin:end], lse[:, :, begin:end], rest[:, :, begin:end])
        return out, lse, rest

    fused, plain = taken_in(merge_rows), taken_in(_merge_rows)
    near(fused[0], plain[0], "out")
    near(fused[1] + fused[2].double(), plain[1] + plain[2].double(), "lse")
    third = torch.zeros(shape), torch.full(lses, NOTHING)
    third[0][:, begin:end], third[1][:, :, begin:end] = new.float(), new_lse
    third[0].masked_fill_((third[1] == NOTHING).transpose(1, 2)[..., None], 0.0)
    want_out, want_lse = exact_sum([*blocks, third])
    near(fused[0], want_out, "out beside f64")
    near(fused[1] + fused[2].double(), want_lse, "lse beside f64")
    outside = torch.ones(rows, dtype=torch.bool)
    outside[begin:end] = False
    assert torch.equal(fused[0][:, outside], state[0][:, outside])
    assert torch.equal(fused[1][:, :, outside], state[1][:, :, outside])


@pytest.mark.parametrize("dim", [1, TILE, TILE + 1])
def test_very_narrow_and_very_wide_heads(dim):
    out, new = tensors(dim, (1, 5, 2, dim), (1, 5, 2, dim))
    lse, new_lse = tensors(1, (1, 2, 5), (1, 2, 5))
    want_out, want = exact_sum([(out, lse), (new, new_lse)])
    merge_rows(new, new_lse, out, lse, torch.zeros_like(lse))
    near(out, want_out)
    near(lse, want)


def test_rows_without_keys():
    """Nothing and nothing is nothing; nothing changes nothing, whatever stands in its rows."""
    out, lse = torch.tensor([0.0, 2.0, 0.0, 2.0]), torch.tensor([NOTHING, 1.0, NOTHING, 1.0])
    new, new_lse = (
        torch.tensor([torch.nan, torch.nan, 3.0, 4.0]),
        torch.tensor([NOTHING, NOTHING, -200.0, 1.0]),
    )
    out, new = (x[None, :, None, None].expand(1, 4, 1, 3).contiguous() for x in (out, new))
    lse, new_lse = lse[None, None], new_lse[None, None]
    rest = torch.zeros(1, 1, 4)
    merge_rows(new, new_lse, out, lse, rest)
    assert out[0, :, 0, 0].tolist() == [0.0, 2.0, 3.0, 3.0]
    assert lse.flatten()[:3].tolist() == [NOTHING, 1.0, -200.0]
    assert lse.flatten()[3].item() == pytest.approx(1 + torch.tensor(2.0).log().item())
    assert rest.isfinite().all()


def test_no_rows_heads_or_columns():
    for shape in ((1, 0, 2, 4), (0, 3, 2, 4), (1, 3, 0, 4), (1, 3, 2, 0)):
        batch, rows, heads, _ = shape
        lse = torch.zeros(batch, heads, rows)
        merge_rows(torch.zeros(shape), lse, torch.zeros(shape), lse.clone(), lse.clone())


def test_numbers_that_are_none_stay_visible():
    out, lse = torch.zeros(1, 2, 1, 4), torch.zeros(1, 1, 2)
    merge_rows(torch.ones(1, 2, 1, 4), torch.tensor([[[torch.nan, 0.0]]]), out, lse, torch.zeros(1, 1, 2))
    assert out[0, 0].isnan().all()
    assert lse[0, 0].isnan().tolist() == [True, False]


def test_many_merges_are_as_exact_as_one():
    """Hundreds, for the interpreter is slow; the torch form has thousands."""
    error, plain, out = many_merges(500, "fused")
    assert plain > 3e-6  # what a single f32 comes to
    assert error <= 2**-21 + 1e-7  # half of the last digit of 8 to 16, and a little
    assert out < 2e-6


def test_several_runs_of_rows_and_rows_that_come_late():
    runs = [(2, 5), (9, 10)]
    out, late = tensors(5, (1, 4, 2, 40), (1, 12, 2, 40))
    lse, late_lse = tensors(6, (1, 2, 4), (1, 2, 12))
    results = []
    for form in ("torch", "fused"):
        with environment(MEGATILE_ATTENTION_MERGE=form):
            result = Accumulator(1, 12, 2, 40, torch.device("cpu"))
        result.add(runs, out, lse)
        early = result.result(torch.float32)[0].clone()
        assert not early[:, [0, 1, 5, 11]].any()
        assert torch.equal(early[:, [2, 3, 4, 9]], out)
        result.add([(0, 12)], late, late_lse)
        results.append(result.result(torch.float32))
    for found, want in zip(results[1], results[0], strict=True):
        near(found, want)


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_process(dtype):
    """Keys that all rows see and a causal rest, windows and packed sequences are parts to be merged."""
    q, k, v = tensors(0, *[(1, n, h, 40) for n, h in ((33, 4), (50, 2), (50, 2))], dtype=dtype)
    for arguments in ({"causal": True}, {"causal": True, "window_size": (9, 0)}, {"window_size": (3, 7)}):
        results = []
        for form in ("torch", "fused"):
            with environment(MEGATILE_ATTENTION_MERGE=form):
                results.append(hamilton_attention(q, k, v, return_lse=True, **arguments))
        limit = LIMIT if dtype == torch.float32 else 4e-3
        for found, want in zip(results[1], results[0], strict=True):
            torch.testing.assert_close(found, want, rtol=0, atol=limit)
    want = single_device(*(x.double() for x in (q, k, v)), window=(3, 7))
    torch.testing.assert_close(results[1][0].double(), want, rtol=0, atol=1e-2)


def test_ranks():
    for rank, (answer, error) in enumerate(run_ranks(check_forms, 3, timeout=400.0)):
        assert error is None, f"rank {rank}:\n{error}"
        failures, count, _ = answer
        assert not failures, f"rank {rank}: " + "\n".join(failures)
        assert count == 18
