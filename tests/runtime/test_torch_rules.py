"""Torch rules of attention say what the NumPy meanings say, to the remainder of a log-sum-exp."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from megatile.core.operations import OPERATIONS

torch = pytest.importorskip("torch")


def both(name, *operands, **attributes):
    """The results of an operation by NumPy and by torch."""
    from megatile.runtime.torch_rules import RULES

    ours = OPERATIONS[name].meaning(*operands, **attributes)
    theirs = RULES[name](*(torch.from_numpy(np.ascontiguousarray(x)) for x in operands), **attributes)
    assert theirs.dtype == torch.float32
    return ours, theirs.numpy()


def whole(result):
    """Outputs and log-sum-exps with their remainders, in f64."""
    result = np.asarray(result, "f8")
    return np.concatenate([result[..., :-2], result[..., -2:-1] + result[..., -1:]], axis=-1)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 5), st.integers(0, 6), st.integers(-4, 4), st.integers(-4, 4), st.integers(0, 99))
def test_rules_of_attention_are_its_meanings(rows, columns, lower, upper, seed):
    """Any band: also rows that see nothing, and blocks of no rows or columns."""
    rng = np.random.default_rng(seed)
    q, d_out = rng.normal(size=(2, 1, rows, 4, 3)).astype("f4")
    kv, more = rng.normal(size=(2, 2, 1, columns, 2, 3)).astype("f4")
    band = {"scale": 0.7, "lower": lower, "upper": upper}
    old, _ = both("attention", q, more, **band)
    for operands in ([q, kv], [q, kv, old]):
        ours, theirs = both("attention" + "_add" * (len(operands) > 2), *operands, **band)
        np.testing.assert_allclose(whole(theirs), whole(ours), rtol=0, atol=1e-6)
    result = ours
    for name, target in (("attention_grad_q", q), ("attention_grad_kv", kv)):
        for suffix in ("", "_add"):
            ours, theirs = both(name + suffix, q, kv, result, d_out, *([target] if suffix else []), **band)
            np.testing.assert_allclose(theirs, ours, rtol=0, atol=5e-6)


def test_thousands_of_merges_leave_the_same_log_sum_exp():
    rng = np.random.default_rng(3)
    parts = rng.normal(size=(4000, 6, 5)).astype("f4")
    parts[..., -1] = 0
    parts[::7, 0, -2] = -np.inf
    parts[:, 1, -2] = -np.inf
    from megatile.runtime.torch_rules import RULES

    start, torch_start = both("attention_start", width=5)
    np.testing.assert_array_equal(torch_start, start)
    ours, theirs = np.tile(start, (6, 1)), torch.from_numpy(np.tile(start, (6, 1)))
    for part in parts:
        ours = OPERATIONS["attention_merge"].meaning(ours, part)
        theirs = RULES["attention_merge"](theirs, torch.from_numpy(part))
    wanted = np.logaddexp.reduce(parts[..., -2].astype("f8"))
    for found in (ours, theirs.numpy()):
        np.testing.assert_allclose(whole(found)[:, -1], wanted, rtol=0, atol=2e-7)
    np.testing.assert_allclose(theirs.numpy()[:, :3], ours[:, :3], rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", ["f32", "bf16", "i32"])
@pytest.mark.parametrize(
    ("name", "operands", "attributes"),
    [
        ("nest", 1, {"code": "w[i, j] = (a0[i, j] + a0[i, j] for i, j in (3, 4))"}),
        ("pad", 1, {"at0": 1, "at1": 0, "n0": 4, "n1": 5}),
        ("sum_onto", 2, {"axis": 1}),
        ("max_onto", 2, {"axis": 1}),
    ],
)
def test_what_torch_has_no_form_of_is_numpys(name, operands, attributes, kind):
    from megatile.core.dtypes import numpy_dtype
    from megatile.runtime.torch_rules import DTYPES, RULES

    x, old = torch.arange(12).reshape(3, 4).to(DTYPES[kind]), torch.arange(3).to(DTYPES[kind])
    arrays = [t.float().numpy().astype(numpy_dtype(kind)) for t in (x, old)]
    expected = OPERATIONS[name].meaning(*arrays[:operands], **attributes)
    got = RULES[name](*(x, old)[:operands], **attributes)
    np.testing.assert_array_equal(got.float().numpy(), np.asarray(expected, np.float32))
