"""Commands as they are issued.

A `Row` is one issued command for all units of a stream at once: every field is an int where the units
agree and an array over the units where they differ; ``mask`` says who takes part (None: all).
Nothing here knows time.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple

Number = Any  # an int, or an int64 array over the units of the cohort
Mask = Any  # None for all units, else a bool array


class Row:
    """One issued command. Which fields are set depends on the statement's type."""

    __slots__ = (
        "accesses",
        "flops",
        "group",
        "mask",
        "member",
        "nbytes",
        "number",
        "queue",
        "slot",
        "statement",
        "to",
        "value",
    )

    def __init__(self, statement: Any, mask: Mask) -> None:
        self.statement = statement
        self.mask = mask
        self.accesses: tuple[Access, ...] = ()
        self.flops: Number = 0
        self.nbytes: Number = 0
        self.to: Number = 0
        self.member: Number = 0
        self.queue: Number = 0
        """The queue's number in its channel: receiving unit * members + member."""
        self.number: Number = 0
        """Which message of the queue this is, from 0."""
        self.slot: Number = 0
        """The storage of the message, at its receiver."""
        self.value: Number = 0
        self.group: Number = 0


class Access(NamedTuple):
    """A block of one storage that a command reads or writes.

    ``storage`` is a number of `Storages`; ``owner`` is None for the unit's own copy; ``bounds`` are
    (start, extent) per dimension, empty for all of it.
    """

    storage: Number
    owner: Number
    bounds: tuple[tuple[Number, Number], ...]
    write: bool
    tile: str
    shared: bool = False


class Released:
    """The statement of rows that return credits: names ended and their slots are no longer held."""

    place = None


class Odd(Exception):
    """Something about queues that no plan may do; `verify.explain` finds out what."""


RELEASED = Released()
Walk = Generator[Row, Any, None]
