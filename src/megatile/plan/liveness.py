"""Where the slots of received messages end: puts ``Free`` after the last use of every name that may hold a
slot.

Producers need not think about credits; ``PlanBuilder`` runs this when it finishes a plan.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from megatile.plan.spec import having
from megatile.plan.statements import (
    CarryTile,
    Free,
    If,
    Loop,
    MergeTile,
    Statement,
    binds,
    regions_of,
    statements,
)

Body = tuple[Statement, ...]


def with_frees(body: Body) -> Body:
    """The same statements with a ``Free`` after the last use of each slot (existing ones are dropped)."""
    return _block(_without_frees(body), frozenset(), slot_names(body))


def slot_names(body: Body) -> frozenset[str]:
    """Names that may mean a slot: received ones, and what is carried or merged from them."""
    names: set[str] = set()
    flows: list[tuple[str, str]] = []
    for statement in statements(body):
        names |= set(having(statement, "binds"))
        if isinstance(statement, Loop):
            for carry in statement.carries:
                if isinstance(carry, CarryTile):
                    flows += [(carry.init, carry.name), (carry.next, carry.name)]
        elif isinstance(statement, If):
            for merge in statement.merges:
                if isinstance(merge, MergeTile):
                    flows += [(merge.then, merge.name), (merge.orelse, merge.name)]
    while True:
        more = {to for source, to in flows if source in names} - names
        if not more:
            return frozenset(names)
        names |= more


def _without_frees(body: Body) -> Body:
    kept: list[Statement] = []
    for statement in body:
        if isinstance(statement, Loop):
            statement = replace(statement, body=_without_frees(statement.body), frees=())
        elif isinstance(statement, If):
            inner = _without_frees(statement.body), _without_frees(statement.orelse)
            statement = replace(statement, body=inner[0], orelse=inner[1])
        if not isinstance(statement, Free):
            kept.append(statement)
    return tuple(kept)


def _tile_carries(loop: Loop) -> list[CarryTile]:
    return [c for c in loop.carries if isinstance(c, CarryTile)]


def _tile_merges(branch: If) -> list[MergeTile]:
    return [m for m in branch.merges if isinstance(m, MergeTile)]


def _uses(body: Iterable[Statement]) -> set[str]:
    """Every tile name read or written in the statements."""
    names: set[str] = set()
    for statement in statements(tuple(body)):
        names |= {region.tile for region in regions_of(statement)}
        if isinstance(statement, Loop):
            names |= {n for c in _tile_carries(statement) for n in (c.init, c.next)}
        elif isinstance(statement, If):
            names |= {n for m in _tile_merges(statement) for n in (m.then, m.orelse)}
    return names


def _binds(body: Iterable[Statement]) -> set[str]:
    """Names of tiles that the statements themselves bind, not counting inner scopes."""
    return {name for statement in body for name in binds(statement)[0]}


def _block(body: Body, live: frozenset[str], slots: frozenset[str]) -> Body:
    """``body`` with frees, where the names in ``live`` are still needed after it."""
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
    carries = _tile_carries(loop)
    names = {c.name for c in carries}
    inside = _uses(loop.body) | {c.next for c in carries}
    own = _binds(loop.body)
    # A name from outside that the body uses is needed by the next iteration too.
    outer = (inside - own - names) & slots
    after = frozenset(live | outer | {c.next for c in carries})
    body = _block(loop.body, after - frozenset(names - {c.next for c in carries}), slots)
    unused = sorted(n for n in names & slots if n not in inside)
    if unused:
        body = (Free(tuple(unused), loop.source), *body)
    at_entry = {c.init for c in carries} & slots - outer - live - names
    ends = {n for n in ends if n in names or n in outer}
    return replace(loop, body=body, frees=tuple(sorted(at_entry))), ends


def _if(branch: If, live: frozenset[str], ends: set[str], slots: frozenset[str]) -> tuple[If, set[str]]:
    merges = _tile_merges(branch)
    sides = []
    outside_sources: set[str] = set()
    for body, sources in (
        (branch.body, {m.then for m in merges}),
        (branch.orelse, {m.orelse for m in merges}),
    ):
        own = _binds(body)
        outside_sources |= sources - own
        sides.append((body, sources, own))
    # Sources that live outside are freed after the merge has taken them; the rest ends within the branches.
    after_if = {n for n in ends if n in outside_sources or n in {m.name for m in merges}}
    within = ends - after_if
    results: list[Body] = []
    for body, sources, own in sides:
        needed = frozenset(live | sources | (outside_sources & ends))
        result = _block(body, needed, slots)
        unused = sorted(n for n in within - own if n not in _uses(body) and _bound_outside(n, sides))
        results.append((Free(tuple(unused), branch.source), *result) if unused else result)
    return replace(branch, body=results[0], orelse=results[1]), after_if


def _bound_outside(name: str, sides: list[tuple[Body, set[str], set[str]]]) -> bool:
    return not any(name in _all_binds(body) for body, _, _ in sides)


def _all_binds(body: Body) -> set[str]:
    names = _binds(body)
    for statement in statements(body):
        names |= _binds([statement])
    return names
