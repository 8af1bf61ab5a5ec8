"""A binomial tree: in ceil(log2(n)) rounds, each rank that has something serves one more.

Numbered from the root, rank v takes the place of v with its lowest bit cleared as its parent; the ranks below
it are v … v + 2**k - 1, so what belongs to them is one stretch of blocks, counted round from the root's.
"""

from __future__ import annotations

from collections.abc import Callable

from megatile.collectives.phases.exchange import rounds_of
from megatile.collectives.registry import algorithm
from megatile.collectives.writer import Writer, is_rank
from megatile.core.expr import Expr, eq, expr, member, minimum, select, unit
from megatile.plan.build import Handle, Part
from megatile.plan.model import Channel


@algorithm("binomial", "broadcast", "reduce", "gather", "scatter")
def binomial(w: Writer) -> None:
    """Half of the ranks have theirs after all rounds but one: the fewest steps from or to a root."""
    tree = Binomial(w)
    match w.job.operation:
        case "broadcast":
            w.put_root_data()
            tree.downwards(w.sums)
        case "scatter":
            tree.scatter()
        case "gather":
            w.copy(w.blocks.part(w.output, unit), w.contribution())
            tree.upwards(w.output, lambda place, message: w.copy(place, message))
        case _:
            if w.out_of_place:
                w.copy(w.whole(w.sums), w.whole(w.own))
            tree.upwards(w.sums, lambda place, message: w.reduce(place, place, message))


class Binomial:
    """Messages between a rank and the one 2**k further from the root; blocks, or everything at a time."""

    def __init__(self, w: Writer):
        self.w, self.n, self.root = w, w.job.ranks, w.job.root
        self.rounds = rounds_of(self.n)
        self.apart = w.job.operation in ("gather", "scatter")
        self.most = w.blocks.most * max(1, 1 << (self.rounds - 1)) if self.apart else w.job.count

    @property
    def me(self) -> Expr:
        return (unit - self.root) % self.n

    def _rank(self, number: Expr) -> Expr:
        return (number + self.root) % self.n

    def _parent_in(self, bit: Expr) -> Expr:
        """Return whether I serve, or am served by, the rank 2**bit further."""
        width = expr(1) << bit
        return eq(self.me % (width * 2), 0) & (self.me + width < self.n)

    def _child_in(self, bit: Expr) -> Expr:
        width = expr(1) << bit
        return eq(self.me % (width * 2), width)

    def _each_part(self, first: Expr, width: Expr, put: Callable[[Callable[[Handle], Part]], None]) -> None:
        """What belongs to the ranks ``first`` … ``first + width - 1`` from the root on."""
        if self.apart:
            self.w.each_part(self.w.blocks, self._rank(first), minimum(width, self.n - first), put)
        else:
            put(self.w.whole)

    def upwards(self, buffer: Handle, take: Callable[[Part, Handle], None]) -> None:
        """Nearest ranks first; ``take`` what comes into its place."""
        w = self.w
        further = self._rank(self.me + (expr(1) << member))
        channel = self._channel(select(self._parent_in(member), further, -1))
        with w.loop(0, self.rounds, "round") as step:
            width = expr(1) << step
            with w.when(self._child_in(step)):
                to = self._rank(self.me - width)
                self._each_part(self.me, width, lambda part: w.send(channel, part(buffer), to, step))
            with w.when(self._parent_in(step)):
                self._each_part(
                    self.me + width,
                    width,
                    lambda part: take(part(buffer), w.receive(channel, part(buffer), step)),
                )

    def downwards(self, buffer: Handle, origin: Handle | None = None) -> None:
        """Furthest ranks first; ``origin``: where the root has it, if not in ``buffer``."""
        w = self.w
        nearer = self._rank(self.me - (expr(1) << member))
        channel = self._channel(select(self._child_in(member), nearer, -1))
        with w.loop(0, self.rounds, "round") as step:
            bit = self.rounds - 1 - step
            width = expr(1) << bit
            with w.when(self._child_in(bit)):
                self._each_part(
                    self.me, width, lambda part: w.copy(part(buffer), w.receive(channel, part(buffer), bit))
                )
            with w.when(self._parent_in(bit)):
                self._each_part(
                    self.me + width, width, lambda part: self._pass(channel, part, buffer, origin, bit)
                )

    def _pass(
        self,
        channel: Channel,
        part: Callable[[Handle], Part],
        buffer: Handle,
        origin: Handle | None,
        bit: Expr,
    ) -> None:
        w, to = self.w, self._rank(self.me + (expr(1) << bit))
        if origin is None:
            w.send(channel, part(buffer), to, bit)
            return
        w.either(
            is_rank(self.root),
            lambda: w.send(channel, part(origin), to, bit),
            lambda: w.send(channel, part(buffer), to, bit),
        )

    def scatter(self) -> None:
        """Out of place, what is on its way to others needs room of its own."""
        w = self.w
        if not w.out_of_place:
            self.downwards(w.own)
            return
        parts = w.tile("parts", (max(1, w.job.count),))
        self.downwards(parts, w.own)
        w.either(
            is_rank(self.root),
            lambda: w.copy(w.result(), w.blocks.part(w.own, self.root)),
            lambda: w.copy(w.result(), w.blocks.part(parts, unit)),
        )

    def _channel(self, source: Expr) -> Channel:
        return self.w.channel("binomial", source, self.most, members=max(1, self.rounds), slots=2)
