"""Ulysses in a Plan: the ranks of a head group exchange parts of the sequence for parts of the heads."""

from __future__ import annotations

import numpy as np

from megatile.attention.plans.context import PlanContext, Span, block
from megatile.attention.plans.tables import Key, shortest
from megatile.core.dtypes import itemsize
from megatile.core.expr import Expr, member, unit
from megatile.core.placement import Pieces, local_length
from megatile.plan.build import Handle


class HeadMoves:
    """Moves tiles [..., tokens, heads, dim] between all heads of my tokens and my heads of the group's.

    ``pieces`` are the tokens of every unit, ``heads`` the heads of the whole tensor.
    """

    def __init__(self, context: PlanContext, pieces: list[Pieces], heads: int):
        self.context = context
        self.width = context.divided.width
        self.lengths = [local_length(own) for own in pieces]
        self.shares = context.divided.head_shares(heads)

    def to_heads(self, source: Handle, target: Handle, name: str) -> None:
        """``target`` gets the tokens of the whole group for my heads."""
        self._exchange(source, target, name, to_heads=True)

    def to_tokens(self, source: Handle, target: Handle, name: str) -> None:
        """``target`` gets all heads for my tokens."""
        self._exchange(source, target, name, to_heads=False)

    def _exchange(self, source: Handle, target: Handle, name: str, to_heads: bool) -> None:
        builder, width = self.context.builder, self.width
        lead = (None,) * (len(source.shape) - 3)
        size = max(1, *self.lengths) * self.shares[0] * source.shape[-1] * itemsize(source.dtype)
        for extent in source.shape[: len(lead)]:
            size = size * extent
        first = unit - unit % width
        channel = builder.channel(
            name,
            source=first + (unit % width + (width - 1) - member) % width,
            slot_bytes=size,
            memory=self.context.memory,
            members=max(1, width - 1),
            slots=1,
        )
        builder.copy(
            block(target, *lead, *self._there(0, to_heads)),
            block(source, *lead, *self._here(0, to_heads)),
            engine="vector",
        )
        for distance in range(1, width):
            peer = first + (unit % width + distance) % width
            builder.send(
                channel, block(source, *lead, *self._here(distance, to_heads)), to=peer, member=distance - 1
            )
        for distance in range(1, width):
            place = block(target, *lead, *self._there(-distance, to_heads))
            builder.receive(channel, place.shape, source.dtype, member=distance - 1, into=place)

    def _here(self, distance: int, to_heads: bool) -> tuple[Span, Span]:
        """Return tokens and heads that go to the peer at a distance."""
        if to_heads:
            return (0, self._tokens(0)), self._heads(distance)
        return self._offset(distance), (0, self._heads(0)[1])

    def _there(self, distance: int, to_heads: bool) -> tuple[Span, Span]:
        """Return where what comes from the peer at a distance is put."""
        if to_heads:
            return self._offset(distance), (0, self._heads(0)[1])
        return (0, self._tokens(0)), self._heads(distance)

    def _peers(self, distance: int) -> list[int]:
        width = self.width
        return [u - u % width + (u % width + distance) % width for u in range(len(self.lengths))]

    def _tokens(self, distance: int) -> Expr:
        return self.context.by_unit([self.lengths[p] for p in self._peers(distance)])

    def _offset(self, distance: int) -> Span:
        """Return the peer's tokens among those of the group."""
        peers, width = self._peers(distance), self.width
        before = [sum(self.lengths[p - p % width : p]) for p in peers]
        return self.context.by_unit(before), self._tokens(distance)

    def _heads(self, distance: int) -> Span:
        """Return the peer's heads among all of them."""
        seats = [(s + distance) % self.width for s in range(self.width)]
        key = Key(unit % self.width, np.arange(self.width)[:, None])
        first = np.array([sum(self.shares[:s]) for s in seats])[:, None]
        count = np.array([self.shares[s] for s in seats])[:, None]
        return shortest(first, [key]), shortest(count, [key])
