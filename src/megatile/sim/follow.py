"""Following a stream's control flow: from parametric statements to the commands that are really issued.

One rule per statement type. The same code follows all units of a stream at once (``cohort.unit`` is an array,
masks say who takes part) or a single unit (``cohort.unit`` is an int, and so is every field of a row), which
is needed where the course depends on a receive-from-any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from megatile.plan import model as pm
from megatile.sim.cohort import Cohort
from megatile.sim.rows import RELEASED, Mask, Number, Row, Walk


def walk(c: Cohort) -> Walk:
    """All rows of a cohort, in issue order."""
    yield from block(c, c.stream().body, None)


def block(c: Cohort, body: tuple[Any, ...], mask: Mask) -> Walk:
    for statement in body:
        rule = _RULES.get(type(statement))
        if rule is None:
            raise pm.PlanError(f"{type(statement).__name__} cannot be simulated", place=statement.source)
        yield from rule(c, statement, mask)


def scoped(c: Cohort, body: tuple[Any, ...], mask: Mask, keep: Callable[[], Any] | None) -> Walk:
    """A body whose own names end with it; ``keep`` binds what lives on before they do."""
    before_names, before_env = set(c.names), tuple(c.env)
    yield from block(c, body, mask)
    if keep is not None:
        keep()
    own = [name for name in c.names if name not in before_names]
    if own:
        yield from release(c, own, mask)
        for name in own:
            c.names.pop(name, None)
    if len(c.env) > len(before_env):
        for name in [n for n in c.env if n not in before_env]:
            del c.env[name]


def release(c: Cohort, names: list[str], mask: Mask) -> Walk:
    """End names; rows return the credits of slots that nobody holds any more."""
    for name in names:
        storage = c.names.get(name)
        if storage is not None:
            yield from _released(c.holds.drop(storage, mask))


def _released(slots: Iterable[tuple[Number, Mask]]) -> Walk:
    for slot, who in slots:
        row = Row(RELEASED, who)
        row.slot = slot
        yield row


# --- rules: one per statement type ---------------------------------------------------------------------


def _compute(c: Cohort, s: pm.Compute, mask: Mask) -> Walk:
    row = Row(s, mask)
    reads = [c.access(r, False) for r in s.reads]
    if s.fresh:
        c.begin_version(s.write.tile, mask)
    elif s.reads and s.write is s.reads[0]:
        # In place: the same block is read and written, so it is worked out once.
        row.accesses = (*reads, reads[0]._replace(write=True))
        row.flops, row.nbytes = c.value(s.work.flops), c.value(s.work.bytes)
        yield row
        return
    row.accesses = (*reads, c.access(s.write, True))
    row.flops, row.nbytes = c.value(s.work.flops), c.value(s.work.bytes)
    yield row


def _send(c: Cohort, s: pm.Send, mask: Mask) -> Walk:
    row = Row(s, mask)
    channel = c.channels[s.channel]
    row.to, row.member = c.value(s.to), c.value(s.member)
    c.check_send(s, channel, row.to, row.member, mask)
    row.queue = c.queue(s, channel, row.to, row.member)
    row.number = c.sent[s.channel].next(row.queue, mask)
    row.accesses = (c.access(s.read, False),)
    row.nbytes = c.value(s.work.bytes)
    c.check_size(channel, row.nbytes, mask, received=False)
    yield row


def _receive(c: Cohort, s: pm.Receive, mask: Mask) -> Walk:
    row = Row(s, mask)
    channel = c.channels[s.channel]
    row.to, row.member = c.unit, c.value(s.member)
    row.queue = c.queue(s, channel, row.to, row.member)
    row.number = c.taken[s.channel].next(row.queue, mask)
    _take_slot(c, row, channel, mask)
    yield row


def _take_slot(c: Cohort, row: Row, channel: pm.Channel, mask: Mask) -> None:
    s = row.statement
    row.slot = c.storages.slot(channel.name, row.member, row.number)
    row.nbytes = c.value(s.work.bytes)
    c.check_size(channel, row.nbytes, mask, received=True)
    if s.into is not None:
        if s.fresh:
            c.begin_version(s.into.tile, mask)
        row.accesses = (c.access(s.into, True),)
    else:
        c.bind(s.name, row.slot, mask)


def _receive_any(c: Cohort, s: pm.ReceiveAny, mask: Mask) -> Walk:
    if c.vector:
        raise TypeError("units with a receive-from-any are followed one by one")
    row = Row(s, mask)
    channel = c.channels[s.channel]
    row.to = c.unit
    row.value = tuple(c.taken[s.channel].peek(c.unit * channel.members + m) for m in s.members)
    chosen = yield row
    c.env[s.chosen] = chosen
    row.member = chosen
    row.queue = c.unit * channel.members + chosen
    row.number = c.taken[s.channel].next(row.queue, mask)
    _take_slot(c, row, channel, mask)


def _read_scalar(c: Cohort, s: pm.ReadScalar, mask: Mask) -> Walk:
    row = Row(s, mask)
    row.accesses = (c.access(s.read, False),)
    count = c.reads.get(s.name, 0)
    c.reads[s.name] = c.choose(mask, count + 1, count)
    new = c.scalars(s, c.unit, count)
    c.env[s.name] = c.choose(mask, new, c.env.get(s.name, new))
    yield row


def _signal(c: Cohort, s: pm.Signal, mask: Mask) -> Walk:
    row = Row(s, mask)
    row.to, row.member, row.value = c.value(s.to), c.value(s.member), c.value(s.amount)
    yield row


def _wait(c: Cohort, s: pm.Wait, mask: Mask) -> Walk:
    row = Row(s, mask)
    row.to, row.member, row.value = c.unit, c.value(s.member), c.value(s.value)
    yield row


def _collective(c: Cohort, s: pm.Collective, mask: Mask) -> Walk:
    row = Row(s, mask)
    group = next(g for g in c.plan.groups if g.name == s.group)
    c.check_meeting(s, group, mask)
    row.group = c.value(group.key)
    row.number = c.met[s.group]
    c.met[s.group] = c.choose(mask, row.number + 1, row.number)
    reads = () if s.read is None else (c.access(s.read, False),)
    writes = () if s.write is None else (c.access(s.write, True),)
    row.accesses = (*reads, *writes)
    row.nbytes = c.value(s.work.bytes)
    yield row


def _free(c: Cohort, s: pm.Free, mask: Mask) -> Walk:
    yield from release(c, list(s.names), mask)
    c.end(s.names, mask)


def _loop(c: Cohort, s: pm.Loop, mask: Mask) -> Walk:
    start, stop, step = c.value(s.start), c.value(s.stop), c.value(s.step)
    outer_env = {n: c.env[n] for n in (s.index,) if n in c.env}
    for carry in s.carries:
        if isinstance(carry, pm.CarryTile):
            c.bind(carry.name, c.storage_of(carry.init), mask)
        else:
            c.env[carry.name] = c.choose(mask, c.value(carry.init), c.env.get(carry.name, 0))
    yield from release(c, list(s.frees), mask)
    c.end(s.frees, mask)
    index = start
    while True:
        going = (index < stop) if not isinstance(step, np.ndarray) and step > 0 else (index > stop)
        if isinstance(step, np.ndarray):
            going = np.where(step > 0, index < stop, index > stop)
        inner = mask
        if isinstance(going, np.ndarray):
            inner = going if mask is None else (mask & going)
            if not inner.any():
                break
            if mask is None and inner.all():
                inner = None
        elif not going:
            break
        c.env[s.index] = index
        yield from _iteration(c, s, inner)
        index = index + step
    c.env.pop(s.index, None)
    c.env.update(outer_env)


def _iteration(c: Cohort, s: pm.Loop, mask: Mask) -> Walk:
    if not s.carries:
        yield from scoped(c, s.body, mask, None)
        return
    old: list[tuple[Number, Mask]] = []

    def keep() -> None:
        tiles = [(x, c.storage_of(x.next)) for x in s.carries if isinstance(x, pm.CarryTile)]
        ints = [(x, c.value(x.next)) for x in s.carries if isinstance(x, pm.CarryInt)]
        for carry, storage in tiles:
            # A body may already have freed the carried name: then nothing is held for its old meaning.
            if carry.name in c.names:
                old.append((c.names[carry.name], mask))
            c.bind(carry.name, storage, mask)
        for counted, number in ints:
            c.env[counted.name] = c.choose(mask, number, c.env.get(counted.name, number))

    yield from scoped(c, s.body, mask, keep)
    for storage, who in old:
        yield from _released(c.holds.drop(storage, who))


def _if(c: Cohort, s: pm.If, mask: Mask) -> Walk:
    condition = c.value(s.condition)
    if isinstance(condition, np.ndarray):
        yes = condition != 0
        no = ~yes
        branches = [(s.body, yes if mask is None else yes & mask, True)]
        branches.append((s.orelse, no if mask is None else no & mask, False))
    else:
        branches = [(s.body, mask, True)] if condition else [(s.orelse, mask, False)]
    for body, who, then in branches:
        if isinstance(who, np.ndarray) and not who.any():
            continue
        everyone = isinstance(who, np.ndarray) and mask is None and who.all()
        yield from _branch(c, s, body, None if everyone else who, then)


def _branch(c: Cohort, s: pm.If, body: tuple[Any, ...], mask: Mask, then: bool) -> Walk:
    merged: list[tuple[str, Number, bool]] = []

    def keep() -> None:
        for merge in s.merges:
            if isinstance(merge, pm.MergeTile):
                merged.append((merge.name, c.storage_of(merge.then if then else merge.orelse), True))
            else:
                merged.append((merge.name, c.value(merge.then if then else merge.orelse), False))
        for name, storage, is_tile in merged:
            if is_tile:
                c.holds.hold(storage, mask)
                if name in before:
                    ended.extend(c.holds.drop(c.names[name], mask))

    before = set(c.names)
    ended: list[tuple[Number, Mask]] = []
    yield from scoped(c, body, mask, keep)
    yield from _released(ended)
    for name, meaning, is_tile in merged:
        table = c.names if is_tile else c.env
        table[name] = c.choose(mask, meaning, table.get(name, meaning))


_RULES: dict[type, Callable[[Cohort, Any, Mask], Walk]] = {
    pm.Compute: _compute,
    pm.Send: _send,
    pm.Receive: _receive,
    pm.ReceiveAny: _receive_any,
    pm.ReadScalar: _read_scalar,
    pm.Signal: _signal,
    pm.Wait: _wait,
    pm.Collective: _collective,
    pm.Free: _free,
    pm.Loop: _loop,
    pm.If: _if,
}
