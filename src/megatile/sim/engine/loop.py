"""Instances follow their instructions, and events come in order of time."""

from __future__ import annotations

from megatile.sim.engine.endings import let_go
from megatile.sim.engine.events import pop
from megatile.sim.engine.instances import begin_launch, dispatch, ended, over
from megatile.sim.engine.messages import do_any, do_receive, do_send
from megatile.sim.engine.names import bind_all, end_names
from megatile.sim.engine.operations import do_copy, do_meet, do_read, do_signal, do_wait, do_work
from megatile.sim.engine.queues import decide
from megatile.sim.engine.rows import (
    apart,
    code_row,
    command_row,
    inlined,
    jit,
    prefetch,
    tail_row,
    unit_row,
)
from megatile.sim.engine.turns import granted, raise_flag, ready
from megatile.sim.engine.values import ask, evaluate
from megatile.sim.state import *


@inlined
def control(s, g, pc):
    """One instruction of control flow; the next one's place."""
    code = code_row(s, pc)
    frame = s[unit_row(s, g) + FRAME]
    kind = s[code + KIND]
    if kind == TEST:
        i = frame + s[code + A]
        at = s[s[T_FRAME] + i]
        stop = s[s[T_FRAME] + i + 1]
        step = s[s[T_FRAME] + i + 2]
        return pc + 1 if (at < stop if step > 0 else at > stop) else s[code + B]
    if kind == AGAIN:
        if s[code + C] + s[code + D] > 0:
            bind_all(s, g, s[code + C], s[code + D])
        if s[code + E] > 0:
            end_names(s, g, s[code + E])
        i = frame + s[code + A]
        s[s[T_FRAME] + i] += s[s[T_FRAME] + i + 2]
        s[s[T_FRAME] + i + 3] += 1
        return s[code + B]
    if kind == BRANCH:
        return pc + 1 if evaluate(s, s[code + A], frame) != 0 else s[code + B]
    if kind == JUMP:
        return s[code + A]
    if kind == MERGE:
        bind_all(s, g, s[code + A], s[code + B])
        end_names(s, g, s[code + C])
        return pc + 1
    if kind == ENTER:
        bind_all(s, g, s[code + E], s[code + F])
        i = frame + s[code + A]
        start = evaluate(s, s[code + B], frame)
        stop = evaluate(s, s[code + C], frame)
        s[s[T_FRAME] + i + 2] = evaluate(s, s[code + D], frame)
        s[s[T_FRAME] + i + 3] += 1
        s[s[T_FRAME] + i + 1] = stop
        s[s[T_FRAME] + i] = start
        end_names(s, g, s[code + G])
        return pc + 1
    end_names(s, g, s[code + A])  # FREE and END
    return pc + 1


@jit
def far_ahead(s, g, pc):
    """Whether all that comes after a round of a loop has to wait for commands that are under way: then it is
    early enough to issue it when the last of those on some engine has its turn."""
    at = s[T_LISTS] + s[code_row(s, pc) + F]
    if s[code_row(s, pc) + F] == NONE:
        return 0
    for i in range(s[at]):
        if s[tail_row(s, s[unit_row(s, g) + ENGINES] + s[at + 1 + i]) + 1] == NONE:
            return 0
    return 1


