"""The code of streams: one row per instruction, with operands by kind, and the expressions in them.

Operands are numbers: of a list, region, channel, flag or expression, or a cell of the instance's frame of
integers, as their names say. `table` writes them; the engine reads them as ``SendRow.of(s.code[pc]).to``.
"""

from __future__ import annotations

from megatile.records.rows import Row

# Kinds of instructions: control flow, then commands.
ENTER, TEST, AGAIN, BRANCH, JUMP, MERGE, FREE, END = range(8)
WORK, COPY, SEND, RECEIVE, RECEIVE_ANY, READ_SCALAR, SIGNAL, WAIT, RENDEZVOUS, START = range(8, 18)

# Expressions: a constant, an integer of the frame, one plus a constant (both in a row of bytecode: SUM), or
# bytecode. The value of CACHED bytecode stays in the frame as long as no loop goes on whose index it needs:
# its first row names the cell of the value (beside it the round for which it holds) and the cell that
# counts the rounds of the loop.
CONSTANT, SYMBOL, BYTECODE, CACHED, SUM = range(5)
OPERATORS = (
    "+", "-", "*", "//", "%", "&", "|", "^", "<<", ">>", "<", "<=", ">", ">=", "==", "!=", "min", "max",
)  # fmt: skip
PUSH, LOAD, SELECT, LOOKUP, STOP, NESTED = range(32, 38)


# When an instance may stop issuing at the end of a round: never, if one of the loop's engines is busy, or if
# all are (`run_ahead`).
PAUSE_NEVER, PAUSE_ALL_BUSY, PAUSE_BUSY = range(3)


class InstructionRow(Row, width=11):
    """One instruction of a stream; ``SendRow.of(row)`` has the operands of its kind, up to nine."""

    kind: int
    figures: int
    """Where in `figures` the number begins that each unit of the stream's level always needs here."""


class LoopEnterRow(InstructionRow, kind=ENTER):
    """Begin a loop: its index and three more cells of the frame (stop, step, rounds), and expressions."""

    index: int
    start: int
    stop: int
    step: int
    bindings: int
    integers: int
    ended: int


class LoopTestRow(InstructionRow, kind=TEST):
    index: int
    exit: int


class LoopAgainRow(InstructionRow, kind=AGAIN):
    index: int
    test: int
    bindings: int
    integers: int
    ended: int
    engines: int
    """The list of engines of its commands (NONE: others may be used after it)."""

    pause: int
    """When the instance may wait until one of them is free."""
    floor: int
    """Whether nothing accesses tiles before that."""


class BranchRow(InstructionRow, kind=BRANCH):
    condition: int
    orelse: int


class JumpRow(InstructionRow, kind=JUMP):
    target: int


class MergeRow(InstructionRow, kind=MERGE):
    bindings: int
    integers: int
    ended: int


class FreeRow(InstructionRow, kind=FREE):
    ended: int


class EndRow(InstructionRow, kind=END):
    ended: int


class ComputeRow(InstructionRow):
    """What work and copies have in common."""

    engine: int
    regions: int
    """The list of regions that are read, then the one that is written."""
    version: int
    """The cell of the frame that counts the versions of the tile that is written."""
    flops: int
    nbytes: int


class WorkRow(ComputeRow, kind=WORK):
    busy: int
    """How long it takes, if that is always the same and has been asked for."""
    straggles: int
    flow: int
    keeps: int
    """How long its operands keep a memory that others use too; NONE where that is not known."""


class CopyRow(ComputeRow, kind=COPY):
    mover: int
    """The DMA engine that it names."""


class ChannelledRow(InstructionRow):
    """What commands on channels have in common."""

    channel: int
    per: int
    """How many instances of the stream's level are in one of the channel's."""


class SendRow(ChannelledRow, kind=SEND):
    to: int
    member: int
    region: int
    nbytes: int
    by_kernel: int
    """Whether the kernel of a library sends: it orders nothing but what it sends."""


class TakeRow(ChannelledRow):
    """What both ways to receive have in common."""

    handle: int
    """The cell of the frame that is bound to the message's slot."""
    into: int
    """The region into which it is copied instead."""
    nbytes: int
    version: int


class ReceiveRow(TakeRow, kind=RECEIVE):
    member: int


class ReceiveAnyRow(TakeRow, kind=RECEIVE_ANY):
    members: int
    chosen: int


class ReadScalarRow(InstructionRow, kind=READ_SCALAR):
    region: int
    cell: int
    times: int


class SignalRow(InstructionRow, kind=SIGNAL):
    flag: int
    to: int
    member: int
    amount: int


class WaitRow(InstructionRow, kind=WAIT):
    flag: int
    value: int
    member: int
    per: int


class CollectiveRow(InstructionRow, kind=RENDEZVOUS):
    rendezvous: int
    """The list of the rendezvous of every unit."""
    regions: int
    nbytes: int


class StartRow(InstructionRow, kind=START):
    """Start the kernel of a transport, or end it."""

    nbytes: int
    ends: int


class ExpressionRow(Row):
    kind: int
    value: int


class Bytecode(Row):
    operation: int
    operand: int
