"""Happens-before clocks."""

from __future__ import annotations

from megatile.core.clocks import Access, AccessLog, Clocks, covers, overlap


def write(unit, box=((0, 4),), label=""):
    return Access(unit, True, box, label)


def read(unit, box=((0, 4),), label=""):
    return Access(unit, False, box, label)


def test_unordered_accesses_race_only_if_one_writes_and_they_overlap():
    clocks, log = Clocks(3), AccessLog()
    assert log.record(clocks, "x", read(0)) is None
    assert log.record(clocks, "x", read(1)) is None
    assert log.record(clocks, "x", write(2, ((4, 6),))) is None
    assert log.record(clocks, "y", write(2)) is None
    assert log.record(clocks, "x", write(2, ((3, 5),))).unit == 0


def test_order_is_transitive_through_messages():
    clocks, log = Clocks(3), AccessLog()
    log.record(clocks, "x", write(0))
    clocks.acquire(1, clocks.release(0))
    clocks.acquire(2, clocks.release(1))
    assert log.record(clocks, "x", write(2)) is None


def test_what_comes_after_the_release_is_not_covered():
    clocks, log = Clocks(2), AccessLog()
    snapshot = clocks.release(0)
    log.record(clocks, "x", write(0, label="late"))
    clocks.acquire(1, snapshot)
    assert log.record(clocks, "x", read(1)).label == "late"


def test_a_barrier_orders_all_its_members_and_nobody_else():
    clocks, log = Clocks(3), AccessLog()
    for unit in range(3):
        log.record(clocks, unit, write(unit))
    clocks.rendezvous([0, 1])
    assert log.record(clocks, 0, write(1)) is None
    assert log.record(clocks, 1, write(0)) is None
    assert log.record(clocks, 2, read(0)).unit == 2


def test_covered_accesses_are_forgotten_but_their_order_is_not():
    clocks, log = Clocks(3), AccessLog()
    log.record(clocks, "x", write(0))
    clocks.acquire(1, clocks.release(0))
    log.record(clocks, "x", write(1, label="cover"))
    assert len(log._past["x"]) == 1
    assert log.record(clocks, "x", read(2)).label == "cover"


def test_reads_are_not_compared_with_reads(monkeypatch):
    clocks, log = Clocks(64), AccessLog()
    asked = []
    monkeypatch.setattr(clocks, "knows", lambda *pair: asked.append(pair) or False)
    for unit in range(64):
        for part in range(8):
            assert log.record(clocks, "x", read(unit, ((part, part + 1),))) is None
    assert asked == []
    assert log.record(clocks, "x", write(0, ((3, 5),))).box == ((3, 4),)


def test_boxes():
    assert overlap(((0, 2), (0, 2)), ((1, 3), (1, 3)))
    assert not overlap(((0, 2), (0, 2)), ((1, 3), (2, 3)))
    assert overlap((), ((5, 6),))
    assert covers(((0, 4),), ((1, 2),))
    assert not covers(((0, 4),), ((1, 5),))
