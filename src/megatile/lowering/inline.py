"""A collective of a Program by an algorithm of the collectives library, with the program's tiles as buffers.

The library's Plan moves elements of one-dimensional tiles; here an element is a row: all that lies at one
index of the dimension that is shared out. Its ranks become units of the group, its buffers blocks of homes,
its channels and scratch tiles those of the level. What cannot be said so (blocks over an edge or of extents
that only data tells, parts that are not equally long) is not inlined.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from megatile.collectives.algorithms import ALGORITHMS, find_algorithm
from megatile.collectives.job import CollectiveError, Job
from megatile.collectives.libraries import KERNELS_OF, LIBRARIES
from megatile.collectives.planner import predict
from megatile.collectives.ranking import GUESSES, MAX_RANKS_TO_TRY_ALL, NAMED_ONLY
from megatile.collectives.registry import Algorithm
from megatile.collectives.requests import make_job
from megatile.core.cached import cached
from megatile.core.dtypes import itemsize
from megatile.core.errors import MegatileError
from megatile.core.expr import ZERO, Const, Expr, Symbol, bounds, known, select, simplify, substitute
from megatile.cost.cheapest import cheapest
from megatile.cost.static_bound import floor
from megatile.hda import HDA
from megatile.ir import nodes as n
from megatile.lowering.commands import key_of
from megatile.lowering.elements import whole
from megatile.lowering.errors import cannot
from megatile.lowering.regions import Block, length, part
from megatile.lowering.residency import hardware_units
from megatile.lowering.streams import StreamScope
from megatile.lowering.units import tidy
from megatile.plan import model as pm
from megatile.plan.model import PlanError, Transport, with_transport
from megatile.plan.spec import parts
from megatile.sim import TimeBudgetExceeded, simulate
from megatile.timing.transports import has_library

MAX_UNITS_FOR_PLANNER = 256
"""Units up to which the planner is asked for its choice; more of them get directly from each other."""


OTHER_ENGINES = ("copy_engine", "lsu")
WITH_KERNELS = (*LIBRARIES, *KERNELS_OF)
"""Libraries and engines whose own choice ``impl`` may ask for."""
"""What ``impl=`` may name in place of a library's kernel: the devices' copy engines, stores of their SMs."""
MAX_USELESS_BOUNDS = 2
"""How many more bounds may be below the time of the first guess than above it, before candidates are timed
without one: where latency dominates they rule nothing out, and each takes half as long as a run."""


@dataclass(frozen=True)
class Buffers:
    """What a collective reads (``x``) and writes (``y``; the same block where it is done in place), cut into
    rows along a dimension."""

    x: Block
    y: Block
    dim: int

    @classmethod
    def of(cls, node: n.Collective, x: Block, y: Block, units: int) -> Buffers | None:
        """Those of a collective of ``units``, cut along its dimension or, where that does not matter, the
        longest that divides equally, or the longest; None: they have none, or not equally many."""
        if not x.kept or len(x.kept) != len(y.kept):
            return None
        sizes = [known(x.axes[a].extent) or 0 for a in x.kept]
        longest = max(range(len(sizes)), key=lambda d: (sizes[d] > 0 and sizes[d] % units == 0, sizes[d]))
        return cls(x, y, longest if node.kind in ("allreduce", "broadcast") else node.dim)

    @property
    def in_place(self) -> bool:
        return self.x.region() == self.y.region()

    def rows(self, block: Block) -> int | None:
        return known(length(block, self.dim))

    @property
    def row(self) -> tuple[int, ...] | None:
        """The extents of a row, with 1 for the dimension; None: they are not known, or not equal."""
        at = self.x.kept[self.dim]
        if at != self.y.kept[self.dim] or len(self.x.axes) != len(self.y.axes):
            return None
        found = []
        for d, (a, b) in enumerate(zip(self.x.axes, self.y.axes, strict=True)):
            sizes = [1, 1] if d == at else [known(a.extent), known(b.extent)]
            if sizes[0] is None or sizes[0] != sizes[1]:
                return None
            found.append(sizes[0])
        return tuple(found)


def check_algorithm(node: n.Collective) -> str | None:
    """The registered name that ``algorithm=`` gives (or ``impl="in_network"``); None: what the machine's
    library does, or the fastest."""
    name = node.algorithm or ("in_network" if node.impl == "in_network" else None)
    if name is None or name == "auto" or node.impl in WITH_KERNELS:
        return None
    return ALGORITHMS.find(name, node.place).name


@dataclass(frozen=True)
class Asked:
    """What is asked of the library: a collective of ``size`` units of a scale on ``members`` of a machine."""

    machine: HDA
    scale: str
    node: n.Collective
    size: int
    members: Callable[[], list[int]]
    root: int | None
    """None: it is not a number."""
    buffers: Buffers | None


class Chosen(NamedTuple):
    """What does a collective: the algorithm, what sends its messages, and its Plan of rows."""

    algorithm: str
    impl: str | None
    """A library (what it does by itself), ``kernel`` (an algorithm that was asked for, by kernels of the
    library), ``copy_engine``, ``lsu``; None: the units' own engines."""
    plan: pm.Plan


