"""Attention as operations: against plain softmax, on batches, and merged from parts."""

import numpy as np

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
        np.testing.assert_allclose(together[i][..., :-1], plain(q[i], kv[i]), rtol=1e-4, atol=1e-5)


def test_merging_parts_of_the_keys_gives_the_whole():
    q, kv = (x[0] for x in data())
    meaning = OPERATIONS["attention"].meaning
    parts = meaning(q, kv[:, :, :3]), meaning(q, kv[:, :, 3:])
    merged = OPERATIONS["attention_merge"].meaning(*parts)
    np.testing.assert_allclose(merged, meaning(q, kv), rtol=1e-5, atol=1e-6)
