"""Instances follow their instructions, and events come in order of time."""

from __future__ import annotations

from megatile.records.marks import apart, inlined, jit, prefetch
from megatile.sim.engine.bindings import bind_all, end_handles
from megatile.sim.engine.completion import retire
from megatile.sim.engine.dispatch import granted, raise_flag, ready
from megatile.sim.engine.events import pop
from megatile.sim.engine.instances import (
    begin_launch,
    change_kernels,
    dispatch,
    end_kernel,
    extend_launch,
    instance_over,
)
from megatile.sim.engine.operations import issue_command
from megatile.sim.engine.queues import decide
from megatile.sim.engine.values import evaluate, misuse
from megatile.sim.instructions import (
    AGAIN,
    BRANCH,
    END,
    ENTER,
    FREE,
    JUMP,
    MERGE,
    PAUSE_ALL_BUSY,
    PAUSE_NEVER,
    TEST,
    BranchRow,
    FreeRow,
    JumpRow,
    LoopAgainRow,
    LoopEnterRow,
    LoopTestRow,
    MergeRow,
)
from megatile.sim.state import (
    AHEAD,
    BEGINS,
    BLOCKED,
    BUDGET,
    DECISIONS,
    DISPATCH,
    DMA,
    DONE,
    ENDED,
    FINISHED,
    GO_ON,
    HOSTS,
    KERNELS,
    NO_FUNCTION,
    NONE,
    OVERS,
    PAUSED,
    PHASE,
    REQUESTS,
    SIGNALS,
    STOPPED,
    TOO_FAR_AHEAD,
    CommandRow,
    State,
)


@inlined
def control(s: State, unit_id: int, pc: int) -> int:
    """Do one instruction of control flow; the next one's place. A loop has its index, stop, step and number
    of rounds one after another in the frame."""
    kind = s.code[pc].kind
    frame = s.units[unit_id].frame
    if kind == TEST:
        test = LoopTestRow.of(s.code[pc])
        loop = s.frames.at(frame + test.index)
        return pc + 1 if (loop[0] < loop[1] if loop[2] > 0 else loop[0] > loop[1]) else test.exit
    if kind == AGAIN:
        again = LoopAgainRow.of(s.code[pc])
        if again.bindings + again.integers > 0:
            bind_all(s, unit_id, again.bindings, again.integers)
        if again.ended > 0:
            end_handles(s, unit_id, again.ended)
        loop = s.frames.at(frame + again.index)
        loop[0] += loop[2]
        loop[3] += 1
        return again.test
    if kind == BRANCH:
        branch = BranchRow.of(s.code[pc])
        return pc + 1 if evaluate(s, branch.condition, frame) != 0 else branch.orelse
    if kind == JUMP:
        return JumpRow.of(s.code[pc]).target
    if kind == MERGE:
        merge = MergeRow.of(s.code[pc])
        bind_all(s, unit_id, merge.bindings, merge.integers)
        end_handles(s, unit_id, merge.ended)
        return pc + 1
    if kind == ENTER:
        enter = LoopEnterRow.of(s.code[pc])
        bind_all(s, unit_id, enter.bindings, enter.integers)
        loop = s.frames.at(frame + enter.index)
        start = evaluate(s, enter.start, frame)
        stop = evaluate(s, enter.stop, frame)
        loop[2] = evaluate(s, enter.step, frame)
        loop[3] += 1
        loop[1] = stop
        loop[0] = start
        end_handles(s, unit_id, enter.ended)
        return pc + 1
    if kind >= FREE:  # or END, which comes next and has the same operand
        end_handles(s, unit_id, FreeRow.of(s.code[pc]).ended)
        return pc + 1
    misuse(s, pc, unit_id, NO_FUNCTION, kind, 0)
    return pc


