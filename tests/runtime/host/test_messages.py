"""``runtime/host/messages.py``: messages between two ranks."""

from __future__ import annotations

import numpy as np
import pytest
from tests.runtime.host.shared import SIZE, WHOLE, put, run


def test_messages(torch) -> None:
    dist = torch.distributed

    def body(rank):
        x, y = put(torch, WHOLE[rank]), torch.empty((8, 3), dtype="f32")
        ahead, behind = (rank + 1) % SIZE, (rank - 1) % SIZE
        works = dist.batch_isend_irecv([dist.P2POp(dist.isend, x, ahead), dist.P2POp(dist.irecv, y, behind)])
        for work in works:
            work.wait()
        z = torch.empty((8, 3), dtype="f32")
        if rank == 0:
            assert dist.recv(z) == 2
        elif rank == 2:
            dist.send(x, 0)
        return y.numpy(), z.numpy()

    found = run(torch, body)
    for rank, (y, _) in found.items():
        np.testing.assert_array_equal(y, WHOLE[(rank - 1) % SIZE])
    np.testing.assert_array_equal(found[0][1], WHOLE[2])


@pytest.mark.parametrize("given", [["one"], ["one", {"two": 2}], []])
def test_lists_of_any_length_are_sent(torch, given) -> None:
    def body(rank):
        found = [None] * len(given)
        if rank == 0:
            torch.distributed.send_object_list(given, dst=1)
        elif rank == 1:
            assert torch.distributed.recv_object_list(found, src=0) == 0
        return found

    assert run(torch, body)[1] == given
