"""Where the kernels of libraries end that a stream starts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from megatile.plan import model as pm
from megatile.plan.code import Code


def kernel_ends(plan: pm.Plan, code: Code) -> set[int]:
    """Return the instructions of a stream before which a kernel has ended that it has started, by index.

    A kernel lasts from its ``Start`` to the last statement beside it that its transport does, or to the next
    ``Start``.
    """
    statements = [instruction.statement for instruction in code.instructions]
    starts = [i for i, s in enumerate(statements) if isinstance(s, pm.Start)]
    if not starts:
        return set()
    named: dict[str, str | None] = {c.name: c.transport for c in plan.channels}
    named |= {group.name: group.transport for group in plan.groups}
    found = set()
    for body in _bodies(code.stream.body):
        for at, start in enumerate(body):
            if not isinstance(start, pm.Start):
                continue
            rest = body[at + 1 :]
            other = (any(isinstance(x, pm.Start) for x in pm.statements((s,))) for s in rest)
            until = next((i for i, starts_another in enumerate(other) if starts_another), len(rest))
            mine = [
                s for s in rest[:until] if start.transport in {_by(x, named) for x in pm.statements((s,))}
            ]
            inside = {id(x) for x in pm.statements((mine[-1] if mine else start,))}
            found |= {
                max(j for j in range(i, len(statements)) if id(statements[j]) in inside or j == i) + 1
                for i in starts
                if statements[i] is start
            }
    return found


def _bodies(body: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Yield lists of statements that follow each other."""
    yield body
    for s in body:
        for inner in (getattr(s, "body", ()), getattr(s, "orelse", ())):
            if inner:
                yield from _bodies(inner)


def _by(statement: Any, named: dict[str, str | None]) -> str | None:
    """Return the transport that does a statement."""
    if isinstance(statement, pm.Compute):
        return statement.by if statement.engine != "dma" else None
    return named.get(getattr(statement, "channel", None) or getattr(statement, "group", None) or "")
