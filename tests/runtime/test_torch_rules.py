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


def data(*shape, seed=0):
    return np.random.default_rng(seed).integers(-7, 8, shape) * 0.5


X, Y, POSITIVE = data(3, 4), data(3, 4, seed=1), np.abs(data(3, 4)) + 0.5
OF_FLOATS = (
    "sin", "cos", "tanh", "erf", "sigmoid", "exp", "exp2", "softmax", "pow", "log", "log2", "sqrt", "rsqrt",
)  # fmt: skip
ONE = ("neg", "abs", "floor", "ceil", "copy", "cast", "transpose", *OF_FLOATS[:8])
TWO = ("add", "sub", "mul", "div", "maximum", "minimum", "lt", "le", "gt", "ge", "eq", "ne")
REDUCTIONS = ("sum", "prod", "max", "min", "absmax", "abssum")
TURNS = [(a, b) for a in (False, True) for b in (False, True)]
TABLE = [
    *((name, [X], {}) for name in ONE),
    *((name, [POSITIVE], {}) for name in OF_FLOATS[9:]),
    *((name, [X, Y], {}) for name in TWO),
    ("div", [X, np.zeros_like(Y)], {}), ("pow", [POSITIVE, Y], {}), ("fma", [X, Y, POSITIVE], {}),
    ("clamp", [X, np.minimum(Y, POSITIVE), np.maximum(Y, POSITIVE)], {}), ("where", [X > 0, X, Y], {}),
    *((name, [X], {"axis": axis, "keepdims": kept})
      for name in REDUCTIONS for axis, kept in ((0, False), (1, True), (-1, False))),
    *(("cumsum", [X], {"axis": axis, "reverse": way}) for axis in (0, -1) for way in (False, True)),
    ("softmax", [X], {"axis": 0}), ("fill", [], {"value": 3}), ("iota", [], {"length": 5, "start": 2}),
    *(("gemm", [X.T if a else X, Y if b else Y.T], {"transpose_a": a, "transpose_b": b}) for a, b in TURNS),
    *(("gemm_add", [X.T if a else X, Y if b else Y.T, data(3, 3)], {"transpose_a": a, "transpose_b": b})
      for a, b in TURNS),
]  # fmt: skip


@pytest.mark.parametrize("kind", ["f64", "f32", "f16", "bf16", "f8e5m2", "i64", "i32", "i8"])
def test_every_rule_says_what_numpy_says(kind):
    """Each dtype, with the type of the result and, for division by zero, infinities and NaN."""
    from megatile.core.dtypes import numpy_dtype
    from megatile.runtime.torch_rules import DTYPES, RULES

    for name, operands, attributes in TABLE:
        if kind[0] == "i" and name in OF_FLOATS:
            continue
        arrays = [x if x.dtype == bool else x.astype(numpy_dtype(kind)) for x in operands]
        tensors = [torch.from_numpy(x.astype(np.float32 if x.dtype != bool else bool)) for x in arrays]
        tensors = [t if t.dtype == torch.bool else t.to(DTYPES[kind]) for t in tensors]
        with np.errstate(all="ignore"):
            wanted = np.asarray(OPERATIONS[name].meaning(*arrays, **attributes)).astype(np.float64)
        found = RULES[name](*tensors, **attributes)
        rough = {"f8e5m2": 0.3, "bf16": 1e-2, "f16": 2e-3}.get(kind, 1e-5)
        np.testing.assert_allclose(
            found.double().numpy(), wanted, rtol=rough, atol=rough, err_msg=f"{name} {attributes}"
        )


