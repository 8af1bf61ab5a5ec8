"""Names of messages: which slot each means, and when its credit goes back."""

from __future__ import annotations

from megatile.sim.engine.accesses import forget, meaning
from megatile.sim.engine.commands import depend, new_command, soon
from megatile.sim.engine.rows import command_row, held_row, jit, launch_row, log_row, unit_row
from megatile.sim.engine.values import evaluate
from megatile.sim.state import *


@jit
def hold(s, g, storage):
    first = s[launch_row(s, s[unit_row(s, g) + LAUNCH]) + FIRST_SLOT]
    if storage >= first:
        s[held_row(s, s[unit_row(s, g) + HOLD] + storage - first) + HELD] += 1


@jit
def drop(s, g, storage):
    """One name less on a slot; when none is left, its credit goes back after all that uses it."""
    first = s[launch_row(s, s[unit_row(s, g) + LAUNCH]) + FIRST_SLOT]
    if storage < first:
        return
    h = s[unit_row(s, g) + HOLD] + storage - first
    s[held_row(s, h) + HELD] -= 1
    if s[held_row(s, h) + HELD] > 0:
        return
    c = new_command(s, RELEASE, g, s[unit_row(s, g) + PC])
    m = command_row(s, c)
    s[m + MESSAGE_QUEUE] = s[held_row(s, h) + HELD_QUEUE]
    s[m + MESSAGE] = s[held_row(s, h) + HELD_MESSAGE]
    s[m + AMOUNT] = s[held_row(s, h) + HELD_CREDIT]
    head = s[unit_row(s, g) + STORE] + storage
    e = s[s[T_HEADS] + head]
    while e != NONE:
        after = s[log_row(s, e) + LOG_NEXT]
        depend(
            s, c, s[log_row(s, e) + LOG_TIME], s[log_row(s, e) + LOG_COMMAND], s[log_row(s, e) + LOG_WHY], 0
        )
        forget(s, e)
        e = after
    s[s[T_HEADS] + head] = NONE
    if s[m + NEED] == 0:
        soon(s, c)


@jit
def bind(s, g, slot, storage):
    """A name means a storage from here on (which is held already)."""
    at = s[unit_row(s, g) + FRAME] + slot
    old = s[s[T_FRAME] + at]
    s[s[T_FRAME] + at] = storage
    if old != NONE:
        drop(s, g, old)


@jit
def bind_all(s, g, moves, integers):
    """The carried or merged names of a loop or branch: all new meanings are found before any is bound."""
    frame = s[unit_row(s, g) + FRAME]
    n = s[s[T_LISTS] + moves]
    for i in range(n):
        at = moves + 1 + 3 * i
        storage = meaning(s, g, s[s[T_LISTS] + at + 1], s[s[T_LISTS] + at + 2])
        s[s[T_SCRATCH] + BINDS + i] = storage
    k = s[s[T_LISTS] + integers]
    for i in range(k):
        s[s[T_SCRATCH] + BINDS + n + i] = evaluate(s, s[s[T_LISTS] + integers + 2 + 2 * i], frame)
    for i in range(n):
        hold(s, g, s[s[T_SCRATCH] + BINDS + i])
    for i in range(k):
        s[s[T_FRAME] + frame + s[s[T_LISTS] + integers + 1 + 2 * i]] = s[s[T_SCRATCH] + BINDS + n + i]
    for i in range(n):
        bind(s, g, s[s[T_LISTS] + moves + 1 + 3 * i], s[s[T_SCRATCH] + BINDS + i])


@jit
def end_names(s, g, names):
    for i in range(s[s[T_LISTS] + names]):
        bind(s, g, s[s[T_LISTS] + names + 1 + i], NONE)
