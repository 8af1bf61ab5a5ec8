"""What a group of ranks does once all have joined: a plan for the collective, run on their tensors.

Whoever wants to know what is communicated (``WATCHERS``) hears of collectives of ranks, and of what kernels
send at their scales.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from megatile.collectives.algorithms import algorithms
from megatile.collectives.columns import side_by_side
from megatile.collectives.planner import Prediction, predict
from megatile.core.dtypes import itemsize, numpy_dtype
from megatile.core.quantities import format_bytes
from megatile.plan.deadlock import PlanDeadlock
from megatile.plan.model import Plan
from megatile.runtime.host.columns import Columns, columns_of
from megatile.runtime.host.groups import Call, ProcessGroup
from megatile.runtime.host.oplog import Binding, Rows, blocks, pieces, shard_rows
from megatile.runtime.host.workers import DistributedError
from megatile.sim import Deadlock, Launch, Result, simulate

if TYPE_CHECKING:
    from megatile.runtime.host.context import RuntimeContext

COLLECTIVES = ("all_reduce", "broadcast", "barrier")
"""What networks do by themselves, as commands of a Plan."""


@dataclass(frozen=True)
class Communicated:
    """A collective of some ranks, or the messages of a kernel: how many bytes, where it was called."""

    operation: str
    nbytes: int
    ranks: tuple[int, ...]
    where: str
    scales: tuple[str, ...] = ("device",)
    """Names of the scale: in programs, and in the machine."""
    count: int = 1
    dtype: str = ""
    work: Launch | None = None
    """Of a collective: its elements, and what was done."""
    site = property(lambda self: self.where)

    def __str__(self) -> str:
        many = f"{self.count} {self.operation}" if self.count > 1 else self.operation
        ranks = f" over ranks {', '.join(map(str, self.ranks))}" if self.ranks else ""
        return f"{many} of {format_bytes(self.nbytes)} at {self.scales[-1]}{ranks}  {self.where}"


WATCHERS: list[Callable[[Communicated], None]] = []
"""Called with everything that is communicated."""


def tell(call: Communicated) -> None:
    for watch in WATCHERS:
        watch(call)


def tell_kernel(name: str, launch: Launch) -> None:
    """Tell what a kernel communicates, if somebody wants to know."""
    for call in communicated(Result(launch), name) if WATCHERS else ():
        tell(call)


def communicated(result: Any, name: str = "") -> list[Communicated]:
    """Return the messages of a simulated plan, and the collectives of each unit, by the scale of the
    units."""
    sent: Counter[str] = Counter()
    each: Counter[tuple[str, str, str]] = Counter()
    size: Counter[tuple[str, str]] = Counter()
    for event in result.trace:
        scale = event.unit.rpartition("/")[2].rstrip("0123456789")
        if event.operation == "send":
            sent[scale] += 1
            size[scale, "send"] += event.bytes
        elif event.operation in COLLECTIVES:
            each[scale, event.operation, event.unit] += 1
            size[scale, event.operation] = max(size[scale, event.operation], event.bytes)
    found = [Communicated("send", size[s, "send"], (), name, (s,), count) for s, count in sent.items()]
    for scale, operation in dict.fromkeys((s, o) for s, o, _ in each):
        count = max(n for (s, o, _), n in each.items() if (s, o) == (scale, operation))
        nbytes = count * size[scale, operation]
        found.append(Communicated(operation, nbytes, (), name, (scale,), count))
    return found


class When(NamedTuple):
    """When a collective begins: from a time on, after some launches."""

    clock_ps: int
    after: Sequence[Launch]


IN_PLACE = ("all_reduce", "broadcast", "reduce")
ONE_GETS = ("reduce", "gather")


class CollectiveDeadlock(DistributedError, PlanDeadlock):
    """A kernel of ccl.yaml that cannot go on; the text and ``graph`` have every queue's pointers."""


