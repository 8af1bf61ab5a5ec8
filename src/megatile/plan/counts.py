"""How many commands a plan issues."""

from __future__ import annotations

from typing import Any

from megatile.core.cached import cached_in_owner
from megatile.core.expr import trips
from megatile.plan.model import If, Loop, Plan


@cached_in_owner
def command_count(plan: Plan, control: int = 0) -> int:
    """Estimate how many commands a plan issues from its loop bounds; the control flow of a branch or
    of a round of a loop counts as so many."""

    def count(body: Any) -> int:
        found = 0
        for statement in body:
            if isinstance(statement, Loop):
                rounds = trips(statement)
                times = 8 if rounds is None else len(rounds)
                found += times * (count(statement.body) + 2 * control) + 2 * control
            elif isinstance(statement, If):
                found += max(count(statement.body), count(statement.orelse)) + control
            else:
                found += 1
        return found

    return sum(stream.unit_count() * count(stream.body) for stream in plan.streams)
