"""``collectives/rank_groups.py``: who talks to whom."""

import numpy as np
import pytest

from megatile.collectives.rank_groups import beyond, nearest_last
from megatile.core.expr import Symbol


def values(expression, n, **names):
    units = np.arange(n, dtype=np.int64)
    return np.broadcast_to(expression.evaluate({"unit": units, **names}), units.shape)


@pytest.mark.parametrize("nesting", [(8, 4), (8, 1), (3, 5), (12,), (2, 3, 4), (1, 6)])
def test_peers_are_met_once_and_from_both_sides(nesting):
    n = int(np.prod(nesting))
    step = Symbol("step")
    to = beyond(nesting, step + 1)
    source = beyond(nesting, step + 1, back=True)
    met = np.stack([values(to, n, step=k) for k in range(n - 1)])
    for k in range(n - 1):
        assert sorted(met[k]) == list(range(n)), "a permutation: nobody is addressed twice at once"
        back = values(source, n, step=k)
        assert (back[met[k]] == np.arange(n)).all()
    assert all(sorted({u, *met[:, u].tolist()}) == list(range(n)) for u in range(n))


def test_the_first_remote_peers_of_a_node_differ():
    to = beyond((8, 4), Symbol("step") + 1)
    first = {int(values(to, 32, step=7)[u]) for u in range(8)}
    assert first == set(range(8, 16))


@pytest.mark.parametrize("n", [2, 3, 4, 8, 12, 16])
def test_positions_far_apart_are_neighbours(n):
    core = 1 << (n.bit_length() - 1)
    places = values(nearest_last(n, core).me, n).tolist()
    assert sorted(places) == list(range(n))
    assert places[core:] == list(range(core, n))
    if core > 1:
        assert places[0] ^ places[1] == core // 2
