"""The op log: every operation on data with its operands, from which the data can be computed again.

    with mt.host("ahbm", log=True) as torch:
        ...
        torch.op_log.write("ops.jsonl")
    outputs = mt.replay("ops.jsonl", inputs)      # tensors by name

One entry per line: ``tensor`` (where it lies), ``write`` (the host gave contents: those of ``inputs``),
``launch`` (which tensors are its tiles), ``op`` (times, unit, operation, operands with memory and address;
of a send the direction and number of the message), ``end`` (the tiles go back into tensors).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from megatile.core.dtypes import itemsize
from megatile.core.errors import MegatileError
from megatile.core.files import write_text
from megatile.plan.cohort import Cohort, SlotHandle, Value, spread
from megatile.plan.execute import Executor
from megatile.plan.model import Plan
from megatile.plan.storage import Access

if TYPE_CHECKING:
    from megatile.runtime.host.placement import PlacedShard
    from megatile.runtime.host.storage import Stored
    from megatile.runtime.host.tensor import Tensor
    from megatile.sim import Launch
    from megatile.trace import Trace

SCHEMA = "megatile.oplog/1"


class ReplayError(MegatileError, ValueError):
    """A log that cannot be followed."""


@dataclass(frozen=True)
class Piece:
    """So many elements of a tensor (or of one shard), from ``first`` on, at a place of a tile's row."""

    tensor: Tensor
    first: int
    count: int
    at: int
    shard: int | None = None

    @property
    def elements(self) -> Any:
        if self.shard is not None:
            return self.tensor._data[self.shard].reshape(-1)[self.first : self.first + self.count]
        return self.tensor.contents().reshape(-1)[self.first : self.first + self.count]

    def put(self, values: Any) -> None:
        """Put elements into the tensor."""
        if self.shard is not None:
            row = np.array(self.tensor._data[self.shard])
            row.reshape(-1)[self.first : self.first + self.count] = values
            self.tensor._data[self.shard] = row
        elif self.count == self.tensor.numel():
            self.tensor.set_contents(values)
        elif self.count:
            whole = np.array(self.tensor.contents()).reshape(-1)
            whole[self.first : self.first + self.count] = values
            self.tensor.set_contents(whole)

    def as_entry(self) -> list[Any]:
        """Return the tensor's name, its slices (None: all), then the numbers."""
        slices = None
        if self.shard is not None:
            slices = [[s.start, s.stop] for s in self.tensor.shards[self.shard].slices]
        return [self.tensor.name, slices, self.first, self.count, self.at]


Rows = list[list[Piece]]
"""For every row of a tile, where its elements come from or go to."""


def pieces(tensors: Sequence[Tensor]) -> list[Piece]:
    """Return whole tensors, one after the other."""
    return blocks(tensors, [t.numel() for t in tensors], 0)


def blocks(tensors: Sequence[Tensor], sizes: Sequence[int], room: int) -> list[Piece]:
    """Return blocks of these sizes, one per tensor or all of one tensor, every so many elements (0: close
    together)."""
    found, place, before = [], 0, 0
    for number, size in enumerate(sizes):
        tensor, first = (tensors[number], 0) if len(tensors) == len(sizes) else (tensors[0], before)
        base, skipped = tensor.home
        found.append(Piece(base, skipped + first, size, place))
        place += room or size
        before += size
    return found


def shard_rows(tensor: Tensor) -> Rows:
    """Return one row per shard."""
    sizes = [int(np.prod(shard.spec.shape)) for shard in tensor.shards]
    base, first = tensor.home
    return [
        [Piece(base, first, size, 0, None if size == tensor.numel() else number)]
        for number, size in enumerate(sizes)
    ]


@dataclass
class Binding:
    """Which tensors the tiles of a launch are, and where they lie."""

    load: dict[str, Rows]
    store: dict[str, Rows]
    shards: dict[str, list[PlacedShard]] = field(default_factory=dict)
    """Of tiles whose rows are shards: these."""


def _written(rows: dict[str, Rows]) -> dict[str, Any]:
    return {tile: [[piece.as_entry() for piece in row] for row in each] for tile, each in rows.items()}


