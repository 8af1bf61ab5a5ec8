"""Random plans that cannot deadlock: rounds of communication patterns with random work between them."""

from __future__ import annotations

import random

from megatile.core.expr import eq, select, unit
from megatile.plan.build import PlanBuilder
from megatile.plan.model import Plan

PATTERNS = (
    "shift", "exchange", "gather", "tree", "barrier", "put", "pipeline", "carry", "any", "into", "uneven",
)  # fmt: skip
REGULAR = ("shift", "into", "carry", "uneven")
"""Patterns in which all units go in step."""
FAST = (
    "load", "load", "feed", "feed", "puts", "puts", "collect", "shift", "into", "gather", "put", "barrier",
    "uneven",
)  # fmt: skip
"""Patterns with special operations where times are not recorded, and some to mix them with."""


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
        self.memories, self.near = memories, memories[0]
        self.engines = ["vector", "tensor"]

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
                b.compute("exp", self.z, [self.z], engine=rng.choice(self.engines))

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

    def load(self) -> None:
        """Loads from a memory that may be shared, and work; sometimes stores, or loads of some units only."""
        rng, b, n = self.rng, self.b, self.n
        x = b.tile(b.fresh("far"), (self.size,), "f32", memory=rng.choice(self.memories), role="inout")
        y = b.tile(b.fresh("near"), (self.size,), "f32", memory=self.near, versions=rng.randint(1, 3))
        with b.loop(0, rng.randint(1, 5)):
            b.copy(y, x, fresh=True)
            if rng.random() < 0.3:
                with b.when(unit < rng.randrange(n + 1)):
                    b.copy(y, x)
            b.compute("add", self.z, [self.z, y])
            if rng.random() < 0.3:
                b.copy(x, self.z)

    def feed(self) -> None:
        """Loads whose results are sent on, mostly; what is sent may also not wait for the load."""
        rng, b, n = self.rng, self.b, self.n
        far = b.tile(b.fresh("far"), (self.size,), "f32", memory=rng.choice(self.memories), role="inout")
        near = b.tile(b.fresh("near"), (self.size,), "f32", memory=self.near, versions=rng.randint(1, 3))
        c = self.channel((unit - 1) % n)
        sent = near if rng.random() < 0.7 else self.z
        for _ in range(rng.randint(1, 2)):
            with b.loop(0, rng.randint(1, 5)):
                b.copy(near, far, fresh=True)
                if rng.random() < 0.5:
                    b.compute("add", near, [near, near], engine=rng.choice(self.engines))
                b.send(c, sent, to=(unit + 1) % n)
                if rng.random() < 0.3:
                    b.receive(c, (self.size,), "f32", into=self.y, fresh=True)
                else:
                    other = near if rng.random() < 0.5 else self.z
                    b.compute("add", self.z, [other, b.receive(c, (self.size,), "f32")])
                if rng.random() < 0.3:
                    b.copy(far, self.z)

    def puts(self) -> None:
        """Puts, signals and waits in turns; sometimes to changing peers, or with puts of some units only."""
        rng, b, n = self.rng, self.b, self.n
        w = b.tile(b.fresh("w"), (2, self.size), "f32", memory=rng.choice(self.memories), role="local")
        flag = b.flag(b.fresh("flag"))
        by, amount, rounds = rng.randrange(1, n), rng.choice([1, 1, 3]), rng.randint(1, 4)
        moving = rng.random() < 0.3
        with b.loop(0, rounds) as loop:
            to = (unit + by + loop.index) % n if moving else (unit + by) % n
            b.copy(w[loop.index % 2].at(to), self.z)
            if rng.random() < 0.3:
                with b.when(unit % 2 < 1):
                    b.copy(w.at(to), w)
            b.signal(flag, to=to, amount=amount)
            b.wait(flag, (loop.index + 1) * amount)
            if rng.random() < 0.5:
                b.compute("exp", self.z, [self.z])

    def collect(self) -> None:
        """Everybody signals unit 0, after work of its own length; it waits for some and then for all."""
        b, n = self.b, self.n
        flag = b.flag(b.fresh("flag"))
        with b.loop(0, unit % 3):
            b.compute("exp", self.z, [self.z])
        b.copy(self.y.at(0), self.z)
        b.signal(flag, to=0)
        with b.when(eq(unit, 0)):
            b.wait(flag, self.rng.randint(0, n))
            b.copy(self.y, self.z)
            b.wait(flag, n)


def _member():  # type: ignore[no-untyped-def]
    from megatile.core.expr import member

    return member
