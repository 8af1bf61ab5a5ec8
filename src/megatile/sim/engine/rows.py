"""Where a row of a table begins in the arena, and how it is marked what becomes machine code."""

from __future__ import annotations

import numpy as np

from megatile.sim.state import *


def jit(function):  # type: ignore[no-untyped-def]
    """Marks what `compiled` translates: integers only, ``s`` is the arena."""
    return function


def inlined(function):  # type: ignore[no-untyped-def]
    """Marks what becomes part of its callers."""
    return function


def apart(function):  # type: ignore[no-untyped-def]
    """Marks what does not, however often that would seem worth while."""
    return function


def load_float(s, at):  # type: ignore[no-untyped-def]
    """A number of the arena that is a float."""
    return s[at : at + 1].view(np.float64)[0]


@inlined
def prefetch(s, at):
    """An entry will be needed soon: as machine code, this brings it nearer to the processor."""
    return 0


@jit
def code_row(s, i):
    return s[T_CODE] + i * W_CODE


@jit
def expr_row(s, i):
    return s[T_EXPR] + i * W_EXPR


@jit
def bytecode_row(s, i):
    return s[T_BYTECODE] + i * W_BYTECODE


@jit
def region_row(s, i):
    return s[T_REGION] + i * W_REGION


@jit
def tile_row(s, i):
    return s[T_TILE] + i * W_TILE


@jit
def channel_row(s, i):
    return s[T_CHANNEL] + i * W_CHANNEL


@jit
def launch_row(s, i):
    return s[T_LAUNCH] + i * W_LAUNCH


@jit
def memory_row(s, i):
    return s[T_MEMORY_OF] + i * W_MEMORY_OF


@jit
def unit_row(s, i):
    return s[T_UNIT] + i * W_UNIT


@jit
def queue_of_row(s, i):
    return s[T_QUEUE_OF] + i * W_QUEUE_OF


@jit
def level_row(s, i):
    return s[T_LEVEL] + i * W_LEVEL


@jit
def stream_row(s, i):
    return s[T_STREAM] + i * W_STREAM


@jit
def pool_row(s, i):
    return s[T_POOL] + i * W_POOL


@jit
def below_row(s, i):
    return s[T_BELOW] + i * W_BELOW


@jit
def held_row(s, i):
    return s[T_HELD] + i * W_HELD


@jit
def tail_row(s, i):
    return s[T_TAILS] + i * W_TAILS


@jit
def queue_row(s, i):
    return s[T_QUEUE] + i * W_QUEUE


@jit
def ring_row(s, i):
    return s[T_RING] + i * W_RING


@jit
def flag_row(s, i):
    return s[T_FLAG] + i * W_FLAG


@jit
def counter_row(s, i):
    return s[T_COUNTER] + i * W_COUNTER


@jit
def meeting_row(s, i):
    return s[T_MEETING] + i * W_MEETING


@jit
def path_row(s, i):
    return s[T_PATH] + i * W_PATH


@jit
def stage_row(s, i):
    return s[T_STAGE] + i * W_STAGE


@jit
def server_row(s, i):
    return s[T_SERVER] + i * W_SERVER


@jit
def cache_row(s, i):
    return s[T_CACHE] + i * W_CACHE


@jit
def block_row(s, i):
    return s[T_BLOCK] + i * W_BLOCK


@jit
def span_row(s, i):
    return s[T_SPAN] + i * s[W_SPAN]


@jit
def command_row(s, i):
    return s[T_COMMAND] + i * W_COMMAND


@jit
def log_row(s, i):
    return s[T_LOG] + i * s[W_LOG]


@jit
def node_row(s, i):
    return s[T_NODE] + i * W_NODE


@jit
def memo_row(s, i):
    return s[T_MEMO] + i * W_MEMO


@jit
def record_row(s, i):
    return s[T_RECORD] + (i - s[RECORD_BASE]) * W_RECORD


@jit
def access_row(s, i):
    return s[T_ACCESS] + i * s[W_ACCESS]
