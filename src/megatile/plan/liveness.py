"""Where the slots of received messages end: puts ``Free`` after the last use of every name that may hold a
slot.

Producers need not think about credits; ``PlanBuilder`` runs this when it finishes a plan.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from megatile.plan.statements import (
    Free,
    If,
    Loop,
    Statement,
    binds,
    regions_of,
    rewritten,
    statements,
    tile_flows,
    tiles_bound,
)

Body = tuple[Statement, ...]


def with_frees(body: Body) -> Body:
    """Return the same statements with a ``Free`` after the last use of each slot (existing ones are
    dropped)."""
    return _block(rewritten(body, _without_frees), frozenset(), slot_names(body))


def slot_names(body: Body) -> frozenset[str]:
    """Return names that may mean a slot: received ones, and what is carried or merged from them."""
    names: set[str] = set()
    flows: list[tuple[str, str]] = []
    for statement in statements(body):
        names |= set(tiles_bound(statement))
        flows += [(value, flow.name) for flow in tile_flows(statement) for value in flow.values]
    while True:
        more = {to for source, to in flows if source in names} - names
        if not more:
            return frozenset(names)
        names |= more


def _without_frees(statement: Statement) -> Statement | None:
    if isinstance(statement, Free):
        return None
    return replace(statement, frees=()) if isinstance(statement, Loop) else statement


def _uses(body: Iterable[Statement]) -> set[str]:
    """Return every tile name read or written in the statements."""
    names: set[str] = set()
    for statement in statements(tuple(body)):
        names |= {region.tile for region in regions_of(statement)}
        names |= {value for flow in tile_flows(statement) for value in flow.values}
    return names


def _binds(body: Iterable[Statement]) -> set[str]:
    """Return names of tiles that the statements themselves bind, not counting inner scopes."""
    return {name for statement in body for name in binds(statement)[0]}


def _block(body: Body, live: frozenset[str], slots: frozenset[str]) -> Body:
    """Return ``body`` with frees, where the names in ``live`` are still needed after it."""
    reversed_result: list[Statement] = []
    needed = set(live)
    for statement in reversed(body):
        uses = _uses([statement]) & slots
        ends = (uses | (_binds([statement]) & slots)) - needed
        if isinstance(statement, Loop):
            statement, ends = _loop(statement, frozenset(needed), ends, slots)
        elif isinstance(statement, If):
            statement, ends = _if(statement, frozenset(needed), ends, slots)
        if ends:
            reversed_result.append(Free(tuple(sorted(ends)), statement.source))
        reversed_result.append(statement)
        needed |= uses
    return tuple(reversed(reversed_result))


def _loop(loop: Loop, live: frozenset[str], ends: set[str], slots: frozenset[str]) -> tuple[Loop, set[str]]:
    carries = tile_flows(loop)
    names, kept = {c.name for c in carries}, {c.values[1] for c in carries}
    inside = _uses(loop.body) | kept
    # A name from outside that the body uses is needed by the next iteration too.
    outer = (inside - _binds(loop.body) - names) & slots
    body = _block(loop.body, (live | outer | kept) - (names - kept), slots)
    unused = sorted(n for n in names & slots if n not in inside)
    if unused:
        body = (Free(tuple(unused), loop.source), *body)
    at_entry = {c.values[0] for c in carries} & slots - outer - live - names
    ends = {n for n in ends if n in names or n in outer}
    return replace(loop, body=body, frees=tuple(sorted(at_entry))), ends


def _if(branch: If, live: frozenset[str], ends: set[str], slots: frozenset[str]) -> tuple[If, set[str]]:
    merges, bodies = tile_flows(branch), (branch.body, branch.orelse)
    sources = [{m.values[side] for m in merges} for side in (0, 1)]
    outside = set().union(*(taken - _binds(body) for taken, body in zip(sources, bodies, strict=True)))
    # Sources that live outside are freed after the merge has taken them; the rest ends within the branches.
    after_if = ends & (outside | {m.name for m in merges})
    bound = set().union(*(_binds((s,)) for s in statements((*branch.body, *branch.orelse))))
    results: list[Body] = []
    for taken, body in zip(sources, bodies, strict=True):
        result = _block(body, live | taken | (outside & ends), slots)
        unused = sorted(ends - after_if - bound - _uses(body))
        results.append((Free(tuple(unused), branch.source), *result) if unused else result)
    return replace(branch, body=results[0], orelse=results[1]), after_if
