"""``replay``: everything that an op log tells, computed again."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from operator import index
from pathlib import Path
from typing import Any

import numpy as np

from megatile.core.dtypes import dtype as dtype_name, numpy_dtype
from megatile.core.errors import MegatileError, Place
from megatile.core.files import parse_json, read_file, read_text
from megatile.core.operations import OPERATIONS
from megatile.core.quantities import format_bytes
from megatile.plan.compute import compute, reduce_values
from megatile.runtime.host.oplog import SCHEMA, OpLog, ReplayError

MAX_FILE_BYTES = 1 << 30
"""Bytes of a log that are read, and of its tensors."""
MAX_FILE_DATA = 4 << 30
"""Bytes of the tensors and tiles that the log of a file may ask for."""


def replay(
    log: str | Path | OpLog | Iterable[Mapping[str, Any]], inputs: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Compute everything again from a log: the contents of all tensors at its end, by name.

    ``inputs`` are what the host gave: per tensor an array, or a list of them in the order of its writes (an
    `OpLog` has them).
    """
    given: Mapping[str, Any] = inputs if inputs is not None else log.inputs if isinstance(log, OpLog) else {}
    run = _Replay(given, MAX_FILE_DATA if isinstance(log, (str, Path)) else None)
    for entry in _entries(log):
        kind = entry.get("kind")
        step = getattr(run, f"on_{kind}", None)
        if step is None:
            raise ReplayError(f"a log has no entries of kind {kind!r}")
        try:
            step(entry)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError) as problem:
            if isinstance(problem, MegatileError):
                raise
            where = f"{entry.get('op', kind)} {entry.get('sequence', '')}".strip()
            raise ReplayError(
                f"the log cannot be followed at {where}: {type(problem).__name__} {problem}"
            ) from None
    return run.tensors


def _entries(log: Any) -> Iterable[Mapping[str, Any]]:
    if isinstance(log, OpLog):
        return log.entries
    if not isinstance(log, (str, Path)):
        if log is None or isinstance(log, Mapping):
            raise ReplayError(
                f"{type(log).__name__} is not a log", advice="give an OpLog, its entries, or a file"
            )
        return log
    if str(log).endswith(".parquet"):
        return _parquet(log)
    lines = read_text(log, MAX_FILE_BYTES, ReplayError).splitlines()
    found = _lines(log, lines)
    first = next(found, None)
    if first is None or first.get("schema") != SCHEMA:
        raise ReplayError(f"{log} is not a log of schema {SCHEMA}")
    return chain([first], found)


def _lines(log: str | Path, lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(lines, start=1):
        try:
            entry = parse_json(line)
        except ValueError as problem:
            raise ReplayError(f"is not a log: {problem}", place=Place(str(log), number)) from None
        if not isinstance(entry, dict):
            raise ReplayError("a line of a log is an object", place=Place(str(log), number))
        yield entry


def _parquet(path: str | Path) -> Iterator[Any]:
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise ReplayError("Parquet needs pyarrow", advice="pip install 'megatile[perf]'") from None
    read_file(path, MAX_FILE_BYTES, ReplayError)  # regular, and not too large
    try:
        with parquet.ParquetFile(path) as opened:
            for batch in opened.iter_batches(batch_size=64, columns=["entry"]):
                yield from map(json.loads, batch.column("entry").to_pylist())
    except (pyarrow.ArrowException, OSError, KeyError, ValueError, TypeError) as problem:
        raise ReplayError(f"{path} cannot be read as Parquet: {str(problem).splitlines()[0]}") from None


class _Replay:
    def __init__(self, inputs: Mapping[str, Any], limit: int | None) -> None:
        self.inputs = inputs
        self.limit = limit
        """Bytes that tensors and tiles may still take; None: any number."""
        self.tensors: dict[str, Any] = {}
        self.tiles: dict[str, Any] = {}
        self.queues: dict[tuple[Any, ...], Any] = {}

    def on_log(self, entry: Any) -> None:
        if entry["schema"] != SCHEMA:
            raise ReplayError(f"a log of schema {entry['schema']!r} is not {SCHEMA}")

    def array(self, shape: Any, element: str) -> Any:
        """Return zeros of a shape, within the limit."""
        kind = numpy_dtype(dtype_name(element))
        if self.limit is not None:
            self.limit -= math.prod(map(index, shape)) * kind.itemsize
            if self.limit < 0:
                raise ReplayError(f"the log has more than {format_bytes(MAX_FILE_DATA)} of tensors and tiles")
        return np.zeros(shape, kind)

    def on_tensor(self, entry: Any) -> None:
        self.tensors[entry["tensor"]] = self.array(entry["shape"], entry["dtype"])

    def on_write(self, entry: Any) -> None:
        name, number = entry["tensor"], entry["number"]
        given = self.inputs.get(name)
        if given is None:
            raise ReplayError(f"the input '{name}' is missing", advice="replay(log, {name: array, …})")
        chosen = given[number] if isinstance(given, list) else given
        target = self.tensors[name]
        target[...] = np.asarray(chosen).reshape(target.shape).astype(target.dtype)

    def on_launch(self, entry: Any) -> None:
        self.queues = {}
        if self.limit is not None:
            self.limit += sum(tile.nbytes for tile in self.tiles.values())
        self.tiles = {
            name: self.array((owners, versions, *shape), element)
            for name, (owners, versions, shape, element, _) in entry["tiles"].items()
        }
        for tile, rows in entry["load"].items():
            for row, parts in enumerate(rows):
                flat = self.tiles[tile][row, 0].reshape(-1)
                for name, slices, first, count, at in parts:
                    flat[at : at + count] = self.part(name, slices).reshape(-1)[first : first + count]

    def part(self, name: str, slices: Any) -> Any:
        whole = self.tensors[name]
        return whole if slices is None else whole[tuple(slice(*s) for s in slices)]

    def on_end(self, entry: Any) -> None:
        for tile, rows in entry["store"].items():
            for row, parts in enumerate(rows):
                array = self.tiles[tile]
                version = entry["versions"][tile][row] % array.shape[1]
                flat = array[row, version].reshape(-1)
                for name, slices, first, count, at in parts:
                    target = self.part(name, slices)
                    if count == target.size:
                        target[...] = flat[at : at + count].reshape(target.shape)
                    else:
                        target.reshape(-1)[first : first + count] = flat[at : at + count]

    def view(self, operand: Any) -> Any:
        spans = tuple(slice(a, a + n) for a, n in zip(operand["start"], operand["shape"], strict=False))
        if "queue" in operand:
            message = self.queues[operand["queue"], operand["unit"], operand["member"], operand["slot"]]
            typed = message.reshape(-1).view(numpy_dtype(operand["dtype"])).reshape(operand["whole"])
            return typed[spans] if operand["start"] else typed
        array = self.tiles[operand["tile"]][operand["owner"], operand["version"], ...]
        return array[spans] if operand["start"] else array

    def on_op(self, entry: Any) -> None:
        op, reads = entry["op"], [self.view(o) for o in entry["reads"]]
        target = entry["write"]
        if op == "send":
            key = (target["queue"], target["unit"], target["member"], target["slot"])
            self.queues[key] = np.ascontiguousarray(reads[0]).copy()
        elif op == "receive":
            compute(OPERATIONS["copy"], self.view(target), reads, {}, batched=False)
        elif op in ("all_reduce", "broadcast"):
            reduction = entry["attributes"]["reduction"]
            self.view(target)[...] = reads[0] if op == "broadcast" else reduce_values(reduction, reads)
        else:
            compute(OPERATIONS[op], self.view(target), reads, dict(entry["attributes"]), batched=False)
