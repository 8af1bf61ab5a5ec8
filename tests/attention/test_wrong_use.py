"""Mistakes of one process alone: one clear error each, never a traceback from inside; and torch's models."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

from megatile.attention.schedules import LayoutError, ScheduleError, make_schedule

torch = pytest.importorskip("torch", reason="torch is not installed: the attention functions cannot run")

import torch.nn.functional as F  # noqa: E402

from megatile.attention import (  # noqa: E402
    AttentionError,
    hamilton_attention,
    position_ids,
    sequence_parallel_attention,
    shard_sequence,
    unshard_sequence,
)
from megatile.attention.schedules import Layout  # noqa: E402


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (torch.tensor([[0, 6]]), "must be whole numbers"),
        (torch.empty(2, dtype=torch.int64, device="meta"), "cu_seqlens cannot be read"),
        ([None, 6], "must be whole numbers"),
        (torch.tensor([0.0, 5.5, 6.0]), "must be whole numbers"),
        ("06", "must be the boundaries of"),
        (3, "must be the boundaries of"),
        (([0, 6], 3), "must be the boundaries of"),
        (([0, 6], [0, 6], [0, 6]), "a pair for q and k, got 3"),
        ([[0, 6], [0, 6]], "must be whole numbers"),
        ([0], "begin with 0"),
        ((), "must be the boundaries of"),
        ([1, 6], "begin with 0"),
        ([0, 4, 3, 6], "not fall"),
        (([0, 6], [0, 2, 6]), "1 query but 2 key sequences"),
    ],
)
def test_boundaries_of_packed_sequences(given, message):
    x = torch.randn(6, 2, 4)
    with pytest.raises(AttentionError, match=message):
        hamilton_attention(x, x, x, cu_seqlens=given)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"machine": 3}, "machine is an HDA or its name, got int"),
        ({"machine": "dgx-h10"}, "did you mean 'dgx-h100'"),
        ({"softmax_scale": float("nan")}, "softmax_scale must be a finite number"),
        ({"softmax_scale": torch.ones(1)}, "softmax_scale must be a finite number, got Tensor"),
        ({"dropout_p": torch.tensor([0.0, 0.5])}, "dropout"),
        ({"layout": ["B"]}, "no tensor layout"),
        ({"layout": "BHSD"}, "did you mean 'BNSD'"),
        ({"layout": "bshd"}, "did you mean 'BSND'"),
        ({"softmax_scale": 10**400}, "softmax_scale must be a finite number, got int"),
        ({"causal": torch.ones(2)}, "causal is True or False, got Tensor"),
        ({"causal": "yes"}, "causal is True or False, got str"),
        ({"window_size": np.array([1, 1])}, "window_size is .left, right."),
        ({"alibi_slopes": torch.ones(2, requires_grad=True)}, "alibi_slopes have no gradient"),
        ({"schedule": "hamilton:0"}, "at least one ring"),
        ({"schedule": "ulysses:1+rnig"}, "did you mean 'ring'"),
    ],
)
def test_options(arguments, message):
    x = torch.randn(1, 6, 2, 4)
    with pytest.raises(ValueError, match=message):
        hamilton_attention(x, x, x, **arguments)


def test_any_real_number_is_a_scale():
    x = torch.randn(1, 6, 2, 4)
    expected = hamilton_attention(x, x, x, softmax_scale=0.5)
    assert torch.equal(hamilton_attention(x, x, x, softmax_scale=np.float32(0.5)), expected)


@pytest.mark.parametrize("scale", [-0.3, 0.0])
@pytest.mark.parametrize("return_lse", [False, True])
@pytest.mark.parametrize("mask", [{"causal": True}, {"window_size": (2, 0)}, {}])
def test_scales_that_turn_scores_round_or_make_them_equal(scale, return_lse, mask):
    x = torch.randn(3, 1, 9, 2, 4, generator=torch.Generator().manual_seed(1))
    q, k, v = (y.clone().requires_grad_() for y in x)
    out = hamilton_attention(q, k, v, softmax_scale=scale, return_lse=return_lse, **mask)
    (out[0] if return_lse else out).square().sum().backward()
    turned, same = (y.clone().requires_grad_() for y in (x[0] * scale, x[1]))
    values = x[2].clone().requires_grad_()
    expected = hamilton_attention(turned, same, values, softmax_scale=1.0, **mask)
    expected.square().sum().backward()
    torch.testing.assert_close(out[0] if return_lse else out, expected)
    torch.testing.assert_close(q.grad, turned.grad * scale)
    torch.testing.assert_close(k.grad, same.grad)
    torch.testing.assert_close(v.grad, values.grad)


def test_whole_numbers_of_any_kind_are_a_window():
    x = torch.randn(1, 6, 2, 4)
    expected = hamilton_attention(x, x, x, window_size=(1, 2))
    assert torch.equal(hamilton_attention(x, x, x, window_size=list(np.array([1, 2]))), expected)


@pytest.mark.parametrize("kind", ["sparse", "mkldnn"])
def test_tensors_that_are_not_dense(kind):
    x = torch.randn(1, 6, 2, 4)
    other = x.to_sparse() if kind == "sparse" else x.to_mkldnn()
    with pytest.raises(AttentionError, match=f"must be dense tensors, got .*{kind}"):
        hamilton_attention(other, other, other)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_names_of_schedules_are_read_to_their_end(ranks):
    with pytest.raises(ScheduleError, match="did you mean 'ring'"):
        make_schedule(f"ulysses:{ranks}+rnig", ranks)
    with pytest.raises(ScheduleError, match="divides the heads twice"):
        make_schedule(f"ulysses:{ranks}+ulysses", ranks)
    with pytest.raises(ScheduleError, match="at least one ring"):
        make_schedule("hamilton:0", ranks)
    assert make_schedule(f"ulysses:{ranks}+ring", ranks).name == "ulysses"


def test_shards_and_positions():
    x = torch.randn(1, 6, 2, 4)
    here = {"rank": 0, "ranks": 2}
    with pytest.raises(AttentionError, match="no dimension 7, it has 4"):
        shard_sequence(x, dim=7, **here)
    with pytest.raises(AttentionError, match="must be a tensor, got ndarray"):
        shard_sequence(x.numpy(), **here)
    with pytest.raises(AttentionError, match="must be a tensor, got list"):
        unshard_sequence([1.0])
    for length in (-3, "3", 2.5, None):
        with pytest.raises(AttentionError, match="length must be a whole number"):
            position_ids(length, **here)
    with pytest.raises(AttentionError, match="'ring' is for 4 ranks, there are 2"):
        position_ids(8, schedule=make_schedule("ring", 4), **here)
    with pytest.raises(AttentionError, match="for 4 ranks, there are 2"):
        position_ids(8, layout=Layout("zigzag", 4), **here)
    with pytest.raises(LayoutError, match="'cycles' needs the cycles of a schedule"):
        position_ids(8, layout="cycles", schedule="direct", **here)
    with pytest.raises(AttentionError, match="schedule is a name or a Schedule, got int"):
        position_ids(8, schedule=3, **here)
    with pytest.raises(AttentionError, match="no rank 0 among 0"):
        shard_sequence(x, rank=0, ranks=0)


@pytest.mark.parametrize("layout", ["contiguous", "zigzag", "striped", "cycles"])
@pytest.mark.parametrize("schedule", ["hamilton", "ring", "ulysses:2+hamilton"])
def test_every_layout_divides_every_length(layout, schedule):
    """Each token stands once, in the place its position says; also when there are fewer tokens than ranks."""
    for ranks in (2, 4, 6):
        for length in range(14):
            whole = torch.arange(length)[:, None] * 10
            place = {"layout": layout, "schedule": schedule, "ranks": ranks}
            if layout == "cycles" and not make_schedule(schedule, ranks).routes.chunks > 1 and ranks < 3:
                continue
            try:
                ids = [position_ids(length, rank=r, **place) for r in range(ranks)]
            except LayoutError:
                assert layout == "cycles"
                assert make_schedule(schedule, ranks).routes.ranks == 1
                continue
            parts = [shard_sequence(whole, dim=0, rank=r, **place) for r in range(ranks)]
            assert sorted(torch.cat(ids).tolist()) == list(range(length))
            for part, own in zip(parts, ids, strict=True):
                assert part.flatten().tolist() == [10 * i for i in own.tolist()]


def heads_first(length=5, heads=4):
    return torch.randn(1, heads, length, 8)


def test_torchs_attention_says_what_cannot_be_divided():
    q = heads_first()
    with sequence_parallel_attention():
        for arguments, options, message in (
            ((q, q, q, torch.ones(5, 5)), {}, "attn_mask cannot be divided"),
            ((q, q, q), {"dropout_p": 0.1}, "dropout"),
            ((q[0], q[0], q[0]), {}, "four dimensions"),
            ((q, q[:, :2], q[:, :2]), {}, "enable_gqa=True"),
            ((q, q[:, :, :3], q[:, :, :3]), {"is_causal": True}, "ambiguous"),
            (([1], q, q), {}, "must be tensors, got list"),
            ((q.int(), q.int(), q.int()), {}, "int32"),
        ):
            with pytest.raises(AttentionError, match=message):
                F.scaled_dot_product_attention(*arguments, **options)
        got = F.scaled_dot_product_attention(q, q[:, :2], q[:, :2], is_causal=True, enable_gqa=True)
    want = F.scaled_dot_product_attention(q, q[:, :2], q[:, :2], is_causal=True, enable_gqa=True)
    torch.testing.assert_close(got, want)


def test_contexts_may_be_nested_and_end_by_exceptions():
    before, q = F.scaled_dot_product_attention, heads_first()
    with sequence_parallel_attention():
        outer = F.scaled_dot_product_attention
        with contextlib.suppress(KeyError), sequence_parallel_attention(schedule="ring"):
            assert F.scaled_dot_product_attention is not outer
            F.scaled_dot_product_attention(q, q, q)
            raise KeyError
        assert F.scaled_dot_product_attention is outer
    assert F.scaled_dot_product_attention is before


@pytest.mark.parametrize("training", [False, True])
def test_torchs_own_layers_are_divided_too(training):
    """In evaluation torch would take a short cut around ``scaled_dot_product_attention``."""
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).train(training)
    x, calls = torch.randn(1, 5, 8), []
    before = torch.backends.mha.get_fastpath_enabled()
    with torch.no_grad():
        want = layer(x)
        with sequence_parallel_attention():
            divided = F.scaled_dot_product_attention
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(
                    F, "scaled_dot_product_attention", lambda *a, **k: calls.append(1) or divided(*a, **k)
                )
                got = layer(x)
    assert calls == [1]
    assert torch.backends.mha.get_fastpath_enabled() == before
    torch.testing.assert_close(got, want)
