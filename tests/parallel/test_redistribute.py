"""``parallel/redistribute.py``: from one placement of a tensor over a mesh to another."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from tests.parallel.hosts import on_ranks
from tests.parallel.shared import S0, S1, P, R, X

from megatile.parallel import Shard, distribute_tensor, init_device_mesh


@pytest.mark.parametrize("shape", [(4,), (2, 2)])
def test_every_redistribution(shape: tuple[int, ...]) -> None:
    states = list(product([R, S0, S1, P], repeat=len(shape)))
    targets = list(product([R, S0, S1], repeat=len(shape)))

    def body(rank: int, torch: Any) -> int:
        mesh = init_device_mesh("ahbm", shape)
        wrong = 0
        for before in states:
            for after in targets:
                y = distribute_tensor(X[:4, :8], mesh, before).redistribute(placements=after)
                again = distribute_tensor(X[:4, :8], mesh, after)
                wrong += not np.array_equal(y.to_local().numpy(), again.to_local().numpy())
        return wrong

    assert on_ranks(body) == [0] * 4


@pytest.mark.parametrize("dim", [0, 1])
def test_uneven_shards(dim: int) -> None:
    whole = np.arange(70, dtype=np.float32).reshape(7, 10)

    def body(rank: int, torch: Any) -> bool:
        mesh = init_device_mesh("ahbm", (4,))
        x = distribute_tensor(whole, mesh, [Shard(dim)])
        other = x.redistribute(placements=[Shard(1 - dim)])
        back = other.redistribute(placements=[Shard(dim)])
        return all(np.array_equal(y.full_tensor().numpy(), whole) for y in (x, other, back))

    assert on_ranks(body) == [True] * 4


def test_the_cheapest_path_is_explained() -> None:
    def body(rank: int, torch: Any) -> str:
        mesh = init_device_mesh("ahbm", (4,))
        x = distribute_tensor(np.zeros((256, 256), np.float32), mesh, [S0])
        path = x.explain([S1])
        assert [step.how for step in path.steps] == ["all_to_all"]
        assert x.explain([S0]).steps == ()
        return str(path)

    assert "Shard(dim=0" in on_ranks(body)[0]