def library_plan(asked: Asked) -> Chosen | None:
    """What does a collective of units that send messages; None: no algorithm does."""
    node, buffers = asked.node, asked.buffers
    name = check_algorithm(node)
    problem = _unfit(asked)
    if problem is not None:
        if name is not None:
            raise cannot(f"T.{node.kind} with algorithm='{node.algorithm or node.impl}' {problem}", node)
        return None
    assert buffers is not None
    assert buffers.row is not None
    count = max(buffers.rows(buffers.x) or 0, buffers.rows(buffers.y) or 0)
    dtype = buffers.x.home.dtype
    nbytes = count * math.prod(buffers.row) * itemsize(dtype)
    try:
        job = (
            asked.machine, asked.scale, name, n.PLANNER_NAMES[node.kind], tuple(asked.members()), nbytes,
            dtype, node.op, asked.root or 0, buffers.in_place,
        )  # fmt: skip
        library = node.impl in LIBRARIES and has_library(asked.machine, asked.scale)
        how = _choice(*job, None if library else node.impl)
        if library and how.impl != node.impl:  # not what the machine's library does by itself
            how = _choice(*job, node.impl)
        # One row for each element; the memory is that of the program's own tile.
        plan = _plan_of(how, replace(how.job, count=count, memory=buffers.x.home.memory))
    except MegatileError as error:
        if name is None and node.impl is None and not isinstance(error, TimeBudgetExceeded):
            return None
        error.place = error.place or node.place
        raise
    if len(plan.streams) > 1 or plan.flags:
        raise cannot(f"algorithm '{how.algorithm.name}', whose ranks do different things,", node)
    return Chosen(how.algorithm.name, how.impl, plan)


def inlined(scope: StreamScope, node: n.Collective, size: int, me: Expr, buffers: Buffers | None) -> None:
    """Write the collective as the library does it."""
    state, level = scope.state, scope.level

    def members() -> list[int]:
        return hardware_units(state.structure, level, scope.stream.first, scope.among(node.scale), node.axis)

    root = known(scope.whole(node.root))
    found = library_plan(Asked(state.hda, level.scale, node, size, members, root, buffers))
    assert found is not None
    assert buffers is not None
    _Inliner(scope, node, me, buffers, found.plan).write()


@dataclass(frozen=True)
class _How:
    """How a job is done: an algorithm with its options, and the transport of its messages."""

    algorithm: Algorithm
    job: Job
    options: tuple[tuple[str, Any], ...] = ()
    transport: Transport | None = None
    impl: str | None = None
    """See `Chosen`."""


@cached(most=64)
def _plan_of(how: _How, job: Job) -> pm.Plan:
    return _sent(how.algorithm.plan(job, **dict(how.options)), how.transport, job)


def _sent(plan: pm.Plan, transport: Transport | None, job: Job) -> pm.Plan:
    """Return the plan with its messages on a transport."""
    if transport is None:
        return plan
    if transport.kind in ("kernel", "switch"):
        return with_transport(plan, transport, job.operation, job.ranks, job.nbytes)
    channels = tuple(replace(channel, transport=transport.name) for channel in plan.channels)
    return replace(plan, channels=channels, transports=(transport,))


