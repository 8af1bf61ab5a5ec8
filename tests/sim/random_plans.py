"""Random plans that cannot deadlock: rounds of communication patterns with random work between them."""

from __future__ import annotations

import random

from megatile.plan.build import PlanBuilder
from megatile.plan.expr import eq, select, unit
from megatile.plan.model import Plan

PATTERNS = (
    "shift", "exchange", "gather", "tree", "barrier", "put", "pipeline", "carry", "any", "into", "uneven",
)  # fmt: skip
REGULAR = ("shift", "into", "carry", "uneven")
"""Patterns in which all units go in step."""


def random_plan(
    seed: int,
    *,
    patterns: tuple[str, ...] = PATTERNS,
    memories: tuple[str, ...] = ("local", "common"),
    least: int = 2,
    rounds: int = 6,
) -> Plan:
    """A plan for ``least`` to 6 units made of these patterns."""
    rng = random.Random(seed)
    n = rng.randint(least, 6)
    size = rng.choice([4, 16, 64])
    b = PlanBuilder(f"random{seed}", scale="core", units=n)
    x = b.tile("x", (n, size), "f32", memory="local", role="inout")
    y = b.tile("y", (size,), "f32", memory=rng.choice(memories), versions=rng.randint(1, 3))
    z = b.tile("z", (size,), "f32", memory="local", role="output")
    b.compute("fill", y, [], value=1.0)
    b.compute("fill", z, [], value=0.0)
    make = Rounds(b, rng, n, size, x, y, z, memories)
    for _ in range(rng.randint(1, rounds)):
        getattr(make, rng.choice(patterns))()
        make.work()
    return b.finish()


