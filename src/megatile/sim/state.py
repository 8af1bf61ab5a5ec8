"""What the engine knows: one record per table, and the numbers that their fields take.

The engine (`engine/`) runs as plain Python or as machine code over the same array (`arena`), and stops and
goes on at any instruction; so everything that it knows is here. All times are integer picoseconds; -1 stands
for "none" or "not known yet". A field that is named like a table holds the number of a row in it; where it
names several rows, it holds the number of the first.

Words: an *instance* is what a plan calls a unit of one of its levels; a row of `units` has one at a time, and
``place`` is its unit of the hardware. A *slot* is a buffer of a queue; the slots of a level are rows of
`units` in a *pool*. A *credit* tells the sender that a slot is free: ``credit_ps`` is how long it travels,
``returned`` when it is there. An *engine queue* has the commands of one instance on one engine; a *server*
is what several instances use, with as many *lanes* as requests that it serves at a time.
"""

from __future__ import annotations

from megatile.records.rows import NONE as NONE, Row, Table, Words
from megatile.sim.instructions import Bytecode, ExpressionRow, InstructionRow

UNKNOWN = -1
"""A time or figure that is not known yet: the event has not happened, or Python has not been asked."""
INFINITE = float("inf")
"""The rate of what takes no time."""
GONE = -2
"""The question of a row of `answers` whose answer holds no longer."""
LOW = (1 << 28) - 1
"""The bits of a number by which questions are spread over `answers`."""
BINDINGS = 256
"""Where new bindings are collected in `scratch`, after the stack of expressions."""
MAX_PIECES = 1024
"""Pieces into which a transfer is cut at most."""
PIECES = 2048
"""Message numbers are spread by this, so that the pieces of a message have numbers of their own."""
HOPS = 4096
"""Numbers of pieces are spread by this, so that the stages of each have numbers of their own."""
DMA = 4
"""The first queue of the DMA engine among the engine queues of an instance; see table.py."""
ACCESS_BITS = 10
"""In recorded accesses the storage stands above this bit; below, twice its dimensions, and whether it
writes."""
MAX_ACCESS_WORDS = 1 << 16
"""Words that the recorded accesses of one command take at most."""
CLASSES = 31
"""Bits of the number of a path's class; the bits above are its first server."""
CLASS = (1 << CLASSES) - 1
"""The number of a path: its row, and from this bit on the server from which its stages count theirs."""
OWN_BLOCKS = 1 << 37
"""From here on numbers of storages in caches mean those of one launch: they are found by nobody after it."""
MOVERS = 1 << 20
"""More levels than there are: in questions for paths the DMA engine counts from here on."""
MAX_TAKEN = 4096
"""More compute units than the kernel of a library takes."""
PHASE = 1 << 58
"""Events of one picosecond are sorted by phase times this, plus their flow."""

# What a command in flight is, besides the kinds of `instructions`, whose numbers are smaller.
INTO, RELEASE, PIECE, BEGIN = range(64, 68)
# States of an instance. One that is DONE has issued everything, one that is OVER has finished it; one that is
# AHEAD has issued enough for now.
READY, DATA, CREDIT, ANYDATA, FLAG, AT_RENDEZVOUS, HAZARD, AHEAD, PENDING, DONE, OVER = range(11)
# How a region names its storage.
DECLARED, HANDLE = range(2)
# Phases within one picosecond, in order: instances end, launches begin, signals arrive, kernels of libraries
# take compute units or leave them, instances take free slots, receives from any choose among all that has
# arrived by now, servers grant requests, hosts hear of ends. Arrivals of messages and credits are no events:
# their times are known as soon as the transfer's are.
OVERS, BEGINS, SIGNALS, KERNELS, DISPATCH, DECISIONS, REQUESTS, HOSTS = range(8)
# What issuing a command gives, if the engine need not return to Python.
GO_ON, BLOCKED = 0, -1
# Why the engine returns to Python: nothing can go on, an event is later than it may go, a launch has ended,
# the instructions it was given are done, or something went wrong.
FINISHED, PAUSED, ENDED, BUDGET, STOPPED = range(1, 6)
# What no instruction may do.
WRONG_SENDER, TOO_LARGE, WRONG_SIZE, NO_FLAG, NO_PART, NO_OWNER, TOO_FAR_AHEAD, NO_FUNCTION = range(8)
# What it asks Python.
(
    ASK_QUEUE, ASK_QUEUE_PATH, ASK_PATH, ASK_BUSY, ASK_RENDEZVOUS, ASK_MESSAGE, ASK_VALUE,
    ASK_DELAY, ASK_ENGINE_QUEUE, ASK_CREDIT, ASK_ROUTE, ASK_KERNEL, ASK_KEEPS, ASK_MEMORY, MISUSE,
) = range(15)  # fmt: skip


