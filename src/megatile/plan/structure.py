"""Check the structure of a plan without following its streams; every evaluator does this first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from megatile.core.cached import cached_in_owner
from megatile.core.dtypes import itemsize
from megatile.core.errors import did_you_mean
from megatile.core.expr import constant
from megatile.core.operations import OPERATIONS, REDUCTIONS
from megatile.plan.model import ENGINES, ROLES, TRANSPORTS, Level, Plan, PlanError, Stream, Tile
from megatile.plan.names import check_names
from megatile.plan.spec import having, parts
from megatile.plan.statements import (
    Collective,
    Compute,
    Loop,
    ReceiveAny,
    regions_of,
    statements,
    write_of,
)
from megatile.plan.text import statement_text

COLLECTIVES = ("barrier", "all_reduce", "broadcast")
_REFERRED = {kind: having(kind) for kind in ("channel", "group", "flag")}
"""What gives the names of channels, groups and flags that a statement refers to."""


@cached_in_owner
def check_structure(plan: Plan) -> None:
    """Streams cover the units once; declarations are sound."""
    if any(extent < 1 for extent in plan.grid):
        raise PlanError(f"plan '{plan.name}' has a grid of {plan.grid}: every extent must be at least 1")
    check_levels(plan)
    check_extent(plan)
    for level in plan.all_levels:
        check_streams(plan, level)
    for tile in plan.tiles:
        if tile.role not in ROLES:
            raise PlanError(
                f"tile '{tile.name}' has role '{tile.role}'", advice=did_you_mean(tile.role, ROLES)
            )
        if tile.versions < 1 or any(extent < 0 for extent in tile.shape):
            raise PlanError(f"tile '{tile.name}' needs versions >= 1 and extents >= 0")
        itemsize(tile.dtype)
        if tile.over is not None:
            check_spread(plan, tile)
    for channel in plan.channels:
        if channel.slots < 1 or channel.members < 1 or channel.slot_bytes < 1:
            raise PlanError(f"channel '{channel.name}' needs at least one member, one slot and one byte")
        if (channel.credit_bytes or 0) < 0 or (channel.chunk_bytes is not None and channel.chunk_bytes < 1):
            raise PlanError(
                f"channel '{channel.name}' needs credits of 0 bytes or more and chunks of at least 1"
            )
        if channel.names and len(channel.names) != channel.members:
            raise PlanError(f"channel '{channel.name}' has {channel.members} members, not so many names")
    for flag in plan.flags:
        if flag.members < 1:
            raise PlanError(f"flag '{flag.name}' needs at least one member")
        if flag.installed and flag.level is not None:
            raise PlanError(f"flag '{flag.name}' is installed and so belongs to the first level")
    _check_transports(plan)
    for kind in ("transports", "tiles", "channels", "flags", "groups"):
        names = [thing.name for thing in getattr(plan, kind)]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise PlanError(f"two {kind} have the name '{twice}'")
    known: dict[str, dict[str, Any]] = {
        "channel": {channel.name: channel for channel in plan.channels},
        "flag": {flag.name: flag for flag in plan.flags},
        "group": {group.name: group for group in plan.groups},
        "transport": {transport.name: transport for transport in plan.transports},
        "shared": {tile.name: tile for tile in plan.tiles if tile.shared},
    }
    for body in plan.bodies:
        for statement in body:
            check_statement(statement, known)
    check_names(plan)
    if plan.levels:
        for stream in plan.streams:
            check_owners(plan, stream)


def _check_transports(plan: Plan) -> None:
    """Check that transports are of known kinds, and that every transport named is declared."""
    for transport in plan.transports:
        if transport.kind not in TRANSPORTS:
            advice = did_you_mean(transport.kind, TRANSPORTS, what="kinds")
            raise PlanError(f"transport '{transport.name}' has kind '{transport.kind}'", advice=advice)
        if transport.channels is not None and not 0 < transport.channels < 1e9:
            raise PlanError(f"transport '{transport.name}' has {transport.channels} channels, not above 0")
        if not 0 < transport.pace < 1e9:
            raise PlanError(f"transport '{transport.name}' has pace {transport.pace}, not above 0")
    users: list[Any] = [*plan.channels, *plan.groups]
    done = (s.by for body in plan.bodies for s in body if isinstance(s, Compute) and s.engine != "dma")
    for name in (plan.kernel, *(user.transport for user in users), *(by or None for by in done)):
        if name is not None:
            plan.transport(name)


def check_spread(plan: Plan, tile: Tile) -> None:
    """Check that a tile is spread over a level right below its own, in blocks that have its dimensions."""
    inside = [level.name for level in plan.levels if level.parent == plan.level(tile.level).name]
    if tile.over not in inside:
        raise PlanError(
            f"tile '{tile.name}' is spread over '{tile.over}', which is not a level right below its own",
            advice=did_you_mean(str(tile.over), inside, what="levels there"),
        )
    if len(tile.block) != len(tile.shape) or any(size < 1 for size in tile.block):
        raise PlanError(
            f"tile '{tile.name}' of shape {tile.shape} is spread in blocks of {tile.block}",
            advice="give a block one extent of at least 1 for each dimension",
        )


def check_levels(plan: Plan) -> None:
    """Check that levels have names of their own and parents before them; what belongs to a level names
    one."""
    if plan.partial and plan.levels:
        raise PlanError(
            f"plan '{plan.name}' is partial and has levels: which instances have no stream would be unclear",
            advice="leave out partial, and give units that do nothing an empty stream",
        )
    seen: list[str] = []
    for level in plan.all_levels:
        if level.name in seen:
            raise PlanError(
                f"two levels have the name '{level.name}'", advice="the first is named by its scale"
            )
        if level.parent is not None and level.parent not in seen:
            advice = did_you_mean(level.parent, seen, what="levels before it")
            raise PlanError(f"level '{level.name}' has parent '{level.parent}'", advice=advice)
        if any(extent < 1 for extent in level.grid) or (level.slots is not None and level.slots < 1):
            raise PlanError(f"level '{level.name}' needs extents and slots of at least 1")
        seen.append(level.name)
    things: list[Any] = [*plan.tiles, *plan.channels, *plan.flags, *plan.groups, *plan.streams]
    for thing in things:
        if thing.level is None and plan.first.slots is None:
            continue
        if thing.level == plan.scale:
            what = f"{type(thing).__name__.lower()} {getattr(thing, 'name', '')}".rstrip()
            raise PlanError(f"{what} names the first level", advice="leave level= out")
        level = plan.level(thing.level)
        if isinstance(thing, Tile) and level.slots is not None and not thing.plain:
            raise PlanError(
                f"tile '{thing.name}' of level '{level.name}' must be local, without owner and offset: "
                "it lies in the slot of its instance",
                advice="inputs and outputs belong to a level above",
            )


MAX_UNITS = 2**24
"""Units of a plan that checks follow one by one."""
MAX_SLOTS = 2**24
"""Slots of all queues of a channel: each is followed on its own, with ten bytes."""


def check_extent(plan: Plan) -> None:
    """Refuse what could only be followed with more memory than a machine has."""
    for level in plan.all_levels:
        if (count := plan.instances(level.name)) > MAX_UNITS:
            raise PlanError(f"plan '{plan.name}' has {count} units: more than {MAX_UNITS} are not followed")
    for channel in plan.channels:
        slots = plan.instances(channel.level) * max(1, channel.members) * max(1, channel.slots)
        if slots > MAX_SLOTS:
            raise PlanError(
                f"channel '{channel.name}' has {slots} slots in all: more than {MAX_SLOTS} are not followed",
                advice="fewer members or slots do the same where senders wait for credit",
            )
    for flag in plan.flags:
        counters = plan.instances(flag.level) * flag.members
        if counters > MAX_SLOTS:
            raise PlanError(
                f"flag '{flag.name}' has {counters} counters in all: more than {MAX_SLOTS} are not followed"
            )


def check_streams(plan: Plan, level: Level) -> None:
    """Check that the streams of a level cover its instances once; a plan of several levels may leave one
    out."""
    streams = [stream for stream in plan.streams if plan.level(stream.level) is level]
    if not streams and plan.levels:
        return
    word, count = ("unit" if level is plan.first else level.name), plan.instances(level.name)
    runs = [run for stream in streams for run in stream.units]
    if runs == [(0, count, 1)]:
        return
    covered = np.zeros(count, dtype=np.min_scalar_type(len(runs)))
    for run in runs:
        if not run[2]:
            raise PlanError(f"units {run} of a stream have step 0")
        numbers = range(*run)
        outside = next((i for i in (*numbers[:1], *numbers[-1:]) if not 0 <= i < count), None)
        if outside is not None:
            raise PlanError(f"stream of {word} {outside}, but there are {count} {word}s")
        covered[slice(*run) if run[2] > 0 else np.arange(*run)] += 1
    least = 0 if plan.partial else 1
    if (wrong := (covered < least) | (covered > 1)).any():
        at = int(np.argmax(wrong))
        raise PlanError(f"{word} {at} has {int(covered[at])} streams, not one")


def check_owners(plan: Plan, stream: Stream) -> None:
    """Check that what a stream names without saying whose it is belongs to its own level or to one above; a
    group to its own, and so does a tile that gets new versions."""
    level_of = {
        (kind, thing.name): thing.level
        for kind in ("tile", "channel", "flag", "group")
        for thing in getattr(plan, f"{kind}s")
    }
    fresh = {
        w.tile
        for other in plan.streams
        for s in statements(other.body)
        if getattr(s, "fresh", False) and (w := write_of(s)) is not None
    }
    for statement in statements(stream.body):
        used = [("tile", region.tile) for region in regions_of(statement) if region.at is None]
        # A signal says whose flag it means.
        kinds = ("channel", "group", *(() if hasattr(statement, "to") else ("flag",)))
        used += [(kind, name) for kind in kinds for name in _REFERRED[kind](statement)]
        for kind, name in used:
            level = level_of.get((kind, name), stream.level)
            if level == stream.level:
                continue
            own, other = plan.level(stream.level).name, plan.level(level).name
            if plan.per(stream.level, level) is None or kind == "group":
                raise PlanError(
                    f"{kind} '{name}' is of level '{other}', this stream of level '{own}': "
                    + statement_text(statement),
                    place=statement.source,
                    advice="name what belongs to its own level or to one above, or say whose it is with at=",
                )
            if name in fresh and kind == "tile":
                raise PlanError(
                    f"tile '{name}' of level '{other}' gets new versions, so only its own level can name it: "
                    + statement_text(statement),
                    place=statement.source,
                )


def check_statement(statement: Any, known: Mapping[str, Mapping[str, Any]]) -> None:
    """Check one statement, with what is declared of each kind by name."""
    if getattr(statement, "fresh", False) and known["shared"]:
        write = write_of(statement)
        if write is not None and write.tile in known["shared"]:
            raise PlanError(f"a new version of shared tile '{write.tile}'", place=statement.source)
    for spec in parts(type(statement)):
        if spec.role in ("channel", "flag", "group", "transport"):
            _one_of(getattr(statement, spec.name), known[spec.role], spec.role, statement)
    rule = _RULES.get(type(statement))
    if rule is not None:
        rule(statement, known)


def _one_of(name: str, known: Any, what: str, statement: Any) -> None:
    if name not in known:
        advice = did_you_mean(name, known, what=f"{what}s")
        raise PlanError(f"there is no {what} '{name}'", place=statement.source, advice=advice)


def _compute(statement: Compute, known: Any) -> None:
    rule = OPERATIONS.find(statement.operation, statement.source)
    _one_of(statement.engine, ENGINES, "engine", statement)
    if len(statement.reads) != rule.operands >= 0:
        message = f"{rule.name} takes {rule.operands} operands, not {len(statement.reads)}"
        raise PlanError(message, place=statement.source)
    for attribute, _ in statement.attributes:
        if attribute not in rule.attributes:
            raise PlanError(f"{rule.name} has no attribute '{attribute}'", place=statement.source)
    if len(dict(statement.attributes)) < len(statement.attributes):
        raise PlanError(f"{rule.name} has an attribute twice", place=statement.source)


def _loop(statement: Loop, known: Any) -> None:
    if constant(statement.step) == 0:
        raise PlanError("a loop with step 0 never ends", place=statement.source)


def _receive_any(statement: ReceiveAny, known: Any) -> None:
    channel = known["channel"][statement.channel]
    wrong = [m for m in statement.members if not 0 <= m < channel.members]
    if wrong or not statement.members:
        which = f"member {wrong[0]}" if wrong else "no members to receive from"
        raise PlanError(
            f"channel '{channel.name}' has {channel.members} members; this command names {which}: "
            + statement_text(statement),
            place=statement.source,
        )


def _collective(statement: Collective, known: Any) -> None:
    _one_of(statement.kind, COLLECTIVES, "collective", statement)
    if statement.kind != "barrier" and (statement.read is None or statement.write is None):
        raise PlanError(f"{statement.kind} needs a region to read and one to write", place=statement.source)
    _one_of(statement.reduction, REDUCTIONS, "reduction", statement)


_RULES: dict[type, Callable[[Any, Any], None]] = {
    Compute: _compute,
    Loop: _loop,
    ReceiveAny: _receive_any,
    Collective: _collective,
}
"""What is wrong with a statement besides names that are not declared."""
