"""``attention/schedules/routes.py``: who holds what at each step, and what every exchange moves."""

from __future__ import annotations

import pytest

from megatile.attention.schedules import GatherRoutes, make_schedule
from megatile.core.errors import MegatileError

MANY = ("ring", "zigzag", "striped", "direct", "hamilton", "hamilton:2", "hamilton:3x3", "hamilton:4x2")


@pytest.mark.parametrize("name", [*MANY, "gathered"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 6, 8, 9])
def test_tables_of_all_ranks_are_those_of_each(name, ranks):
    try:
        routes = GatherRoutes(ranks) if name == "gathered" else make_schedule(name, ranks).routes
    except MegatileError:
        return
    for step in range(routes.exchanges + 1):
        sources, chunks = routes.all_held(step)
        for rank in range(ranks):
            held = routes.held(step, rank)
            assert list(zip(sources[rank].tolist(), chunks[rank].tolist(), strict=True)) == list(held)
    for exchange in range(routes.exchanges):
        table = [x.tolist() for x in routes.all_sends(exchange)]
        for rank in range(ranks):
            sent = [(peer, *held) for peer, held in routes.sends(exchange, rank)]
            assert list(zip(*(x[rank] for x in table), strict=True)) == sent
            came = [(t.peer, *t.held) for t in routes.receives(exchange, rank)]
            to_me = [
                (p, table[1][p][i], table[2][p][i])
                for p in range(ranks)
                for i in range(len(sent))
                if table[0][p][i] == rank
            ]
            assert sorted(came) == sorted(to_me)