class Collectives:
    """The plans of a host's collectives; each is made once."""

    def __init__(self, context: RuntimeContext, algorithm: str) -> None:
        self.context, self.algorithm = context, algorithm
        self._plans: dict[tuple[Any, ...], Prediction] = {}
        self._columns: dict[tuple[Any, ...], Prediction] = {}
        self._installed: set[int] = set()

    def run(self, group: ProcessGroup, calls: list[Call]) -> Launch:
        """Do what all ranks of a group asked for."""
        first = calls[0]
        context = self.context
        tensors = [t for call in calls for t in (*call.inputs, *call.outputs)]
        at = When(max(call.at_ps for call in calls), [w for t in tensors for w in t.writers])
        if first.operation == "all_reduce" and context.ccl is not None and group.size() == context.ccl.sips:
            work = self._kernel(calls, at)
        elif first.splits:
            work = self._uneven(group, calls, at)
        elif first.count == 0 and first.operation != "barrier":
            work = self._nothing(at)
        else:
            work = self._library(group, calls, at)
        for call in calls:
            for tensor in call.outputs:
                tensor.writer = work
        self._count(first, group.ranks, work)
        return work

    def _count(self, call: Call, ranks: tuple[int, ...], work: Launch) -> None:
        nbytes = call.count * itemsize(call.dtype)
        level = self.context.machine.level("device").name
        scales = ("device", level)
        said = Communicated(call.operation, nbytes, ranks, call.site, scales, dtype=call.dtype, work=work)
        tell(said)
        self.context.communications.append(said)

    def _nothing(self, at: When) -> Launch:
        return self.context.engine.occupy("nothing", at.clock_ps, 0, (), at.after)

    def prediction(
        self, ranks: tuple[int, ...], call: Call, count: int, algorithm: str = "", **fields: Any
    ) -> Prediction:
        """Return the plan of a collective of the library over devices, or over units of a ``scale``."""
        named = algorithm or ("auto" if "splits" in fields else self._for(call.operation))
        key = (call.operation, ranks, count, call.dtype, call.reduction, call.root, named, *fields.values())
        if key not in self._plans:
            context = self.context
            everyone = "scale" not in fields and ranks == tuple(range(context.shape.devices))
            self._plans[key] = predict(
                call.operation,
                machine=context.machine,
                algorithm=named,
                nbytes=None if "splits" in fields else count * itemsize(call.dtype),
                dtype=call.dtype,
                ranks=None if everyone else list(ranks),
                reduction=call.reduction,
                root=call.root,
                in_place=call.operation in IN_PLACE,
                timed=False,
                **{"memory": context.shape.hbm, **fields},
            )
        return self._plans[key]

    def _for(self, operation: str) -> str:
        """Return the algorithm that was named, for what it can do; the best one for the rest."""
        named = algorithms().get(self.algorithm)
        return self.algorithm if named is None or operation in named.operations else "auto"

    def chosen(self, operation: str) -> str:
        """Return the algorithm that did an operation last."""
        done = [found.algorithm for key, found in self._plans.items() if key[0] == operation]
        return done[-1] if done else self.algorithm

    def first_time(self, plan: Plan) -> bool:
        """Return whether the queues of a plan are still to be installed."""
        new = id(plan) not in self._installed
        self._installed.add(id(plan))
        return new

    def _library(self, group: ProcessGroup, calls: list[Call], at: When) -> Launch:
        first = calls[0]
        stored = [first.operation not in ONE_GETS or number == first.root for number in range(len(calls))]
        columns = columns_of(calls, stored, self.context.shape)
        if columns is not None:
            return self._on_pes(group.ranks, first, columns, at)
        found = self.prediction(group.ranks, first, first.count)
        load = [pieces(call.inputs) for call in calls]
        store = [pieces(call.outputs) if kept else [] for call, kept in zip(calls, stored, strict=True)]
        return self._submit(found, group.ranks, load, store, at)

    def _on_pes(self, ranks: Sequence[int], call: Call, columns: Columns, at: When, **fields: Any) -> Launch:
        """Run a collective on the PEs where its tensors lie."""
        fields |= {"scale": self.context.shape.pe_scale, "memory": columns.memory}
        found = self.prediction(columns.places[0], call, columns.count, **fields)
        key = id(found), columns.places
        if key not in self._columns:
            self._columns[key] = self._all_columns(found, call, columns, fields)
        return self._submit(self._columns[key], ranks, columns.load, columns.store, at)

    def _all_columns(
        self, found: Prediction, call: Call, columns: Columns, fields: dict[str, Any]
    ) -> Prediction:
        """Return the plan of all columns at once. They share links, so what is fastest for one column alone
        need not be: what the planner takes for all bytes and the rings are timed beside it."""
        first, several = columns.places[0], len(columns.places)
        tried = [found]
        if several > 1 and self._for(call.operation) == "auto" and "peer" not in fields:
            whole = self.prediction(first, call, columns.count * several, **fields)
            others = {whole.algorithm, "ring", "ring_bidirectional"} - {found.algorithm}
            able = [name for name in sorted(others) if call.operation in algorithms()[name].operations]
            tried += [self.prediction(first, call, columns.count, name, **fields) for name in able]
        made = [replace(one, plan=side_by_side(one.plan, columns.places)) for one in tried]
        if len(made) == 1:
            return made[0]
        machine = self.context.machine
        return min(made, key=lambda one: simulate(one.plan, machine=machine, record=False).time_ps)

    def _uneven(self, group: ProcessGroup, calls: list[Call], at: When) -> Launch:
        """All-to-all with splits of any size."""
        splits = [call.splits for call in calls if call.splits]
        for i, call in enumerate(calls):
            for j, other in enumerate(calls):
                wanted, given = splits[i][1][j], splits[j][0][i]
                if wanted != given:
                    raise DistributedError(
                        f"all_to_all: rank {call.rank} expects {wanted} elements of rank {other.rank} "
                        f"({call.site}), which sends {given} ({other.site})"
                    )
        largest = max(max(given, default=0) for given, _ in splits)
        if not largest:
            return self._nothing(at)
        sent = tuple(given for given, _ in splits)
        found = self.prediction(group.ranks, calls[0], largest * group.size(), splits=sent)
        load = [blocks(c.inputs, given, largest) for c, (given, _) in zip(calls, splits, strict=True)]
        store = [blocks(c.outputs, wanted, largest) for c, (_, wanted) in zip(calls, splits, strict=True)]
        return self._submit(found, group.ranks, load, store, at)

    def _submit(self, found: Prediction, ranks: Sequence[int], load: Rows, store: Rows, at: When) -> Launch:
        """Run a plan whose tile has one row of elements per rank, taken from tensors and put into tensors."""
        plan, job, inputs, binding = found.plan, found.job, None, None
        shape = job.shapes[0]
        if self.context.engine.data and shape is not None:
            x = np.zeros((len(load), *shape), numpy_dtype(job.dtype))
            for row, parts in zip(x, load, strict=True):
                for piece in parts:
                    row[piece.at : piece.at + piece.count] = piece.elements
            inputs = {tile.name: x for tile in plan.tiles if tile.role in ("input", "inout")}
            outputs = [tile.name for tile in plan.tiles if tile.role in ("output", "inout")]
            binding = Binding(dict.fromkeys(inputs, load), dict.fromkeys(outputs, store))
        launch, results = self.context.engine.submit(
            plan,
            at.clock_ps,
            ranks,
            inputs=inputs,
            installed=not self.first_time(plan),
            name=job.operation,
            beside=True,
            binding=binding,
            after=at.after,
        )
        if results is not None:
            (result,) = results.values()
            for row, parts in zip(result, store, strict=True):
                for piece in parts:
                    piece.put(row[piece.at : piece.at + piece.count])
        return launch

    def _kernel(self, calls: list[Call], at: When) -> Launch:
        """All-reduce by the kernel of ``ccl.yaml``, on the PEs where the tensors lie."""
        ccl = self.context.ccl
        assert ccl is not None
        tensors = [call.inputs[0] for call in calls]
        ccl.check([s for tensor in tensors for s in tensor.shards])
        rows = [tensor.rows() for tensor in tensors]  # uneven shards are refused
        each, inputs, binding = len(tensors[0].shards), None, None
        count, dtype = prod(tensors[0].shards[0].spec.shape), calls[0].dtype
        plan = ccl.plan(count, dtype, calls[0].reduction)
        if self.context.engine.data:
            inputs = {"t": np.concatenate([row.reshape(each, -1) for row in rows])}
            lying = [row for tensor in tensors for row in shard_rows(tensor)]
            binding = Binding({"t": lying}, {"t": lying})
        try:
            launch, outputs = self.context.engine.submit(
                plan,
                at.clock_ps,
                range(len(calls)),
                inputs=inputs,
                name=ccl.name,
                beside=True,
                binding=binding,
                after=at.after,
            )
        except Deadlock as stuck:
            lines = ccl.rings(dict.fromkeys(w.unit for w in stuck.graph.waiters))
            said, advice = ccl.too_small(count, dtype)
            text = "\n".join([said, stuck.message, *lines])
            raise CollectiveDeadlock(text, stuck.waits, stuck.graph, advice=advice) from stuck
        nbytes = tensors[0].shards[0].nbytes
        tell(Communicated("all_reduce", nbytes, (), calls[0].site, (self.context.shape.pe_scale,)))
        if outputs is not None:
            for number, tensor in enumerate(tensors):
                tensor._data = outputs["t"][number * each : (number + 1) * each].reshape(rows[number].shape)
        return launch

    def message(self, send: Call, receive: Call) -> Launch:
        """Return a tensor from one rank to another."""
        ranks = tuple(sorted((send.rank, receive.rank)))
        writers = [*send.inputs[0].writers, *receive.outputs[0].writers]
        at = When(max(send.at_ps, receive.at_ps), writers)
        if not send.count:
            return self._nothing(at)
        sent, peer = replace(send, root=ranks.index(send.rank)), ranks.index(receive.rank)
        given, got = replace(send, outputs=()), replace(receive, inputs=receive.outputs)
        ends = [given if rank == send.rank else got for rank in ranks]
        stored = [rank == receive.rank for rank in ranks]
        columns = columns_of(ends, stored, self.context.shape)
        if columns is not None:
            work = self._on_pes(ranks, sent, columns, at, peer=peer)
        else:
            found = self.prediction(ranks, sent, send.count, peer=peer)
            load = [pieces(send.inputs)] * 2
            store = [pieces(receive.outputs) if kept else [] for kept in stored]
            work = self._submit(found, ranks, load, store, at)
        receive.outputs[0].writer = work
        self._count(send, (send.rank, receive.rank), work)
        return work