class OpLog:
    """``entries`` as they are written; ``inputs`` what the host gave, by tensor."""

    def __init__(self, machine: str) -> None:
        self.entries: list[dict[str, Any]] = [{"kind": "log", "schema": SCHEMA, "machine": machine}]
        self.inputs: dict[str, list[Any]] = defaultdict(list)
        self.launches = 0

    def add(self, kind: str, **values: Any) -> None:
        self.entries.append({"kind": kind, **values})

    def tensor(self, tensor: Tensor, zero: bool) -> None:
        handle = tensor._there()
        shards = [
            {"sip": s.sip, "cube": s.cube, "pe": s.pe, "address": s.pa, "nbytes": s.nbytes}
            for s in handle.shards
        ]
        self.add(
            "tensor",
            tensor=tensor.name,
            shape=list(tensor.shape),
            dtype=tensor.dtype,
            memory=handle.mem_kind,
            address=handle.va_base,
            shards=shards,
            zero=zero,
        )

    def written(self, tensor: Stored) -> None:
        """Note that the host gave a tensor (or a part of one) contents."""
        base, _ = tensor.home
        self.inputs[base.name].append(np.array(base.contents()))
        self.add("write", tensor=base.name, number=len(self.inputs[base.name]) - 1)

    def execute(
        self, launch: Launch, plan: Plan, inputs: Mapping[str, Any], binding: Binding, trace: Trace
    ) -> dict[str, Any]:
        """Run a plan and note every operation; its outputs."""
        number, self.launches = self.launches, self.launches + 1
        tiles = {t.name: [plan.owners(t), t.versions, list(t.shape), t.dtype, t.memory] for t in plan.tiles}
        self.add(
            "launch",
            launch=number,
            name=launch.name,
            devices=list(launch.devices),
            start_ps=launch.submit_ps,
            tiles=tiles,
            load=_written(binding.load),
        )
        run = _Recorder(plan, inputs, launch, binding, number, trace)
        run.run()
        self.entries += run.entries
        outputs = run.outputs()
        last = {name: np.asarray(v).tolist() for name, v in run.final.items()}
        self.add("end", launch=number, store=_written(binding.store), versions=last)
        return outputs

    def write(self, path: str | Path) -> Path:
        """Write one JSON object per line; ``*.parquet`` needs pyarrow."""
        if str(path).endswith(".parquet"):
            return self._parquet(Path(path))
        write_text(
            path, "".join(json.dumps(e, separators=(",", ":")) + "\n" for e in self.entries), ReplayError
        )
        return Path(path)

    def _parquet(self, path: Path) -> Path:
        try:
            import pyarrow
            import pyarrow.parquet as parquet
        except ImportError:
            raise ReplayError(
                "Parquet needs pyarrow", advice="pip install 'megatile[perf]', or write *.jsonl"
            ) from None
        columns = ("kind", "launch", "sequence", "unit", "op", "start_ps", "end_ps", "direction", "message")
        table = {c: [e.get(c) for e in self.entries] for c in columns}
        table["entry"] = [json.dumps(e) for e in self.entries]
        parquet.write_table(pyarrow.table(table), path)
        return path