@jit
def far_ahead(s: State, unit_id: int, pc: int) -> int:
    """Return whether all that comes after a round of a loop has to wait for commands that are under way: then
    it is early enough to issue it when the last of those on some engine has its turn.

    An engine that is idle does not matter if only the instance has it: its work takes no turns with others,
    so that its times are the same whenever it is issued. If others have it too the instance goes on, however
    far another engine falls behind; when that is too far for the memory, the run stops."""
    unfinished = s.units[unit_id].unfinished
    if s.top_command >= s.max_in_flight and unfinished >= s.max_in_flight >> 6:
        misuse(s, pc, unit_id, TOO_FAR_AHEAD, unfinished, 0)
    again = LoopAgainRow.of(s.code[pc])
    if again.pause == PAUSE_NEVER:
        return 0
    engines = s.lists.at(again.engines)
    busy = 0
    for i in range(engines[0]):
        engine_queue = s.engine_queues[s.units[unit_id].engine_queues + engines[1 + i]]
        if engine_queue.last != NONE:
            busy = 1
        elif again.pause == PAUSE_ALL_BUSY or engines[1 + i] >= DMA or engine_queue.server != NONE:
            return 0
    return busy


@inlined
def raise_floor(s: State, unit_id: int, pc: int) -> None:
    """Note before when nothing of an instance accesses tiles any more: the first of its engines is free."""
    again = LoopAgainRow.of(s.code[pc])
    engines = s.lists.at(again.engines)
    unit = s.units[unit_id]
    floor = s.engine_queues[unit.engine_queues + engines[1]].free_at
    for i in range(1, engines[0]):
        floor = min(floor, s.engine_queues[unit.engine_queues + engines[1 + i]].free_at)
    unit.floor = max(unit.floor, floor)


@jit
def issue(s: State, unit_id: int) -> int:
    """Follow an instance until something holds it up; why the engine must return to Python, or GO_ON."""
    unit = s.units[unit_id]
    while True:
        if s.steps <= 0:
            return STOPPED if s.stopped != 0 else BUDGET
        s.steps -= 1
        pc = unit.pc
        kind = s.code[pc].kind
        if kind < END:
            unit.pc = control(s, unit_id, pc)
            if s.todo_count > 0:
                drain(s)
            if kind == AGAIN and LoopAgainRow.of(s.code[pc]).engines != NONE:
                if LoopAgainRow.of(s.code[pc]).floor:
                    raise_floor(s, unit_id, pc)
                if unit.unfinished >= s.run_ahead and far_ahead(s, unit_id, pc):
                    unit.state = AHEAD
                    return GO_ON
            continue
        if kind == END:
            control(s, unit_id, pc)
            drain(s)
            if unit.kernel > 0:
                end_kernel(s, unit_id)
            unit.state = DONE
            extend_launch(s, unit_id, unit.now)
            retire(s, unit_id)
            return GO_ON
        outcome = issue_command(s, unit_id, pc)
        if outcome > 0:
            return outcome
        if s.todo_count > 0:
            drain(s)
        if outcome == BLOCKED:
            return GO_ON
        unit.pc = pc + 1


@apart
def drain(s: State) -> None:
    """Start the commands that have become ready."""
    while s.todo_count > 0:
        s.todo_count -= 1
        ready(s, s.todo[s.todo_count])


@jit
def run(s: State) -> int:
    """Go on until nothing can, a launch has ended, the budget is spent, or Python is needed."""
    while True:
        while s.ready_count > 0:
            unit_id = s.ready[s.ready_count - 1]
            s.ready_count -= 1
            outcome = issue(s, unit_id)
            if outcome != GO_ON:
                s.ready[s.ready_count] = unit_id
                s.ready_count += 1
                return outcome
        if s.event_count == 0:
            return FINISHED
        if s.stopped != 0:
            return STOPPED
        time = s.events[0].time
        if time > s.until:
            return PAUSED
        phase = s.events[0].key // PHASE
        what = s.events[0].subject
        prefetch(s, s.commands[what], CommandRow.kind)  # of most events it is a command
        prefetch(s, s.commands[what], CommandRow.accesses)
        prefetch(s, s.commands[what], CommandRow.path)
        pop(s)
        s.clock = time
        if phase == HOSTS:
            s.ended = what
            return ENDED
        if phase == REQUESTS:
            granted(s, what, time)
        elif phase == SIGNALS:
            raise_flag(s, what, time)
        elif phase == DISPATCH:
            dispatch(s, what, time)
        elif phase == KERNELS:
            change_kernels(s, what, time)
        elif phase == DECISIONS:
            decide(s, what, time)
        elif phase == OVERS:
            instance_over(s, what, time)
        elif phase == BEGINS and what != NONE:
            begin_launch(s, what, time)
        if s.todo_count > 0:
            drain(s)
