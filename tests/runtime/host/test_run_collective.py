"""``runtime/host/run_collective.py``: what a group of ranks does once all have joined."""

from __future__ import annotations

import numpy as np
from tests.runtime.host.shared import SIZE, data_of, put, run


def test_uneven_and_empty_tensors(torch) -> None:
    def body(rank):
        x = put(torch, data_of(rank, 7))
        torch.distributed.all_reduce(x)
        none = put(torch, data_of(rank, 0))
        torch.distributed.all_reduce(none)
        return x.numpy(), none.numpy()

    right = np.sum([data_of(r, 7) for r in range(SIZE)], axis=0)
    for x, none in run(torch, body).values():
        np.testing.assert_array_equal(x, right)
        assert none.shape == (0,)


def test_t2_an_all_reduce_completes_after_every_rank_submitted(torch) -> None:
    log = []

    def body(rank):
        x = put(torch, np.ones(4))
        log.append(("submit", rank))
        torch.distributed.all_reduce(x)
        log.append(("done", rank))

    run(torch, body)
    assert [what for what, _ in log[:SIZE]] == ["submit"] * SIZE
    assert sorted(log[SIZE:]) == [("done", r) for r in range(SIZE)]