class Rounds:
    """The patterns."""

    def __init__(self, b, rng, n, size, x, y, z, memories) -> None:  # type: ignore[no-untyped-def]
        self.b, self.rng, self.n, self.size = b, rng, n, size
        self.x, self.y, self.z = x, y, z
        self.memories = memories

    def channel(self, source, members=1, least=1):  # type: ignore[no-untyped-def]
        rng = self.rng
        return self.b.channel(
            "c", source=source, slot_bytes=4 * self.size, memory=rng.choice(self.memories),
            slots=rng.randint(least, 4), members=members,
        )  # fmt: skip

    def work(self) -> None:
        rng, b = self.rng, self.b
        for _ in range(rng.randint(0, 3)):
            row = self.x[rng.randrange(self.n)]
            kind = rng.choice(["add", "copy", "fresh", "exp"])
            if kind == "add":
                b.compute("add", row, [row, self.x[(unit + 1) % self.n]])
            elif kind == "copy":
                b.copy(self.y, self.z, fresh=True)
            elif kind == "fresh":
                b.compute("abs", self.y, [self.z], fresh=True)
            else:
                b.compute("exp", self.z, [self.z], engine=rng.choice(["vector", "tensor"]))

    def shift(self) -> None:
        by = self.rng.randrange(1, self.n)
        c = self.channel((unit - by) % self.n)
        with self.b.loop(0, self.rng.randint(1, 5)) as loop:
            self.b.send(c, self.x[(unit + loop.index) % self.n], to=(unit + by) % self.n)
            m = self.b.receive(c, (1, self.size), "f32")
            mine = self.x[(unit + loop.index + 1) % self.n]
            self.b.compute("add", mine, [mine, m])

    def into(self) -> None:
        c = self.channel((unit - 1) % self.n)
        with self.b.loop(0, self.rng.randint(1, 4)):
            self.b.send(c, self.z, to=(unit + 1) % self.n)
            self.b.receive(c, (self.size,), "f32", into=self.y, fresh=True)

    def exchange(self) -> None:
        """All to all: message k goes k units further."""
        n = self.n
        c = self.channel((unit - 1 - _member()) % n, members=max(1, n - 1))
        with self.b.loop(0, n - 1) as loop:
            self.b.send(c, self.x[loop.index], to=(unit + 1 + loop.index) % n, member=loop.index)
        with self.b.loop(0, n - 1) as loop:
            m = self.b.receive(c, (1, self.size), "f32", member=loop.index)
            mine = self.x[loop.index]
            self.b.compute("add", mine, [mine, m])

    def gather(self) -> None:
        """Everybody to unit 0, in a fixed order."""
        c = self.channel(select(eq(unit, 0), _member() + 1, -1), members=max(1, self.n - 1))
        with self.b.when(eq(unit, 0)) as branch, self.b.loop(0, self.n - 1) as loop:
            m = self.b.receive(c, (self.size,), "f32", member=loop.index)
            self.b.compute("add", self.z, [self.z, m])
        with branch.otherwise():
            self.b.send(c, self.z, to=0, member=unit - 1)

    def any(self) -> None:
        """Everybody to unit 0, as they come."""
        c = self.channel(select(eq(unit, 0), _member() + 1, -1), members=max(1, self.n - 1))
        with self.b.when(eq(unit, 0)) as branch:
            for _ in range(self.n - 1):
                m, chosen = self.b.receive_any(c, (self.size,), "f32")
                row = self.x[chosen % self.n]
                self.b.compute("add", row, [row, m])
        with branch.otherwise():
            self.b.compute("exp", self.z, [self.z])
            self.b.send(c, self.z, to=0, member=unit - 1)

    def tree(self) -> None:
        """Down a binary tree."""
        n = self.n
        c = self.channel(select(eq(unit, 0), -1, (unit - 1) // 2))
        with self.b.when(unit > 0):
            m = self.b.receive(c, (self.size,), "f32")
            self.b.compute("add", self.z, [self.z, m])
        for child in (1, 2):
            with self.b.when(unit * 2 + child < n):
                self.b.send(c, self.z, to=unit * 2 + child)

    def pipeline(self) -> None:
        """A line: receive from the left, work, send to the right, several messages."""
        n, rounds = self.n, self.rng.randint(1, 4)
        c = self.channel(select(eq(unit, 0), -1, unit - 1))
        with self.b.loop(0, rounds):
            with self.b.when(unit > 0):
                self.b.receive(c, (self.size,), "f32", into=self.y, fresh=True)
            self.b.compute("add", self.z, [self.z, self.y])
            with self.b.when(unit < n - 1):
                self.b.send(c, self.z, to=unit + 1)

    def uneven(self) -> None:
        """Trip counts that differ from unit to unit."""
        with self.b.loop(0, unit % 3 + 1):
            self.b.compute("exp", self.z, [self.z])

    def carry(self) -> None:
        """The naive ring: what was received is sent on."""
        n = self.n
        c = self.channel((unit - 1) % n, least=2)  # one slot is held while the next message comes
        self.b.send(c, self.z, to=(unit + 1) % n)
        first = self.b.receive(c, (self.size,), "f32")
        with self.b.loop(0, n - 1, current=first) as loop:
            self.b.compute("add", self.z, [self.z, loop.current])
            self.b.send(c, loop.current, to=(unit + 1) % n)
            m = self.b.receive(c, (self.size,), "f32")
            loop.next(current=m)

    def barrier(self) -> None:
        self.b.barrier(self.b.group("all"))

    def put(self) -> None:
        """A put into the neighbour's storage, a signal, a wait."""
        n = self.n
        w = self.b.tile("w", (self.size,), "f32", memory=self.rng.choice(self.memories), role="local")
        flag = self.b.flag(self.b.fresh("flag"))
        self.b.compute("fill", w, [], value=0.0)
        self.b.barrier(self.b.group("all"))
        self.b.copy(w.at((unit + 1) % n), self.z)
        self.b.signal(flag, to=(unit + 1) % n)
        self.b.wait(flag, 1)
        self.b.compute("add", self.z, [self.z, w])


def _member():  # type: ignore[no-untyped-def]
    from megatile.plan.expr import member

    return member
