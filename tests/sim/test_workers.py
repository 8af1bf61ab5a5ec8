"""``sim/workers.py``: the workers of a host."""

from __future__ import annotations

import pytest
from tests.sim.concurrent_cases import WORK, work
from tests.sim.toys import toy

from megatile.sim import Session, SessionError


def test_every_worker_has_a_clock() -> None:
    """Two workers of a host, each launching on its own cores; time passes while both wait."""
    s = Session(toy(4, control=True))
    trip = 1940
    a, b = s.worker("a"), s.worker("b")
    a.block(a.submit(work(0)))
    with pytest.raises(SessionError, match=r"Worker\(b, 0 ps\) is not blocked"):
        s.advance()
    b.block(b.submit(work(2, times=3)))
    assert s.advance() == [a]
    a.results()
    assert a.clock_ps == s.now_ps == trip + WORK
    a.block(a.submit(work(0, times=10)))  # in time, although it was not known before
    assert s.advance() == [b]
    b.results()
    assert b.clock_ps == trip + 3 * WORK
    b.block(b.submit(work(2)))
    assert s.advance() == [b]
    b.results(), b.block()
    assert s.advance() == [b]  # nothing left to wait for
    b.results()
    assert a.blocked
    assert s.wait(*a.waits_for).time_ps == trip + 10 * WORK
    assert [e.submit_ps for e in s.launches] == [0, 0, trip + 3 * WORK, trip + WORK]
