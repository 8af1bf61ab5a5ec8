"""``replay``: everything that an op log tells, computed again."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from megatile.core.dtypes import dtype as dtype_name, numpy_dtype
from megatile.core.errors import MegatileError
from megatile.core.files import read_text
from megatile.core.operations import OPERATIONS
from megatile.plan.compute import compute, reduce_values
from megatile.runtime.host.oplog import SCHEMA, OpLog, ReplayError

LARGEST = 1 << 30


def replay(
    log: str | Path | OpLog | Iterable[Mapping[str, Any]], inputs: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Compute everything again from a log: the contents of all tensors at its end, by name.

    ``inputs`` are what the host gave: per tensor an array, or a list of them in the order of its writes (an
    `OpLog` has them).
    """
    given: Mapping[str, Any] = inputs if inputs is not None else log.inputs if isinstance(log, OpLog) else {}
    run = _Replay(given)
    for entry in _entries(log):
        kind = entry.get("kind")
        step = getattr(run, f"on_{kind}", None)
        if step is None:
            raise ReplayError(f"a log has no entries of kind {kind!r}")
        try:
            step(entry)
        except (KeyError, IndexError, TypeError, ValueError) as problem:
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
                f"{type(log).__name__} is no log", advice="give an OpLog, its entries, or a file"
            )
        return log
    if str(log).endswith(".parquet"):
        return _parquet(log)
    lines = read_text(log, LARGEST, ReplayError).splitlines()
    try:
        found = [json.loads(line) for line in lines]
    except ValueError as problem:
        raise ReplayError(f"{log} is no log: {problem}") from None
    if not found or not isinstance(found[0], dict) or found[0].get("schema") != SCHEMA:
        raise ReplayError(f"{log} is no log of schema {SCHEMA}")
    return found


def _parquet(path: str | Path) -> list[Any]:
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise ReplayError("Parquet needs pyarrow", advice="pip install 'megatile[perf]'") from None
    try:
        return [json.loads(text) for text in parquet.read_table(path, columns=["entry"])["entry"].to_pylist()]
    except (pyarrow.ArrowException, OSError, KeyError, ValueError, TypeError) as problem:
        raise ReplayError(f"{path} cannot be read as Parquet: {str(problem).splitlines()[0]}") from None


class _Replay:
    def __init__(self, inputs: Mapping[str, Any]) -> None:
        self.inputs = inputs
        self.tensors: dict[str, Any] = {}
        self.tiles: dict[str, Any] = {}
        self.queues: dict[tuple[Any, ...], Any] = {}

    def on_log(self, entry: Any) -> None:
        if entry["schema"] != SCHEMA:
            raise ReplayError(f"a log of schema {entry['schema']!r} is not {SCHEMA}")

    def on_tensor(self, entry: Any) -> None:
        make = np.zeros if entry["zero"] else np.empty
        self.tensors[entry["tensor"]] = make(entry["shape"], numpy_dtype(dtype_name(entry["dtype"])))

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
        self.tiles = {
            name: np.zeros((owners, versions, *shape), numpy_dtype(dtype_name(element)))
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
