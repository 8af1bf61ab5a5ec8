"""Happens-before clocks for programs that fork and join: units inside units, of any number.

A *strand* is a line of execution; while its children run it waits for them. Its ``time`` advances whenever
others may learn of what it did (release, fork, join), and ``known`` maps another agent to the latest time of
it that is ordered before this strand. Fork and join need no entries, so ten thousand children cost nothing:
once joined, an agent that has ended stands for its parent; an ancestor is suspended meanwhile.

>>> root = Strand(None)
>>> root.fork()
>>> a, b = Strand(root), Strand(root)
>>> is_ordered(a, a.time, b)        # siblings run at the same time
False
>>> rendezvous([a, b])
>>> is_ordered(a, 0, b)             # until they meet
True
>>> a.end()
>>> is_ordered(a, a.time, b)        # to have ended is not to have met
False
>>> b.end(); root.join()
>>> is_ordered(a, 1, root)          # and all before what follows the join
True
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count

_numbers = count()
Clock = dict[int, int]
"""Number of an agent → the latest time of it that is known."""


class Agent:
    """Something whose accesses are ordered: a strand, or messages of one that arrive on their own."""

    __slots__ = ("ended", "join_time", "number", "parent", "time")

    def __init__(self, parent: Strand | None):
        self.number = next(_numbers)
        self.parent = parent
        self.time = 0
        self.ended = False
        self.join_time = 0

    def end(self) -> None:
        """End a strand: what it did is ordered before the parent's join."""
        assert self.parent is not None
        self.ended = True
        self.join_time = self.parent.time


class Strand(Agent):
    """A line of execution."""

    __slots__ = ("exchanges", "fork_time", "known", "learned")

    def __init__(self, parent: Strand | None):
        super().__init__(parent)
        self.known: Clock = {}
        self.fork_time = 0
        self.exchanges = False
        """Whether its children release to, or acquire from, strands that are not its children."""
        self.learned: Clock = {}
        """What children that have ended acquired from outside."""

    def fork(self) -> None:
        """Children begin; what was done so far is ordered before them."""
        self.fork_time = self.time
        self.time += 1

    def join(self) -> None:
        """Note that all children have ended."""
        self.time += 1
        if self.learned:
            self.acquire(self.learned)
            self.learned = {}

    def end(self) -> None:
        super().end()
        if self.parent is not None and self.parent.exchanges:
            _join(self.parent.learned, self.known)

    def release(self, others: Iterable[Agent] = ()) -> Clock:
        """Return everything ordered before this moment, with what ``others`` did; a new time begins for
        all."""
        clock: Clock = {}
        _gather(clock, self, set())
        _release(clock, others)
        self.time += 1
        return clock

    def acquire(self, clock: Clock) -> None:
        """Order what was released before what follows."""
        known = dict(self.known)  # the clock may be shared with those one met
        _join(known, clock)
        self.known = known


def _join(into: Clock, other: Clock) -> None:
    for number, time in other.items():
        if into.get(number, -1) < time:
            into[number] = time


def _gather(into: Clock, strand: Strand, seen: set[int]) -> None:
    """Collect what a strand did and knows, and what those knew that it was forked from, but for clocks
    ``seen``."""
    walk: Strand | None = strand
    while walk is not None:
        if id(walk.known) not in seen:
            seen.add(id(walk.known))
            _join(into, walk.known)
        own = walk.time if walk is strand else walk.fork_time
        if into.get(walk.number, -1) < own:
            into[walk.number] = own
        walk = walk.parent


def _release(into: Clock, agents: Iterable[Agent]) -> None:
    for agent in agents:
        into[agent.number] = agent.time
        agent.time += 1


def rendezvous(strands: Sequence[Strand], others: Iterable[Agent] = ()) -> None:
    """A barrier: all that any of the strands (and ``others``) did is ordered before what each does next."""
    merged: Clock = {}
    seen: set[int] = set()
    for strand in strands:
        _gather(merged, strand, seen)
    _release(merged, others)
    for strand in strands:
        strand.known = merged
        strand.time += 1


def is_ordered(agent: Agent, time: int, strand: Strand) -> bool:
    """Return whether what ``agent`` did at ``time`` is ordered before what ``strand`` does now."""
    while not _is_known(agent, time, strand):
        if not agent.ended:
            return False
        assert agent.parent is not None
        agent, time = agent.parent, agent.join_time
    return True


def _is_known(agent: Agent, time: int, strand: Strand) -> bool:
    """Return whether the strand, or one it was forked from, is that agent or has learned of it."""
    if strand is agent:
        return True
    walk: Strand | None = strand
    while walk is not None:
        if walk is agent:  # what its ended children did since it forked, it knows only when it joins
            return time <= walk.fork_time
        if walk.known.get(agent.number, -1) >= time:
            return True
        walk = walk.parent
    return False


def settled(agent: Agent, time: int) -> tuple[Agent, int]:
    """Return the nearest ancestor that has joined an agent: its work counts as that ancestor's."""
    while agent.ended and agent.parent is not None and agent.parent.time > agent.join_time:
        if agent.parent.exchanges:  # others may know the agent, and not the parent
            break
        agent, time = agent.parent, agent.join_time
    return agent, time
