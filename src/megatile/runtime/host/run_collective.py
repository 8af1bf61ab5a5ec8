"""What a group of ranks does once all have joined: a plan for the collective, run on their tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from megatile.collectives.planner import Prediction, predict
from megatile.collectives.reference import result_of
from megatile.core.dtypes import itemsize, numpy_dtype
from megatile.plan.model import Plan
from megatile.runtime.host.engine import Launch
from megatile.runtime.host.groups import Call, ProcessGroup
from megatile.runtime.host.workers import DistributedError

if TYPE_CHECKING:
    from megatile.runtime.host.context import RuntimeContext

IN_PLACE = ("all_reduce", "broadcast", "reduce")
ONE_GETS = ("reduce", "gather")


@dataclass(frozen=True)
class Communication:
    """What ranks did together: the operation, the bytes of its whole buffer, and where one of them called
    it."""

    operation: str
    ranks: tuple[int, ...]
    nbytes: int
    dtype: str
    site: str
    work: Launch


class Collectives:
    """The plans of a host's collectives; each is made once."""

    def __init__(self, context: RuntimeContext, algorithm: str) -> None:
        self.context, self.algorithm = context, algorithm
        self._plans: dict[tuple[Any, ...], Prediction] = {}
        self._installed: set[int] = set()

    def run(self, group: ProcessGroup, calls: list[Call]) -> Launch:
        """Do what all ranks of a group asked for."""
        first = calls[0]
        context = self.context
        tensors = [t for call in calls for t in (*call.inputs, *call.outputs)]
        at = max([*(call.at_ps for call in calls), *(t.ready_ps for t in tensors)])
        if (
            first.operation == "all_reduce"
            and context.ccl is not None
            and group.size() == context.ccl.world_size
        ):
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
        self.context.communications.append(
            Communication(call.operation, ranks, nbytes, call.dtype, call.site, work)
        )

    def _nothing(self, at: int) -> Launch:
        return Launch(self.context.engine, "nothing", (), at, end=at)

    def prediction(self, ranks: tuple[int, ...], call: Call, count: int, **fields: Any) -> Prediction:
        """The plan of a collective of the library over devices."""
        key = (call.operation, ranks, count, call.dtype, call.reduction, call.root, *fields.values())
        if key not in self._plans:
            context = self.context
            everyone = ranks == tuple(range(context.shape.devices))
            self._plans[key] = predict(
                call.operation,
                machine=context.machine,
                algorithm=self.algorithm,
                nbytes=count * itemsize(call.dtype),
                dtype=call.dtype,
                ranks=None if everyone else list(ranks),
                reduction=call.reduction,
                root=call.root,
                in_place=call.operation in IN_PLACE,
                memory=context.shape.hbm,
                timed=False,
                **fields,
            )
        return self._plans[key]

    def first_time(self, plan: Plan) -> bool:
        """Whether the queues of a plan are still to be installed."""
        new = id(plan) not in self._installed
        self._installed.add(id(plan))
        return new

    def _library(self, group: ProcessGroup, calls: list[Call], at: int) -> Launch:
        first = calls[0]
        found = self.prediction(group.ranks, first, first.count)
        rows = [call.given() for call in calls] if self._with_data(calls) else None
        work, results = self._submit(found, group.ranks, rows, at, str(first.operation))
        if results is not None:
            for number, call in enumerate(calls):
                if first.operation not in ONE_GETS or number == first.root:
                    call.take(results[number])
        return work

    def _with_data(self, calls: Sequence[Call]) -> bool:
        return self.context.engine.data and calls[0].operation != "barrier"

    def _submit(
        self, found: Prediction, ranks: Sequence[int], rows: Sequence[Any] | None, at: int, name: str
    ) -> tuple[Launch, list[Any] | None]:
        """Run a plan on one flat array per rank; the flat result of every rank."""
        plan, job, inputs = found.plan, found.job, None
        if rows is not None:
            shape = job.shapes[0]
            assert shape is not None
            x = np.zeros((len(rows), *shape), numpy_dtype(job.dtype))
            for row, data in zip(x, rows, strict=True):
                row[: len(data)] = data
            inputs = {tile.name: x for tile in plan.tiles if tile.role in ("input", "inout")}
        launch, outputs = self.context.engine.submit(
            plan,
            at,
            ranks,
            inputs=inputs,
            timing=found.timing,
            installed=not self.first_time(plan),
            name=name,
            beside=True,
        )
        if outputs is None:
            return launch, None
        (result,) = outputs.values()
        return launch, [result_of(job, result, number) for number in range(len(ranks))]

    def _uneven(self, group: ProcessGroup, calls: list[Call], at: int) -> Launch:
        """All-to-all with splits of any size: every block has the room of the largest one."""
        size = group.size()
        given = [call.splits[0] for call in calls if call.splits]
        largest = max(max(splits, default=0) for splits in given)
        for i, call in enumerate(calls):
            wanted = call.splits[1] if call.splits else ()
            for j, other in enumerate(calls):
                if wanted[j] != given[j][i]:
                    raise DistributedError(
                        f"all_to_all: rank {call.rank} expects {wanted[j]} elements of rank "
                        f"{other.rank} ({call.site}), which sends {given[j][i]} ({other.site})"
                    )
        if not largest:
            return self._nothing(at)
        found = self.prediction(group.ranks, calls[0], largest * size)
        rows = None
        if self._with_data(calls):
            rows = []
            for call, splits in zip(calls, given, strict=True):
                blocks = np.split(call.given(), np.cumsum(splits)[:-1])
                rows.append(np.concatenate([np.pad(b, (0, largest - len(b))) for b in blocks]))
        work, results = self._submit(found, group.ranks, rows, at, "all_to_all")
        if results is not None:
            for number, call in enumerate(calls):
                blocks = results[number].reshape(size, largest)
                call.take(np.concatenate([blocks[i][: given[i][number]] for i in range(size)]))
        return work

    def _kernel(self, calls: list[Call], at: int) -> Launch:
        """All-reduce by the kernel of ``ccl.yaml``, on the PEs where the tensors lie."""
        ccl = self.context.ccl
        assert ccl is not None
        shards = [s for call in calls for s in call.inputs[0].shards]
        ccl.check(shards)
        rows = [call.inputs[0].rows() for call in calls]  # uneven shards are refused
        each = len(calls[0].inputs[0].shards)
        count, inputs = prod(calls[0].inputs[0].shards[0].spec.shape), None
        plan = ccl.plan(count, calls[0].dtype, calls[0].reduction)
        if self._with_data(calls):
            inputs = {"t": np.concatenate([row.reshape(each, -1) for row in rows])}
        launch, outputs = self.context.engine.submit(
            plan, at, range(len(calls)), inputs=inputs, name=ccl.name, beside=True
        )
        if outputs is not None:
            for number, call in enumerate(calls):
                tensor = call.outputs[0]
                tensor._data = outputs["t"][number * each : (number + 1) * each].reshape(tensor.rows().shape)
        return launch

    def message(self, send: Call, receive: Call) -> Launch:
        """A tensor from one rank to another."""
        ranks = tuple(sorted((send.rank, receive.rank)))
        at = max(c.at_ps for c in (send, receive))
        at = max(at, send.inputs[0].ready_ps, receive.outputs[0].ready_ps)
        if not send.count:
            return self._nothing(at)
        found = self.prediction(
            ranks, replace(send, root=ranks.index(send.rank)), send.count, peer=ranks.index(receive.rank)
        )
        data = send.given() if self._with_data([send]) else None
        work, results = self._submit(found, ranks, None if data is None else [data, data], at, "send_recv")
        if results is not None:
            receive.take(results[ranks.index(receive.rank)])
        receive.outputs[0].writer = work
        self._count(send, (send.rank, receive.rank), work)
        return work