@pytest.mark.parametrize(
    ("kind", "values", "held"),
    [
        ("i8", [1.9, -1.9, 300.0, -300.0, float("nan")], [1, -1, 127, -128, 0]),
        ("u8", [1.9, -1.9, 300.0, 255.4], [1, 0, 255, 255]),
        ("i32", [2.0**40, -(2.0**40), 7.5], [2**31 - 1, -(2**31), 7]),
        ("bool", [0.0, 0.5, -2.0], [0, 1, 1]),
        ("f16", [1e9, 1.0 + 2**-11, 2**-30], [float("inf"), 1.0, 0.0]),
    ],
)
def test_results_are_rounded_and_clipped_once(kind, values, held):
    from megatile.runtime.torch_rules import DTYPES, assign

    target = torch.zeros(len(values), dtype=DTYPES[kind])
    assign(target, torch.tensor(values, dtype=torch.float64))
    assert target.tolist() == held


def test_shapes_of_operands_fit_as_in_plans():
    from megatile.runtime.torch_rules import compute

    row, matrix, out = torch.arange(3.0), torch.ones(2, 3), torch.zeros(2, 3)
    compute("add", out, [matrix, row], {})
    assert out.tolist() == [[1, 2, 3]] * 2
    compute("add", out, [matrix, torch.tensor([[5.0], [6.0]])], {})
    assert out.tolist() == [[6] * 3, [7] * 3]
    flat = torch.zeros(6)
    compute("copy", flat, [matrix], {})
    assert flat.tolist() == [1] * 6
    product = torch.zeros(1, 2, 2)
    compute("gemm", product, [matrix.reshape(1, 2, 3), torch.ones(3, 2)], {})
    assert product.tolist() == [[[3, 3], [3, 3]]]
    compute("gemm_add", product, [matrix.reshape(1, 2, 3), torch.ones(3, 2), product.clone()], {})
    assert product.tolist() == [[[6, 6], [6, 6]]]


@pytest.mark.parametrize(("lower", "upper"), [(-99, 99), (-2, 0), (-1, 1), (0, 99), (-3, 99), (-99, 2)])
def test_gradients_heed_the_remainder_of_the_log_sum(lower, upper):
    rng = np.random.default_rng(5)
    q, d_out = rng.normal(size=(2, 1, 4, 4, 3)).astype("f4")
    kv = rng.normal(size=(2, 1, 4, 2, 3)).astype("f4")
    band = {"scale": 0.7, "lower": lower, "upper": upper}
    result = OPERATIONS["attention"].meaning(q, kv, **band)
    coarse = np.round(result[..., -2] * 4) / 4
    with np.errstate(invalid="ignore"):
        rest = np.nan_to_num(result[..., -2] - coarse)
    result[..., -2], result[..., -1] = coarse, result[..., -1] + rest
    for name in ("attention_grad_q", "attention_grad_kv"):
        ours, theirs = both(name, q, kv, result, d_out, **band)
        np.testing.assert_allclose(theirs, ours, rtol=0, atol=5e-6)


def test_shares_of_merged_blocks():
    """With the remainder of the block's log-sum-exp and without, where one of them or neither saw a key."""
    from megatile.runtime.torch_rules import merge_log_sums

    empty = float("-inf")
    lse = torch.tensor([1.0, 2.0, empty, 3.0, empty, 1.5])
    rest = torch.tensor([5e-8, -1e-7, 0.0, 1.1e-7, 0.0, 6e-8])
    block = torch.tensor([2.0, 1.0, 0.5, empty, empty, 1.5])
    for block_rest in (None, torch.tensor([1e-7, 5e-8, 3e-8, 0.0, 0.0, -6e-8])):
        new, more = lse.clone(), rest.clone()
        share = merge_log_sums(new, more, block, block_rest)
        a, b = lse.double() + rest, block.double() + (0 if block_rest is None else block_rest)
        both = torch.logaddexp(a, b)
        seen = both.isfinite()
        torch.testing.assert_close((new.double() + more)[seen], both[seen], rtol=0, atol=4e-8)
        assert (new[~seen] == empty).all()
        torch.testing.assert_close(share.double(), torch.exp(b - both).nan_to_num(0.0), rtol=1e-6, atol=1e-7)