# --- plans and launches ------------------------------------------------------------------------------------


class RegionRow(Row):
    mode: int
    tile: int
    dimensions: int
    bounds: int
    owner: int
    visible: int
    """Whether others may see what it names."""
    tracked: int
    """Whether accesses to it may conflict."""
    own: int
    """Whether it is always the instance's own where no owner is named."""
    piece: int
    """Of a spread tile: the expression of its block (NONE: it is not spread)."""


class TileRow(Row):
    base: int
    versions: int
    version: int


class ChannelRow(Row):
    first_queue: int
    members: int
    slots: int
    slot_storage: int
    slot_bytes: int
    units: int
    first_flow: int
    level: int


class LaunchRow(Row):
    first_slot: int
    """The first of its storages that is a slot of a queue."""
    aliases: int
    channels: int
    flags: int
    rendezvous: int
    levels: int
    storages: int
    first_unit: int
    units: int
    unfinished: int
    """Instances and commands that have not ended."""
    last: int
    began: int
    first_root: int
    """Rows of `children` that wait for slots from the beginning."""
    roots: int
    serial: int
    """The number of its run, which tells its blocks in caches from those of others."""


class LevelRow(Row):
    """A level of a launch."""

    parent: int
    per_parent: int
    """Instances in each of the parent's."""
    places: int
    """The list of hardware units of those (NONE: the level has slots)."""
    hardware_per_parent: int
    hardware: int
    """How many hardware units there are (0: the plan has one level)."""
    count: int
    stream_list: int
    """The list of the streams of its instances (NONE: all have ``stream``)."""
    stream: int
    storages: int
    first_actor: int
    first_flow: int
    start_at: int
    engine_queues: int
    """How many each instance has."""
    fixed: int
    """Whether all instances are there from the beginning."""
    first_unit: int
    begin_ps: int
    """How long an instance takes to begin in a slot."""


class StreamRow(Row):
    first_pc: int
    template: int
    """The list of integers with which the frame of an instance begins."""
    frame_size: int


class Storage(Row):
    """A buffer of a tile or a slot of a queue, as a level sees it."""

    memory: int
    private: int
    level: int
    """The level, counted in the plan, of whose instances it is."""
    per: int
    """How many instances of the level that looks are in one of those (0: none)."""
    owners: int
    """The list of the owner of each of those (NONE: itself)."""
    first_of_owner: int
    owner_count: int
    over: int
    """The level, counted in the plan, over which it is spread (NONE: it is not)."""
    pieces: int
    """Into how many blocks it is cut then."""
    blocks: int
    """Its blocks in caches (NONE: there is none before it): a list of dimensions, bytes of a block, what to
    add to the storage's number if it outlives its launch (else 0), a block's shape, how many there are."""


# --- instances ---------------------------------------------------------------------------------------------