@jit
def issue(s, g):
    """Follow an instance until something holds it up; why the engine must return to Python, or GO_ON."""
    u = unit_row(s, g)
    while True:
        if s[STEPS] <= 0:
            return BUDGET
        if s[SPARE] <= 0 and no_room(s):
            return GROW
        s[SPARE] -= 1
        s[STEPS] -= 1
        pc = s[u + PC]
        kind = s[code_row(s, pc) + KIND]
        if kind < END:
            s[u + PC] = control(s, g, pc)
            if s[TODO] > 0:
                drain(s)
            if kind == AGAIN and s[u + OPEN] >= s[MOST_OPEN] and far_ahead(s, g, pc):
                s[u + STATE] = AHEAD
                return GO_ON
            continue
        if kind == END:
            control(s, g, pc)
            drain(s)
            s[u + STATE] = DONE
            ended(s, g, s[u + NOW])
            let_go(s, g)
            return GO_ON
        if kind == WORK:
            outcome = do_work(s, g, pc)
        elif kind == SEND:
            outcome = do_send(s, g, pc)
        elif kind == RECEIVE:
            outcome = do_receive(s, g, pc)
        elif kind == COPY:
            outcome = do_copy(s, g, pc)
        elif kind == SIGNAL:
            outcome = do_signal(s, g, pc)
        elif kind == WAIT:
            outcome = do_wait(s, g, pc)
        elif kind == MEET:
            outcome = do_meet(s, g, pc)
        elif kind == READ:
            outcome = do_read(s, g, pc)
        else:
            outcome = do_any(s, g, pc)
        if outcome > 0:
            return outcome
        if s[TODO] > 0:
            drain(s)
        if outcome == HELD_UP:
            return GO_ON
        s[u + PC] = pc + 1


@apart
def drain(s):
    """Start the commands that have become ready."""
    while s[TODO] > 0:
        s[TODO] -= 1
        ready(s, s[s[T_TODO] + s[TODO]])


@jit
def no_room(s):
    """Whether a table may be full before the next instruction or event is done; where there is plenty of room
    it is looked at again after a number of them (SPARE)."""
    s[SPARE] = 1
    if tight(s, 1) == 0 and tight(s, SELDOM) == 0:
        s[SPARE] = SELDOM
    return tight(s, 1)


@jit
def tight(s, times):
    """Whether so many instructions or events may fill a table: each has some new commands, each of which may
    conflict with all accesses, and commands that are there may all begin."""
    live = s[LIVE_COMMANDS]
    most = 64 * times
    return (
        2 * live + most > s[N_COMMAND]
        or s[LIVE_NODES] + times * (s[LIVE_LOGS] + most) > s[N_NODE]
        or s[LIVE_LOGS] + most > s[N_LOG]
        or s[EVENTS] + live + s[SEATS] + most > s[N_HEAP]
        or live + most > s[N_TODO]
        or (s[RECORDING] > 0 and s[RECORDED] + 2 * live + 2 * most > s[N_RECORD])
        or (s[RECORDING] == 2 and s[AUX] + 4096 * times > s[N_AUX])
        or s[LIVE_SPANS] + most > s[N_SPAN]
    )


@jit
def run(s):
    """Go on until nothing can, a launch has ended, the budget is spent, or Python is needed."""
    while True:
        while s[READIES] > 0:
            g = s[s[T_READY] + s[READIES] - 1]
            s[READIES] -= 1
            outcome = issue(s, g)
            if outcome != GO_ON:
                s[s[T_READY] + s[READIES]] = g
                s[READIES] += 1
                return outcome
        if s[EVENTS] == 0:
            return FINISHED
        if s[SPARE] <= 0 and no_room(s):
            return GROW
        s[SPARE] -= 1
        time = s[s[T_HEAP]]
        if time > s[UNTIL]:
            return PAUSED
        phase = s[s[T_HEAP] + 1] // PHASE
        what = s[s[T_HEAP] + 3]
        prefetch(s, command_row(s, what))  # of most events it is a command
        prefetch(s, command_row(s, what) + ENTRIES)
        prefetch(s, command_row(s, what) + PATH)
        pop(s)
        s[CLOCK] = time
        if phase == HOSTS:
            return ask(s, ENDED, what, 0, 0, 0, 0)
        if phase == REQUESTS:
            granted(s, what, time)
        elif phase == SIGNALS:
            raise_flag(s, what, time)
        elif phase == DISPATCH:
            dispatch(s, what, time)
        elif phase == DECISIONS:
            decide(s, what, time)
        elif phase == OVERS:
            over(s, what, time)
        elif phase == BEGINS and what != NONE:
            begin_launch(s, what, time)
        if s[TODO] > 0:
            drain(s)
