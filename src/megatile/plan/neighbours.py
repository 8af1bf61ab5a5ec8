"""Directions of queues: which is the opposite of which, and the error when nobody is there."""

from __future__ import annotations

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
