"""Expressions of an instance, and figures of the machine that have been asked for."""

from __future__ import annotations

import numpy as np

from megatile.sim.engine.rows import apart, bytecode_row, expr_row, inlined, jit, memo_row
from megatile.sim.state import *


@jit
def serialise(amount, rate):
    """Picoseconds for an amount at a rate per second, rounded up."""
    if amount <= 0 or rate == np.inf:
        return 0
    return -int((-(float(amount) * 1e12)) // rate)


@jit
def memo_hash(tag, a, b, c, d):
    """Where a question's row is in `memo`, before it is cut to size; also of columns of questions."""
    h = (a & LOW) * 2654435761 + (b % 1000003) * 2246822519 + (c & LOW) * 3266489917 + (d & LOW) * 668265263
    return (h ^ (h >> 17)) + tag


@jit
def find(s, tag, a, b, c, d):
    """The row of `memo` that answers a question to the machine, or NONE."""
    mask = s[N_MEMO] - 1
    h = memo_hash(tag, a, b, c, d) & mask
    while s[memo_row(s, h)] != NONE:
        m = memo_row(s, h)
        if s[m] == tag and s[m + 1] == a and s[m + 2] == b and s[m + 3] == c and s[m + 4] == d:
            return h
        h = (h + 1) & mask
    return NONE


@jit
def ask(s, reason, a, b, c, d, e):
    q = s[T_ASK]
    s[q] = reason
    s[q + 1] = a
    s[q + 2] = b
    s[q + 3] = c
    s[q + 4] = d
    s[q + 5] = e
    return reason


@inlined
def evaluate(s, x, frame):
    """The value of expression ``x`` for the instance whose integers begin at ``frame``."""
    kind = s[expr_row(s, x)]
    at = s[expr_row(s, x) + 1]
    if kind == CONSTANT:
        return at
    if kind == SYMBOL:
        return s[s[T_FRAME] + frame + at]
    if kind == SUM:
        return s[s[T_FRAME] + frame + s[bytecode_row(s, at)]] + s[bytecode_row(s, at) + 1]
    if kind == KEPT:
        return remembered(s, at, frame, s[T_SCRATCH] - 1)
    return compute(s, at, frame, s[T_SCRATCH] - 1)


@apart
def remembered(s, at, frame, top):
    """The value of bytecode that is kept, for the round of the loop that it depends on."""
    place = s[T_FRAME] + frame + s[bytecode_row(s, at)]
    turn = s[s[T_FRAME] + frame + s[bytecode_row(s, at) + 1]]
    if s[place + 1] != turn:
        s[place] = compute(s, at + 1, frame, top)
        s[place + 1] = turn
    return s[place]


@apart
def compute(s, at, frame, top):
    """The value of bytecode, on a stack above ``top``."""
    while True:
        op = s[bytecode_row(s, at)]
        if op == STOP:
            return s[top]
        if op == PUSH:
            top += 1
            s[top] = s[bytecode_row(s, at) + 1]
        elif op == LOAD:
            top += 1
            s[top] = s[s[T_FRAME] + frame + s[bytecode_row(s, at) + 1]]
        elif op == NESTED:
            value = remembered(s, s[bytecode_row(s, at) + 1], frame, top)
            top += 1
            s[top] = value
        elif op == LOOKUP:
            first = s[bytecode_row(s, at) + 1]
            index = min(max(s[top], 0), s[s[T_CONSTANTS] + first] - 1)
            s[top] = s[s[T_CONSTANTS] + first + 1 + index]
        elif op == SELECT:
            top -= 2
            if s[top] == 0:
                s[top] = s[top + 2]
            else:
                s[top] = s[top + 1]
        else:
            top -= 1
            a = s[top]
            b = s[top + 1]
            if op == 0:
                s[top] = a + b
            elif op == 1:
                s[top] = a - b
            elif op == 2:
                s[top] = a * b
            elif op == 3:
                s[top] = a // b if b != 0 else 0
            elif op == 4:
                s[top] = a % b if b != 0 else 0
            elif op == 5:
                s[top] = a & b
            elif op == 6:
                s[top] = a | b
            elif op == 7:
                s[top] = a ^ b
            elif op == 8:
                s[top] = a << b
            elif op == 9:
                s[top] = a >> b
            elif op == 10:
                s[top] = 1 if a < b else 0
            elif op == 11:
                s[top] = 1 if a <= b else 0
            elif op == 12:
                s[top] = 1 if a > b else 0
            elif op == 13:
                s[top] = 1 if a >= b else 0
            elif op == 14:
                s[top] = 1 if a == b else 0
            elif op == 15:
                s[top] = 1 if a != b else 0
            elif op == 16:
                s[top] = min(a, b)
            else:
                s[top] = max(a, b)
        at += 1