class UnitRow(Row):
    """An instance that is there. Those of a level with slots take turns in its rows."""

    now: int
    pc: int
    state: int
    cause: int
    """The record of what set the clock."""
    frame: int
    access_lists: int
    engine_queues: int
    launch: int
    level: int
    number: int
    """Counts the instances of the level."""
    actor: int
    """Counts those of all levels and launches."""
    visible: int
    """A list of commands in flight whose accesses others see."""
    visible_until: int
    visible_by: int
    """When the last of those has ended that are not in flight any more, and its record."""
    unfinished: int
    """Commands that have not ended."""
    floor: int
    """Nothing that it issues from now on accesses tiles before this time."""
    latest: int
    latest_by: int
    blocked_since: int
    """When the instruction at hand was first tried, if it has not been issued yet."""
    blocked_on: int
    """What a blocked one waits for: a queue, counter, rendezvous or list of queues, as its state says."""
    chosen_queue: int
    """The queue that a receive-from-any has chosen."""
    next_waiter: int
    """Links those who wait for one thing."""
    awaited_count: int
    named_slots: int
    copies: int
    flow: int
    place: int
    """The hardware unit; of a plan with one level: the unit."""
    parent: int
    parts: int
    """The stream and the instances below it that are not over."""
    over_at: int
    over_by: int
    pool: int
    children: int
    child_levels: int
    predecessors: int
    """How many instances of earlier launches and the like are in the way of its begin."""
    followers: int
    """A list of those in whose way it is."""
    kernel: int
    """Of the kernel of a library that it has started: the device times MAX_TAKEN, and what that takes."""


class Pool(Row):
    """The rows of `units` in which instances of a level take turns below one hardware unit: as many as may be
    resident there."""

    first_unit: int
    units: int
    flags: int
    """Where it stands in `free_units` which of them are free (1)."""
    free: int
    """How many are free."""
    lowest: int
    """Below this one, counted from the first, none is free."""
    first_waiting: int
    last_waiting: int
    due: int
    """When it is dispatched, if that is in the time queue."""
    device: int
    """The row of `devices` that it is in (NONE: no kernel of a library takes anything from it)."""
    below: int
    """Hardware units of its level in a device."""
    next_of_device: int


class Device(Row):
    """A device, and what kernels of libraries have of it."""

    compute_units: int
    taken: int
    """Compute units that such kernels have: those with the highest numbers."""
    pools: int
    """The first of its pools."""
    reduces_until: int
    """Until when a switch reduces what its links carry."""


class Children(Row):
    """The instances of one level in one instance: rows of `units`, or those that wait in a pool."""

    first_unit: int
    pool: int
    count: int
    next_number: int
    waiting: int
    next_waiting: int
    parent: int


class NamedSlot(Row):
    """A slot of a queue that names (handles) of an instance are bound to: each counts, so that its credit is
    sent when the last has ended."""

    handles: int
    """How many names are bound to it."""
    queue: int
    message: int
    credit_ps: int


class EngineQueue(Row):
    """The commands of one instance on one engine, which go in the order of issue: the last of them tells when
    the next may start."""

    free_at: int
    """When the last command leaves it whose times are known."""
    last: int
    """The last command that was issued, if that is in flight."""
    cause: int
    """The record of the command that leaves it at ``free_at``."""
    server: int
    """The server of an engine that several instances share (NONE: the instance has its own)."""


# --- messages, flags, rendezvous ---------------------------------------------------------------------------


class LaunchQueue(Row):
    """A queue as a launch numbers it: by channel, receiver and member. Launches that share an installed queue
    have a row each."""

    number: int
    """Its row of `queues` (NONE: it has not been used)."""
    fed_by: int
    """The instance that may send (``actor``; NONE: that is in another launch)."""
    sent: int
    """Messages that this launch has sent."""


class Queue(Row):
    """A queue of messages in use, from one instance to another. Message k lies in slot ``k % slots``."""

    sent: int
    """How many messages have been issued: the number of the next one."""
    taken: int
    """How many have been received: the number of the one at its head."""
    slots: int
    ring: int
    """The first of its rows of `slots`."""
    sender: int
    receiver: int
    """Both ends, as instances (``actor``)."""
    engine_queue: int
    """The engine queue that its messages use, counted from the first of the sender."""
    credit_ps: int
    """How long credits travel, if both ends are there from the beginning."""
    data_waiter: int
    """The first instance that waits for a message (others by `UnitRow.next_waiter`)."""
    credit_waiter: int
    """The first that waits for a credit."""
    channel: int
    member: int
    path_memory: int
    """The memory that messages read before they take ``path``."""
    path: int


class Slot(Row):
    """The last message in a slot of a queue. Times are UNKNOWN until they are known, which may be before they
    are reached."""

    arrived: int
    """When it is in the slot, and the record of the send."""
    arrived_by: int
    returned: int
    """When its credit is at the sender, and the record of what released the slot."""
    returned_by: int
    nbytes: int


