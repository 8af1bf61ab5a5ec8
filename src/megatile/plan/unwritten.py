"""Find tiles that a plan reads before anything has written them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from megatile.plan.model import If, Loop, Plan, PlanError
from megatile.plan.statements import reads_of, statements, tile_flows, tiles_bound, write_of
from megatile.plan.text import statement_text


def check_first_reads(plan: Plan) -> None:
    """Refuse a plan with results in which the first command on a local tile reads it.

    For plans written by hand: those without results are there to be timed, and lowered ones may copy whole
    rows before they change parts of them. Only tiles that no other stream names are followed. What a branch
    does may be left out, so reads in branches are not judged, and writes there count.
    """
    if not any(tile.role in ("output", "inout") for tile in plan.tiles):
        return
    named: dict[str, int] = {}
    for stream in plan.streams:
        for name in {r.tile for s in statements(stream.body) for r in (*reads_of(s), *_write(s))}:
            named[name] = named.get(name, 0) + 1
    local = {t.name for t in plan.tiles if t.role == "local" and not t.shared and named.get(t.name) == 1}
    for stream in plan.streams:
        _follow(stream.body, set(local))


def _write(statement: Any) -> Iterable[Any]:
    found = write_of(statement)
    return () if found is None else (found,)


def _follow(body: Iterable[Any], unwritten: set[str]) -> None:
    for statement in body:
        if isinstance(statement, If):
            for one in statements((statement,)):
                unwritten -= {r.tile for r in (*_write(one), *reads_of(one))} | set(tiles_bound(one))
            continue
        unwritten -= {flow.name for flow in tile_flows(statement)}
        for region in reads_of(statement):
            if region.tile in unwritten and region.at is None:
                raise PlanError(
                    f"tile '{region.tile}' is read before anything has written it: "
                    + statement_text(statement),
                    place=statement.source,
                    advice="fill it or copy to it before, or declare it with role='input'",
                )
        unwritten -= {r.tile for r in (*_write(statement), *reads_of(statement))}
        unwritten -= set(tiles_bound(statement))
        if isinstance(statement, Loop):
            _follow(statement.body, unwritten)