def _unfit(asked: Asked) -> str | None:
    """Why a collective is not for the library."""
    node, size, buffers = asked.node, asked.size, asked.buffers
    if node.fn is not None:
        return "and fn=, which merges directly,"
    if buffers is None or buffers.x.cut or buffers.y.cut or buffers.row is None:
        return "of parts whose extents differ or are known only at run time"
    x, y = buffers.rows(buffers.x), buffers.rows(buffers.y)
    if x is None or y is None or x * y == 0:
        return "of parts whose extents are known only at run time"
    even = {"allgather": y == x * size, "gather_view": y == x * size, "reduce_scatter": x == y * size}
    if not even.get(node.kind, x == y and (node.kind in ("allreduce", "broadcast") or x % size == 0)):
        return "of parts that are not equally long"
    if node.kind == "broadcast" and asked.root is None:
        return "from a root that is not a number"
    if size > MAX_UNITS_FOR_PLANNER and node.algorithm is None:
        return "of so many units"
    return None


@cached(most=512)
def _choice(
    hda: HDA, scale: str, algorithm: str | None, operation: str, members: tuple[int, ...], nbytes: int,
    dtype: str, reduction: str, root: int, in_place: bool, impl: str | None,
) -> _How:  # fmt: skip
    """What the machine's library does for these units and this size, or its kernels with the algorithm named.

    Where the machine describes no library, or ``impl`` asks for other engines, the algorithm named or the
    fastest one.
    """
    fields: dict[str, Any] = {"root": root, "in_place": in_place}
    if operation in ("all_reduce", "reduce_scatter"):
        fields["reduction"] = reduction
    together = len(set(members)) < len(members)  # several of them on one unit
    if algorithm is not None and together:
        job = Job(operation, len(members), nbytes // itemsize(dtype), dtype, scale=scale, **fields)
    else:
        job, _ = make_job(
            operation, machine=hda, scale=scale, nbytes=nbytes, dtype=dtype, ranks=members, **fields
        )
    able = {a.name: a for a in ALGORITHMS.values() if a.reason_against(job) is None}
    if algorithm is not None and algorithm not in able:
        raise CollectiveError(
            f"{algorithm} cannot do {operation} over {job.ranks} ranks: "
            f"{ALGORITHMS[algorithm].reason_against(job)}",
            advice=f"one of {', '.join(sorted(able))}",
        )
    if impl not in OTHER_ENGINES and not together and has_library(hda, scale):
        # Inside a program nothing is launched.
        found = predict(
            operation, machine=hda, scale=scale, nbytes=nbytes, dtype=dtype, ranks=members, launch=False,
            algorithm=impl if impl in WITH_KERNELS else algorithm or "auto", timed=False, **fields,
        )  # fmt: skip
        (kernel,) = found.plan.transports
        own = algorithm is None and kernel.library in WITH_KERNELS
        return _How(
            find_algorithm(found.algorithm), found.job, found.candidate.options, kernel,
            kernel.library if own else "kernel",
        )  # fmt: skip
    if impl in (*WITH_KERNELS, "kernel") and not has_library(hda, scale):
        raise CollectiveError(
            f"machine '{hda.name}' describes no library for collectives of a {scale}, so impl='{impl}' has "
            "no kernel",
            advice="leave impl= out, or add 'transports' to the machine's file",
        )
    transport = Transport(impl, name=impl) if impl is not None and impl in OTHER_ENGINES else None
    if algorithm is not None:
        if transport is not None and able[algorithm].protocol:
            raise CollectiveError(
                f"'{algorithm}' is done by the network, so impl='{impl}' cannot do it",
                advice="leave impl= or algorithm= out",
            )
        return _How(able[algorithm], job, (), transport, impl)
    # Copy engines and stores of blocks do not let a switch reduce.
    able = {name: a for name, a in able.items() if name not in NAMED_ONLY and not (transport and a.protocol)}
    if job.ranks > MAX_RANKS_TO_TRY_ALL:
        able = {name: a for name, a in able.items() if name in GUESSES} or able
    plans: dict[str, pm.Plan] = {}
    useless = 0

    def time(name: str) -> int | None:
        plan = plans[name] = plans.get(name) or _sent(able[name].plan(job), transport, job)
        if len(plan.streams) > 1 or plan.flags:
            return None  # ranks do different things
        return simulate(plan, machine=hda, launch=False, record=False).time_ps

    # Refused: its queues do not fit the memory.
    first = next((name for name in GUESSES if name in able), None)
    known = cheapest([] if first is None else [first], time, refuses=PlanError).times

    def bound(name: str) -> int | None:
        nonlocal useless
        plan = plans[name] = plans.get(name) or _sent(able[name].plan(job), transport, job)
        if useless >= MAX_USELESS_BOUNDS:
            return 0
        least = floor(plan, hda, launch=False)
        useless += 1 if least < min(known.values(), default=0) else -1
        return least

    fastest = cheapest(sorted(able), time, bound, refuses=PlanError, known=known)
    if fastest.winner is None:
        raise CollectiveError(f"no algorithm does {operation} over {job.ranks} ranks")
    return _How(able[fastest.winner], job, (), transport, impl)


@dataclass
class _Inliner:
    """One Plan of the library on its way into a stream."""

    scope: StreamScope
    node: n.Collective
    me: Expr
    buffers: Buffers
    plan: pm.Plan
    names: dict[str, str] = field(default_factory=dict)
    blocks: dict[str, Block] = field(default_factory=dict)
    numbers: dict[str, Expr] = field(default_factory=dict)

    def write(self) -> None:
        state = self.scope.state
        self.numbers["unit"] = self.me
        self.row = self.buffers.row or ()
        self.axis = self.buffers.x.kept[self.buffers.dim]
        for tile in self.plan.tiles:
            if tile.name in ("x", "y"):
                self.blocks[tile.name] = self.buffers.x if tile.name == "x" else self.buffers.y
            else:
                home = state.scratch(self.scope, self.shape(tile.shape[0]), tile.dtype, tile.name)
                self.blocks[tile.name] = whole(home)
        for channel in self.plan.channels:
            self.channel(channel)
        for statement in self.body(self.plan.streams[0].body):
            self.scope.emit(statement)

    def shape(self, rows: int) -> tuple[int, ...]:
        return tuple(rows if d == self.axis else e for d, e in enumerate(self.row))

    def channel(self, channel: pm.Channel) -> None:
        """The same queues between the units of every group; other instances of the level have none."""
        state, key = self.scope.state, key_of(self.scope, self.node.axis, self.node.scale)
        feeds = self.expr(channel.source)
        source = select(feeds < 0, -1, self.unit_at(feeds))
        if self.scope.stream.meets is not None:
            source = select(key < 0, -1, source)
        made = replace(
            channel,
            source=tidy(source, {**self.scope.ranges, "member": (0, channel.members - 1)}),
            slot_bytes=channel.slot_bytes * math.prod(self.row),
            level=self.scope.level.name,
            transport=self.transport(channel.transport),
        )
        # Collectives that are alike have one: units meet at whatever line they come to it.
        self.names[channel.name] = state.declared.channel(made)

    def transport(self, name: str | None) -> str | None:
        """The same transport of the program's plan."""
        if name is None:
            return None
        asked = (self.plan.name.partition(" ")[0], self.plan.units)
        return self.scope.state.declared.transport(self.plan.transport(name), asked)

    # --- numbers and regions ----------------------------------------------------------------------

    def expr(self, value: Expr) -> Expr:
        return tidy(substitute(value, self.numbers), self.scope.ranges)

    def unit_at(self, rank: Expr) -> Expr:
        scope = self.scope
        return tidy(scope.number(scope.peer(rank, self.node.axis, self.node.scale)), scope.ranges)

    def region(self, region: pm.Region) -> pm.Region:
        block = self.blocks.get(region.tile)
        if block is None:  # a message: all of it, or rows of it
            if not region.start:
                return pm.Region(self.renamed(region.tile))
            start = tuple(e if d == self.axis else ZERO for d, e in enumerate(self.extents(region.start)))
            return pm.Region(self.renamed(region.tile), start, self.extents(region.shape))
        if region.start:
            axis = self.expr(region.start[0]), self.expr(region.shape[0])
            block = part(block, block.kept.index(self.axis), *axis)
        return block.region()

    def extents(self, shape: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return tuple(self.expr(shape[0]) if d == self.axis else Const(e) for d, e in enumerate(self.row))

    def work(self, work: pm.Work) -> pm.Work:
        row = math.prod(self.row)
        return pm.Work(
            simplify(self.expr(work.flops) * row), simplify(self.expr(work.bytes) * row), work.dtype
        )

    def renamed(self, name: str) -> str:
        if name not in self.names:
            self.names[name] = self.scope.state.declared.name(name)
        return self.names[name]

    # --- statements -------------------------------------------------------------------------------

    def body(self, body: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(self.statement(s) for s in body)

    def statement(self, s: Any) -> Any:
        """The same statement of the program's stream."""
        rule: Any = {pm.Loop: self.loop, pm.If: self.branch}.get(type(s), self.command)
        return replace(rule(s), source=self.node.place)

    def command(self, s: Any) -> Any:
        """Every field as its declaration says."""
        change: dict[str, Any] = {}
        for one in parts(type(s)):
            rule, value = _FIELDS.get(one.role) or _FIELDS.get(one.kind), getattr(s, one.name)
            if rule is not None and value is not None:
                change[one.name] = rule(self, value)
        if isinstance(s, pm.Send):
            change["to"] = self.unit_at(change["to"])
        if isinstance(s, pm.Compute) and self.plan.kernel is not None:
            change["by"] = self.transport(self.plan.kernel)
        if isinstance(s, pm.Start) and self.node.kind != "broadcast":  # only the root has data then
            change["read"] = self.buffers.x.region()
        return replace(s, **change)

    def group(self, name: str) -> str:
        scope = self.scope
        group = next(g for g in self.plan.groups if g.name == name)
        own, wider = key_of(scope, self.node.axis, self.node.scale), self.expr(group.key)
        key = own if wider == Const(0) else select(own < 0, own, own * self.plan.units + wider)
        transport = self.transport(group.transport)
        return scope.state.declared.barrier(scope.level, tidy(key, scope.ranges), transport=transport)

    def value(self, value: Any) -> Any:
        """A number, or the name of a tile."""
        return self.renamed(value) if isinstance(value, str) else self.expr(value)

    def loop(self, s: pm.Loop) -> pm.Loop:
        index = self.scope.state.declared.name(s.index)
        self.numbers[s.index] = Symbol(index)
        inits = [self.value(c.init) for c in s.carries]
        for carry in s.carries:
            if isinstance(carry, pm.CarryInt):
                self.numbers[carry.name] = Symbol(self.renamed(carry.name))
        limits = self.expr(s.start), self.expr(s.stop), self.expr(s.step)
        low, high = (bounds(e, self.scope.ranges) for e in limits[:2])
        if low is not None and high is not None and known(limits[2]) == 1:
            self.scope.ranges[index] = (low[0], max(low[0], high[1] - 1))
        body = self.body(s.body)
        carries: Any = (
            type(c)(self.renamed(c.name), init, self.value(c.next))
            for c, init in zip(s.carries, inits, strict=True)
        )
        frees = tuple(self.renamed(f) for f in s.frees)
        return pm.Loop(index, *limits[:2], body, limits[2], tuple(carries), frees)

    def branch(self, s: pm.If) -> pm.If:
        condition, body, orelse = self.expr(s.condition), self.body(s.body), self.body(s.orelse)
        merges: list[Any] = []
        for merge in s.merges:
            sides = self.value(merge.then), self.value(merge.orelse)
            merges.append(type(merge)(self.renamed(merge.name), *sides))
            if isinstance(merge, pm.MergeInt):
                self.numbers[merge.name] = Symbol(self.names[merge.name])
        return pm.If(condition, body, orelse, tuple(merges))


_FIELDS: dict[str, Callable[[_Inliner, Any], Any]] = {
    "channel": lambda inliner, name: inliner.names[name],
    "transport": _Inliner.transport,
    "group": _Inliner.group,
    "binds": _Inliner.renamed,
    "words": lambda inliner, names: tuple(map(inliner.renamed, names)),
    "expr": _Inliner.expr,
    "region": _Inliner.region,
    "regions": lambda inliner, regions: tuple(map(inliner.region, regions)),
    "typed": _Inliner.extents,
    "work": _Inliner.work,
}
"""What becomes of a field, by its role or else its kind."""
