"""Which algorithm and transport of the collectives library does a collective of a Program, and its Plan.

Loaded only for programs that have one: the planner brings the simulator with it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
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
from megatile.cost.cheapest import cheapest
from megatile.cost.static_bound import floor
from megatile.hda import HDA
from megatile.ir import nodes as n
from megatile.lowering.buffers import Asked
from megatile.lowering.errors import cannot
from megatile.plan import model as pm
from megatile.plan.model import PlanError, Transport, with_transport
from megatile.sim import TimeBudgetExceeded, simulate
from megatile.timing.transports import has_library

MAX_UNITS_FOR_PLANNER = 256
"""Units up to which the planner is asked for its choice; more of them get directly from each other."""


OTHER_ENGINES = ("copy_engine", "lsu")
"""What ``impl=`` may name in place of a library's kernel: the devices' copy engines, stores of their SMs."""
WITH_KERNELS = (*LIBRARIES, *KERNELS_OF)
"""Libraries and engines whose own choice ``impl`` may ask for."""
MAX_USELESS_BOUNDS = 2
"""How many more bounds may be below the time of the first guess than above it, before candidates are timed
without one: where latency dominates they rule nothing out, and each takes half as long as a run."""


def check_algorithm(node: n.Collective) -> str | None:
    """Return the registered name that ``algorithm=`` gives (or ``impl="in_network"``); None: what the
    machine's library does, or the fastest."""
    name = node.algorithm or ("in_network" if node.impl == "in_network" else None)
    if name is None or name == "auto" or node.impl in WITH_KERNELS:
        return None
    return ALGORITHMS.find(name, node.place).name


class Chosen(NamedTuple):
    """What does a collective: the algorithm, what sends its messages, and its Plan of rows."""

    algorithm: str
    impl: str | None
    """A library (what it does by itself), ``kernel`` (an algorithm that was asked for, by kernels of the
    library), ``copy_engine``, ``lsu``; None: the units' own engines."""
    plan: pm.Plan


def library_plan(asked: Asked) -> Chosen | None:
    """Return what does a collective of units that send messages; None: no algorithm does."""
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
    """Return why a collective is not for the library."""
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
    """Return what the machine's library does for these units and this size, or its kernels with the algorithm
    named.

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
        (kernel,) = (replace(t, captured=False) for t in found.plan.transports)
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