class _Recorder(Executor):
    """An execution that notes every operation of every unit."""

    def __init__(
        self,
        plan: Plan,
        inputs: Mapping[str, Any],
        launch: Launch,
        binding: Binding,
        number: int,
        trace: Trace,
    ) -> None:
        super().__init__(plan, inputs, order=launch.known, races=False)
        self.entries: list[dict[str, Any]] = []
        self.number, self.binding = number, binding
        self.times, self.units = _times(trace, launch.submit_ps), launch.resources.names
        self.roles: list[Any] = []

    def note(self, unit: int, op: str, write: Any, reads: list[Any], **more: Any) -> None:
        name = self.units[unit] if unit < len(self.units) else str(unit)
        start, end = next(self.times.get((name, op), iter(())), (None, None))
        self.entries.append(
            {
                "kind": "op",
                "launch": self.number,
                "sequence": len(self.entries),
                "unit": name,
                "op": op,
                "start_ps": start,
                "end_ps": end,
                "write": write,
                "reads": reads,
                **more,
            }
        )

    def operand(self, handle: Any, access: Access, at: int) -> dict[str, Any]:
        """Return what one unit reads or writes."""
        lead = [int(spread(v, at + 1)[at]) for v in access.lead]
        start = [int(v[at]) if isinstance(v, np.ndarray) else int(v) for v in access.start]
        shape = [int(v) for v in access.shape]
        if isinstance(handle, SlotHandle):
            channel = self.plan.channel(handle.channel)
            return {
                "queue": handle.channel,
                "unit": lead[0],
                "member": lead[1],
                "direction": channel.names[lead[1]] if channel.names else lead[1],
                "slot": lead[2],
                "whole": [int(spread(v, at + 1)[at]) for v in handle.shape],
                "start": start,
                "shape": shape,
                "dtype": handle.dtype,
                "memory": channel.memory,
            }
        tile = self.plan.tile(handle.tile)
        found = {
            "tile": tile.name,
            "owner": lead[0],
            "version": lead[1],
            "start": start,
            "shape": shape,
            "dtype": tile.dtype,
            "memory": tile.memory,
        }
        shards = self.binding.shards.get(tile.name, [])
        if lead[0] < len(shards):
            offset = int(np.ravel_multi_index(tuple(start), tile.shape)) if start and tile.elements else 0
            found["address"] = shards[lead[0]].pa + offset * itemsize(tile.dtype)
        return found

    def step_compute(self, cohort: Cohort, instruction: Any) -> bool:
        self.roles = [cohort.handles[code.tile] for code in (instruction.write, *instruction.reads)]
        return super().step_compute(cohort, instruction)

    def apply(self, cohort: Cohort, instruction: Any, write: Access, reads: list[Access]) -> None:
        super().apply(cohort, instruction, write, reads)
        if write.empty and all(read.empty for read in reads):
            return
        given = dict(instruction.attributes)
        for at, unit in enumerate(cohort.units.tolist()):
            own = given | {k: _number(f(cohort.ints), at) for k, f in instruction.varying.items()}
            axis = own.get("axis")
            if isinstance(axis, int) and axis >= 0 and reads:
                own["axis"] = axis - len(reads[0].shape)
            target, *sources = (
                self.operand(h, a, at) for h, a in zip(self.roles, [write, *reads], strict=True)
            )
            self.note(unit, instruction.statement.operation, target, sources, attributes=own)

    def on_send(self, cohort: Cohort, instruction: Any, to: Value, member: Value, slot: Value) -> None:
        super().on_send(cohort, instruction, to, member, slot)
        code = instruction.reads[0]
        handle, channel = cohort.handles[code.tile], instruction.statement.channel
        read = self.access(cohort, instruction, code, False)
        count, names = len(cohort), self.plan.channel(channel).names
        targets, members, slots = (spread(v, count) for v in (to, member, slot))
        sent = self.queues[channel].sent
        for at, unit in enumerate(cohort.units.tolist()):
            one = (
                read.part(np.array([at]), tuple(_number(e, at) for e in read.shape)) if read.ragged else read
            )
            source = self.operand(handle, one, 0 if read.ragged else at)
            m, there = int(members[at]), int(targets[at])
            self.note(
                unit,
                "send",
                {"queue": channel, "unit": there, "member": m, "slot": int(slots[at])},
                [source],
                direction=names[m] if names else m,
                message=int(sent[there, m]),
                nbytes=int(np.prod(source["shape"])) * itemsize(source["dtype"]),
            )

    def on_receive(self, cohort: Cohort, instruction: Any, handle: SlotHandle) -> None:
        super().on_receive(cohort, instruction, handle)
        if instruction.write is None:
            return
        write = self.access(cohort, instruction, instruction.write, True)
        slots = self.slots[handle.channel].channel.slots
        lead = (self.mine(cohort, handle.channel), handle.member, handle.sequence % slots)
        for at, unit in enumerate(cohort.units.tolist()):
            read = Access(None, lead, (), handle.shape, None)
            self.note(
                unit,
                "receive",
                self.operand(cohort.handles[instruction.write.tile], write, at),
                [self.operand(handle, read, at)],
            )

    def finish_collective(
        self, group: str, cohort: Cohort, instruction: Any, kinds: Any, values: Any
    ) -> None:
        super().finish_collective(group, cohort, instruction, kinds, values)
        write = self.access(cohort, instruction, instruction.write, True)
        read = self.access(cohort, instruction, instruction.reads[0], False)
        keys = self.keys[group]
        roots = spread(instruction.functions["root"](cohort.ints), len(cohort))
        for at, unit in enumerate(cohort.units.tolist()):
            kind, reduction = kinds[int(keys[unit])]
            members = np.flatnonzero(keys == keys[unit])
            chosen = members[[int(roots[at])]] if kind == "broadcast" else members
            mine = self.operand(cohort.handles[instruction.reads[0].tile], read, at)
            self.note(
                unit,
                kind,
                self.operand(cohort.handles[instruction.write.tile], write, at),
                [mine | {"owner": int(m)} for m in chosen],
                attributes={"reduction": reduction},
            )


def _number(value: Any, at: int) -> Any:
    return int(value[at]) if isinstance(value, np.ndarray) else value


def _times(trace: Trace, start_ps: int) -> dict[tuple[str, str], Any]:
    """By unit and operation, the times of its commands in order."""
    found: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for event in trace:
        found[event.unit, event.operation].append((start_ps + event.start_ps, start_ps + event.end_ps))
    return {key: iter(times) for key, times in found.items()}