class FlagRow(Row):
    first_counter: int
    members: int
    units: int
    level: int


class FlagCounter(Row):
    """A flag of one instance and member."""

    count: int
    waiter: int
    """The first instance that waits until it reaches ``UnitRow.awaited_count``."""
    raised_by: int
    """The record of the last signal."""


class Rendezvous(Row):
    """A group of instances that meet at a collective. When the last has come, all go on after the time that
    the collective takes, and it serves for the next."""

    came: int
    """How many are there, of so many ``members``."""
    members: int
    last: int
    """When the last of those came, and because of which record."""
    cause: int
    commands: int
    """A list of their commands."""


# --- transfers ---------------------------------------------------------------------------------------------


class PathRow(Row):
    first_stage: int
    stages: int
    startup: int
    latency: int
    extra: int
    before: int
    """Latency before the first stage with a server; 0 where no stage has one."""
    first_server: int
    """The first stage with a server."""
    granule: int
    contended: int
    last_bytes: int
    last_busy: int
    rate: float
    dma_rate: float
    read_cache: int
    write_cache: int


class StageRow(Row):
    server: int
    latency: int
    shared: int
    """NONE where the stage has no server."""
    last_bytes: int
    last_busy: int
    rate: float


class Server(Row):
    """Serves as many requests at a time as it has lanes."""

    lanes: int
    lane_count: int


class CacheRow(Row):
    first_block: int
    capacity: int
    used: int
    newest: int
    oldest: int
    writes_back: int
    behind: int
    behind_server: int
    behind_latency: int
    behind_rate: float
    missing: int
    """Bytes that a lookup misses, and the blocks that it touched."""
    touched: int
    hits: int
    misses: int
    read: int
    written: int
    filled: int
    evicted: int
    spent: int


class CacheBlock(Row):
    cache: int
    key: int
    index: int
    newer: int
    older: int
    filled_at: int
    room_at: int
    """When the block that it replaced, if that was changed, has been written behind."""
    dirty: int
    nbytes: int
    next: int
    used_at: int
    """Grows with every use."""


class Span(Row):
    """The blocks of a storage that a copy touches; for each dimension the first, how many, and by how much
    the number of a block grows."""

    next: int
    key: int
    nbytes: int
    dimensions: int
    bounds: Words


# --- commands in flight ------------------------------------------------------------------------------------


class CommandRow(Row, width=40):
    """A command whose times are not all known yet. (40 words, so that rows begin like cache lines.) Some
    fields mean different things for different kinds of commands, as they say."""

    kind: int
    unit: int
    ready_at: int
    """When all is there that it needs, as far as that is known, and the record of what came last."""
    cause: int
    dependencies: int
    """How many commands in flight it waits for."""
    waiters: int
    """A list of commands that wait for its end; of a free row, the next free one."""
    source_waiters: int
    """Those who wait until its source is free."""
    record: int
    pc: int
    source_free_at: int
    """When its engine and what it sends from are free again."""
    end: int
    """When its data is there."""
    engine_queue: int
    busy: int
    """How long it has its engine (work), or the shared engine that starts it (transfers)."""
    server: int
    """The shared engine that it still has to ask for (NONE: there is none, or it has been granted)."""
    accesses: int
    """A list of its unfinished accesses."""
    previous_visible: int
    next_visible: int
    """Its neighbours in the list of its instance's commands whose accesses others see; at a rendezvous, in
    the list of those who have come. (Itself before it: it is in no list.)"""
    delay: int
    """Jitter of a transfer; how long a signal or collective takes; of work, how long its operands keep the
    memory whose server is ``first_server``."""
    parent: int
    """Of a piece, the transfer that was cut."""
    pieces_left: int
    """Of a transfer that was cut, the pieces that have not left their source."""
    span_read: int
    span_written: int
    target: int
    """The queue, counter or rendezvous that it concerns."""
    path: int
    nbytes: int
    flow: int
    order: int
    """Which of the requests of its flow come first, at one time."""
    first_server: int
    """The server from which the stages of its path count theirs."""
    head: int
    tail: int
    """When its first and last byte are at the next stage of its path, and which one that is."""
    stage: int
    served: int
    """Whether a server has taken it."""
    message: int
    amount: int
    """What a signal adds; of a receive into a tile and of a release, how long the credit travels."""
    rest: int
    """The number of a piece; of a rendezvous, the recorded accesses."""
    tails_left: int
    piece_bytes: int


