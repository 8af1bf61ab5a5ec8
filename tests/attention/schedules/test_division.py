"""``attention/schedules/division.py``: a schedule applied to lengths."""

from __future__ import annotations

from megatile.attention.schedules import Mask, division_for, make_schedule


def test_hamilton_loads_every_link_equally_and_ring_one():
    for ranks in (2, 3, 4, 5, 6, 8, 16):
        length = ranks * (ranks - 1) * 2
        loads = {}
        for name in ("hamilton", "ring", "direct"):
            schedule = make_schedule(name, ranks)
            pieces = schedule.layout(False).pieces([length])
            division = division_for(schedule.routes, pieces, pieces, Mask(), [length], [length])
            loads[name] = [division.link_tokens(e) for e in range(ranks - 1)]
        share = length // ranks
        for name in ("hamilton", "direct"):
            for load in loads[name]:
                assert len(load) == ranks * (ranks - 1)
                assert set(load.values()) == {share // (ranks - 1)}
        assert all(set(load.values()) == {share} and len(load) == ranks for load in loads["ring"])


def test_causal_work_is_balanced_and_needs_two_kernels():
    ranks, length = 8, 8 * 2 * 7 * 3
    schedule = make_schedule("hamilton", ranks)
    pieces = schedule.layout(True).pieces([length])
    division = division_for(schedule.routes, pieces, pieces, Mask.of(True), [length], [length])
    for step in range(1, ranks):
        work = {division.pairs(step, rank) for rank in range(ranks)}
        assert work == {(length // ranks) ** 2 // 2}
        for rank in range(ranks):
            assert len(division.calls(step, rank)) in (1, 2)
    assert all(len(division.calls(0, rank)) == 1 for rank in range(ranks))
    total = sum(division.pairs(step, rank) for step in range(ranks) for rank in range(ranks))
    assert total == length * (length + 1) // 2
    assert division.pairs(3, 0) == (length // ranks) ** 2 // 2
    assert set(division.link_tokens(2).values()) == {length // ranks // (ranks - 1)}
