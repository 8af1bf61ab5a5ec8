"""Queues of messages as the follower counts them, and the routes of sends to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from megatile.plan.cohort import Value
from megatile.plan.model import Channel, PlanError

OPPOSITE = {"E": "W", "W": "E", "N": "S", "S": "N", "up": "down", "down": "up"} | {
    f"global_{a}": f"global_{b}" for a, b in (("E", "W"), ("W", "E"), ("N", "S"), ("S", "N"))
}


class InvalidDirection(PlanError):
    """A direction in which a unit has no neighbour."""


def nobody_there(unit: int, channel: Channel, member: int, sending: bool) -> InvalidDirection:
    """A unit that sends to nobody's queue ``member``, or waits at a queue that nobody feeds."""
    name = channel.names[member] if 0 <= member < len(channel.names) else None
    if sending:
        name = OPPOSITE.get(name or "")
    where = f" in direction {name}" if name else ""
    does = "sends" if sending else "receives"
    return InvalidDirection(
        f"unit {unit} {does}{where} on channel '{channel.name}', where it has no neighbour",
        advice="let only units with a neighbour there do so",
    )


class Queues:
    """The queues of one channel family: messages sent and received, and who still holds which slot."""

    def __init__(self, channel: Channel, units: int):
        self.channel = channel
        self.open = False  # whether the other end may be elsewhere, and always goes along
        self.source = channel.source.compile()
        shape = (units, channel.members)
        self.sent = np.zeros(shape, dtype=np.int64)
        self.received = np.zeros(shape, dtype=np.int64)
        # A slot in flight counts 1; each name bound to it counts 1 as well.
        self.holds = np.zeros((*shape, channel.slots), dtype=np.int16)
        self.nbytes = np.zeros((*shape, channel.slots), dtype=np.int64)
        # The same by the number of the queue (``at``) or of the slot (``place``), which is faster to look up.
        self.sent_at, self.received_at = self.sent.reshape(-1), self.received.reshape(-1)
        self.holds_of, self.nbytes_of = self.holds.reshape(-1), self.nbytes.reshape(-1)

    def at(self, units: Any, member: Value) -> Any:
        """Numbers of queues."""
        return units * self.channel.members + member

    def place(self, at: Any, slot: Value) -> Any:
        """Numbers of slots, of queues ``at``."""
        return at * self.channel.slots + slot


@dataclass(frozen=True)
class Route:
    """Where the units of a cohort send: queues that they feed, looked at once."""

    queues: Queues
    to: Any
    member: Value
    at: Any
    known_by: tuple[Any, ...]