class PendingAccess(Row):
    """An unfinished access, in one list per instance and storage."""

    next: int
    owner: int
    write: int
    until: int
    command: int
    cause: int
    next_of_command: int
    dropped: int
    dimensions: int
    bounds: Words


class Access(Row):
    """What the command at hand touches; bounds are start and extent of each dimension."""

    storage: int
    owner: int
    write: int
    dimensions: int
    visible: int
    tracked: int
    piece: int
    """Of a spread tile: its block (NONE: it is not spread)."""
    bounds: Words


class Node(Row):
    next: int
    item: int


class Event(Row):
    time: int
    key: int
    order: int
    subject: int


class Answer(Row):
    """A figure of the machine that has been asked for."""

    question: int
    a: int
    b: int
    c: int
    d: int
    value: int


class Recorded(Row):
    actor: int
    pc: int
    start: int
    end: int
    cause: int
    nbytes: int
    queue: int
    message: int
    arrived: int
    path: int
    accesses: int
    kind: int
    engine: int


class Question(Row, width=8):
    """What the engine asks when it returns to Python."""

    reason: int
    a: int
    b: int
    c: int
    d: int
    e: int


# --- all of it ---------------------------------------------------------------------------------------------


class State(Row):
    """Totals, then the tables. Rows that are used again are in a list from ``free_…`` on; those from
    ``top_…`` on were never used. Records and recorded accesses are numbered on and on from ``…_base``."""

    last: int
    ready_count: int
    event_count: int
    free_command: int
    free_node: int
    free_pending: int
    recorded: int
    todo_count: int
    recording: int
    """0: nothing, 1: commands, 2: commands and what they access."""
    steps: int
    jitter: int
    sequence: int
    recorded_words: int
    clock: int
    until: int
    record_base: int
    words_base: int
    free_span: int
    run_ahead: int
    """Unfinished commands from which on an instance need not run further ahead."""
    max_in_flight: int
    """Commands in flight from which on none may get far ahead of its engines."""
    top_command: int
    top_node: int
    top_pending: int
    top_span: int
    record_limit: int
    """Commands after which nothing is recorded any more."""
    full: int
    """The table that has no room, if one has none."""
    stopped: int
    """Whether the run has to stop: a table is full, or a question could not be answered."""
    ended: int
    """The launch that has ended, when the engine returns because of that."""
    callback: int
    owner: int
    """The address of the query function, and its argument: the run that asks."""
    code: Table[InstructionRow]
    expressions: Table[ExpressionRow]
    bytecode: Table[Bytecode]
    constants: Words
    lists: Words
    regions: Table[RegionRow]
    tiles: Table[TileRow]
    channels: Table[ChannelRow]
    aliases: Words
    launches: Table[LaunchRow]
    levels: Table[LevelRow]
    streams: Table[StreamRow]
    storages: Table[Storage]
    units: Table[UnitRow]
    pools: Table[Pool]
    devices: Table[Device]
    free_units: Words
    children: Table[Children]
    places: Words
    frames: Words
    access_lists: Words
    pending_writes: Words
    named_slots: Table[NamedSlot]
    engine_queues: Table[EngineQueue]
    launch_queues: Table[LaunchQueue]
    queues: Table[Queue]
    slots: Table[Slot]
    flags: Table[FlagRow]
    counters: Table[FlagCounter]
    rendezvous: Table[Rendezvous]
    paths: Table[PathRow]
    stages: Table[StageRow]
    servers: Table[Server]
    caches: Table[CacheRow]
    blocks: Table[CacheBlock]
    buckets: Words
    spans: Table[Span]
    lanes: Words
    figures: Words
    commands: Table[CommandRow]
    pending: Table[PendingAccess]
    nodes: Table[Node]
    events: Table[Event]
    ready: Words
    todo: Words
    answers: Table[Answer]
    records: Table[Recorded]
    recorded_accesses: Words
    asked: Table[Question]
    accesses: Table[Access]
    scratch: Words
