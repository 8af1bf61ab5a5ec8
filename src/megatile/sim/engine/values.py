"""Expressions of an instance, and figures of the machine that have been asked for."""

from __future__ import annotations

from megatile.records.marks import apart, call_python, inlined, jit
from megatile.records.rows import Words
from megatile.sim.instructions import CACHED, CONSTANT, LOAD, LOOKUP, NESTED, PUSH, SELECT, STOP, SUM, SYMBOL
from megatile.sim.state import INFINITE, LOW, MISUSE, NONE, STOPPED, State


@jit
def serialise(amount: int, rate: float) -> int:
    """Return picoseconds for an amount at a rate per second, rounded up."""
    if amount <= 0 or rate == INFINITE:
        return 0
    return -int((-(float(amount) * 1e12)) // rate)


@jit
def answer_hash(question: int, a: int, b: int, c: int, d: int) -> int:
    """Return where a question's row is in `answers`, before it is cut to size; also of columns of
    questions."""
    h = (a & LOW) * 2654435761 + (b % 1000003) * 2246822519 + (c & LOW) * 3266489917 + (d & LOW) * 668265263
    return (h ^ (h >> 17)) + question


@jit
def find(s: State, question: int, a: int, b: int, c: int, d: int) -> int:
    """Return the row of `answers` that answers a question to the machine, or NONE."""
    mask = s.answers.size - 1
    answer_id = answer_hash(question, a, b, c, d) & mask
    while s.answers[answer_id].question != NONE:
        answer = s.answers[answer_id]
        if (
            answer.question == question
            and answer.a == a
            and answer.b == b
            and answer.c == c
            and answer.d == d
        ):
            return answer_id
        answer_id = (answer_id + 1) & mask
    return NONE


@jit
def figure(s: State, question: int, a: int, b: int, c: int, d: int, e: int) -> int:
    """Return a figure of the machine, asked for where it is not known yet; NONE where that fails."""
    answer_id = find(s, question, a, b, c, d)
    if answer_id == NONE:
        return ask(s, question, a, b, c, d, e)
    return s.answers[answer_id].value


@apart
def ask(s: State, reason: int, a: int, b: int, c: int, d: int, e: int) -> int:
    """Call Python for a figure; it is cached in `answers` or elsewhere. Where it fails the run has to stop:
    ``stopped`` says so."""
    asked = s.asked[0]
    asked.update(reason=reason, a=a, b=b, c=c, d=d, e=e)
    return call_python(s)


@inlined
def evaluate(s: State, expression_id: int, frame: int) -> int:
    """Return the value of an expression for the instance whose integers begin at ``frame``."""
    kind = s.expressions[expression_id].kind
    value = s.expressions[expression_id].value
    if kind == CONSTANT:
        return value
    if kind == SYMBOL:
        return s.frames[frame + value]
    if kind == SUM:
        return s.frames[frame + s.bytecode[value].operation] + s.bytecode[value].operand
    if kind == CACHED:
        return cached_value(s, value, frame, s.scratch.at(-1))
    return compute(s, value, frame, s.scratch.at(-1))


@apart
def cached_value(s: State, at: int, frame: int, top: Words) -> int:
    """Return the value of bytecode that is cached, for the round of the loop that it depends on."""
    cell = s.frames.at(frame + s.bytecode[at].operation)
    turn = s.frames[frame + s.bytecode[at].operand]
    if cell[1] != turn:
        cell[0] = compute(s, at + 1, frame, top)
        cell[1] = turn
    return cell[0]


@apart
def compute(s: State, at: int, frame: int, top: Words) -> int:
    """Return the value of bytecode, on a stack above ``top``."""
    while True:
        operation = s.bytecode[at].operation
        if operation == STOP:
            return top[0]
        if operation == PUSH:
            top = top.at(1)
            top[0] = s.bytecode[at].operand
        elif operation == LOAD:
            top = top.at(1)
            top[0] = s.frames[frame + s.bytecode[at].operand]
        elif operation == NESTED:
            value = cached_value(s, s.bytecode[at].operand, frame, top)
            top = top.at(1)
            top[0] = value
        elif operation == LOOKUP:
            first = s.bytecode[at].operand
            index = min(max(top[0], 0), s.constants[first] - 1)
            top[0] = s.constants[first + 1 + index]
        elif operation == SELECT:
            top = top.at(-2)
            if top[0] == 0:
                top[0] = top[2]
            else:
                top[0] = top[1]
        else:
            top = top.at(-1)
            a = top[0]
            b = top[1]
            if operation == 0:
                top[0] = a + b
            elif operation == 1:
                top[0] = a - b
            elif operation == 2:
                top[0] = a * b
            elif operation == 3:
                top[0] = a // b if b != 0 else 0
            elif operation == 4:
                top[0] = a % b if b != 0 else 0
            elif operation == 5:
                top[0] = a & b
            elif operation == 6:
                top[0] = a | b
            elif operation == 7:
                top[0] = a ^ b
            elif operation == 8:
                top[0] = a << b
            elif operation == 9:
                top[0] = a >> b
            elif operation == 10:
                top[0] = 1 if a < b else 0
            elif operation == 11:
                top[0] = 1 if a <= b else 0
            elif operation == 12:
                top[0] = 1 if a > b else 0
            elif operation == 13:
                top[0] = 1 if a >= b else 0
            elif operation == 14:
                top[0] = 1 if a == b else 0
            elif operation == 15:
                top[0] = 1 if a != b else 0
            elif operation == 16:
                top[0] = min(a, b)
            else:
                top[0] = max(a, b)
        at += 1


@jit
def misuse(s: State, pc: int, unit_id: int, what: int, a: int, b: int) -> int:
    """Let Python say what an instruction does that no plan may do; the run stops."""
    ask(s, MISUSE, pc, unit_id, what, a, b)
    return STOPPED
