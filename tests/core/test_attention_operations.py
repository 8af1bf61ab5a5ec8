"""Attention as operations: against plain softmax, on batches, and merged from parts."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from megatile.core.operations import OPERATIONS


def data(batch: int = 2) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    q = rng.standard_normal((batch, 1, 5, 4, 8)).astype("f4")
    kv = rng.standard_normal((batch, 2, 1, 7, 2, 8)).astype("f4")
    return q, kv


def plain(q: np.ndarray, kv: np.ndarray) -> np.ndarray:
    k, v = np.repeat(kv, 2, axis=-2)
    scores = np.einsum("brhd,bchd->bhrc", q, k)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("bhrc,bchd->brhd", weights / weights.sum(-1, keepdims=True), v)


def test_attention_equals_plain_softmax_on_every_element_of_a_batch():
    q, kv = data()
    together = OPERATIONS["attention"].meaning(q, kv)
    for i in range(2):
        np.testing.assert_allclose(together[i], OPERATIONS["attention"].meaning(q[i], kv[i]), rtol=1e-6)
        np.testing.assert_allclose(together[i][..., :-2], plain(q[i], kv[i]), rtol=1e-4, atol=1e-5)


def test_merging_parts_of_the_keys_gives_the_whole():
    q, kv = (x[0] for x in data())
    meaning = OPERATIONS["attention"].meaning
    parts = meaning(q, kv[:, :, :3]), meaning(q, kv[:, :, 3:])
    merged = OPERATIONS["attention_merge"].meaning(*parts)
    np.testing.assert_allclose(merged, meaning(q, kv), rtol=1e-5, atol=1e-6)


def merged(q: np.ndarray, kv: np.ndarray, merge: str = "attention_add") -> np.ndarray:
    """Key by key into a result, as a plan does; the first row does not see the keys of odd number."""
    result = np.tile(OPERATIONS["attention_start"].meaning(width=q.shape[-1] + 2), (*q.shape[:-1], 1))
    for i in range(kv.shape[-3]):
        upper = -(i % 2)
        key = kv[..., i : i + 1, :, :]
        if merge == "attention_add":
            result = OPERATIONS["attention_add"].meaning(q, key, result, upper=upper)
        else:
            part = OPERATIONS["attention"].meaning(q, key, upper=upper)
            result = OPERATIONS["attention_merge"].meaning(*([part, result] if i % 3 else [result, part]))
    return result


def in_double(q: np.ndarray, kv: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Outputs and log-sum-exps of what ``merged`` sees."""
    k, v = kv.astype("f8")
    scores = np.einsum("brhd,bchd->brhc", q.astype("f8"), k)
    scores[:, 0, :, 1::2] = -np.inf
    top = scores.max(-1, keepdims=True)
    powers = np.exp(scores - top)
    total = powers.sum(-1, keepdims=True)
    return np.einsum("brhc,bchd->brhd", powers / total, v), np.log(total) + top


@pytest.mark.parametrize("operation", ["attention_add", "attention_merge"])
@pytest.mark.parametrize("slope", [-6.0, 0.0, 6.0], ids=["falling", "level", "rising"])
def test_the_log_sum_exp_of_thousands_of_parts_is_rounded_once(slope, operation):
    """Whether a part outweighs all before it or is lost among them."""
    rng = np.random.default_rng(2)
    q = np.abs(rng.standard_normal((1, 3, 2, 4))).astype("f4")
    kv = rng.standard_normal((2, 1, 4000, 2, 4)).astype("f4")
    kv[0] += np.linspace(0, slope, 4000, dtype="f4")[:, None, None]
    found, (out, lse) = merged(q, kv, operation), in_double(q, kv)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found[..., :-2], out, rtol=0, atol=3e-6)
    np.testing.assert_allclose(found[..., -2:-1], lse, rtol=2**-23, atol=2**-22)
    whole = found[..., -2:-1].astype("f8") + found[..., -1:]
    np.testing.assert_allclose(whole, lse, rtol=0, atol=2e-7)
    assert (abs(found[..., -1:]) <= np.spacing(abs(found[..., -2:-1])) / 2).all()


@given(st.lists(st.floats(-80, 80, width=32) | st.just(float("-inf")), min_size=1, max_size=40))
def test_a_remainder_is_what_rounding_left(numbers):
    """Any log-sum-exps, in any order, with rows that see nothing between them."""
    parts = [np.array([1.0 if np.isfinite(x) else 0.0, x, 0.0], np.float32) for x in numbers]
    total = OPERATIONS["attention_start"].meaning(width=3)
    for part in parts:
        total = OPERATIONS["attention_merge"].meaning(total, part)
    wanted = np.logaddexp.reduce(np.array(numbers, dtype="f8"))
    if not np.isfinite(wanted):
        np.testing.assert_array_equal(total, OPERATIONS["attention_start"].meaning(width=3))
        return
    assert abs(float(total[1]) + float(total[2]) - wanted) <= 1e-6
    assert abs(float(total[2])) <= np.spacing(abs(total[1])) / 2
    assert abs(float(total[0]) - 1) <= 1e-6


@pytest.mark.parametrize("before", [-np.inf, 0.5])
def test_what_is_not_a_number_stays_visible(before):
    good, bad = np.array([0.0, before, 0.0], np.float32), np.array([np.nan, np.nan, 0.0], np.float32)
    for pair in ([good, bad], [bad, good]):
        assert np.isnan(OPERATIONS["attention_merge"].meaning(*pair)[:-1]).all()
