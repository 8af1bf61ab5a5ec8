"""Tables of measured times: CSV and Parquet by their columns, logs of nccl-tests and rccl-tests.

`FORMATS` says which columns make a table which operation; a file whose columns fit none is refused with the
columns that are known. Rows that hold no time (not a number, zero, negative) are refused with their line.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from megatile.core.dtypes import dtype as dtype_name
from megatile.core.errors import MegatileError, Place
from megatile.core.files import read_file, whole_file
from megatile.core.progress import tell
from megatile.timing.database import DatabaseError, Measurement
from megatile.timing.exchange_rules import COLLECTIVES
from megatile.timing.formulas import OPERATIONS

MAX_FILE_BYTES = 1 << 30
"""Bytes of a table or log that are read."""
MAX_ROWS = 10_000_000
"""Rows of one table."""
MARLIN = "marlin"
"""In names of kernels: one that widens 4-bit weights of any kind."""
CAPTURED = "captured"
"""The implementation of collectives in captured graphs (``-G`` of nccl-tests)."""
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Format:
    """How a table's columns say what was measured; ``extents``: column → extent of the operation."""

    extents: Mapping[str, str]
    operation: str | Callable[[Row], str]
    dtype: str = ""
    """A column, or the type itself after ``=``."""
    implementation: tuple[str, ...] = ()
    time: str = "us"
    also: tuple[Format, ...] = field(default=(), repr=False)
    """What the same rows say besides."""

    fixed: Mapping[str, int] = field(default_factory=dict)
    """Extents that all rows have."""

    @property
    def columns(self) -> set[str]:
        named = set() if self.dtype.startswith("=") else set(self.dtype.split("/")) - {""}
        return {*self.extents, *named, self.time, *self.implementation} | (
            {"op_name"} if callable(self.operation) else set()
        )


_ATTENTION = {
    "batch_size": "batch", "isl": "queries", "step": "context", "num_heads": "heads",
    "num_key_value_heads": "kv_heads", "head_dim": "head_dim", "window_size": "window",
}  # fmt: skip
_MLA = {"batch_size": "batch", "isl": "queries", "step": "context", "num_heads": "heads"}
_MOE = {
    "num_tokens": "tokens", "hidden_size": "hidden", "inter_size": "inner", "topk": "topk",
    "num_experts": "experts", "moe_tp_size": "tensor_parallel", "moe_ep_size": "expert_parallel",
}  # fmt: skip
_DEEPEP = {
    "node_num": "nodes", "hidden_size": "hidden", "num_token": "tokens", "num_topk": "topk",
    "num_experts": "experts",
}  # fmt: skip
_COMBINE = Format({**_DEEPEP, "combine_sms": "sms"}, "moe_combine", "=bf16", time="combine_transmit_us")
FORMATS = (
    Format({"m": "m", "n": "n", "k": "k"}, "gemm", "gemm_dtype"),
    Format({"m": "m", "n": "n", "k": "k"}, "gemm", "gemm_dtype", ("framework", "kernel_source")),
    Format({"m": "m", "n": "n", "k": "k"}, "gemm", "dtype", ("implementation",)),
    Format(_ATTENTION, "attention", "=bf16", ("kernel_source",)),
    Format(_ATTENTION, "attention", "attn_dtype/kv_cache_dtype", ("framework", "kernel_source")),
    Format(_MLA, "mla", "mla_dtype/kv_cache_dtype", ("framework",)),
    Format(_MOE, "moe", "moe_dtype", ("kernel_source", "distribution")),
    Format({"num_gpus": "ranks", "bytes": "bytes"}, lambda row: _collective(str(row["op_name"])), "=f16"),
    Format({"num_gpus": "ranks", "bytes": "bytes"}, "all_reduce", "=f16", ("backend",)),
    Format({"num_gpus": "ranks", "bytes": "bytes"}, "all_reduce", "=f16", ("implementation",)),
    Format(
        {**_DEEPEP, "dispatch_sms": "sms"},
        "moe_dispatch",
        "=bf16",
        time="dispatch_transmit_us",
        also=(_COMBINE,),
    ),
    Format(
        _DEEPEP, "moe_dispatch", "=bf16", time="dispatch_avg_t_us", fixed={"low_latency": 1},
        also=(Format(_DEEPEP, "moe_combine", "=bf16", time="combine_avg_t_us", fixed={"low_latency": 1}),),
    ),
)  # fmt: skip
EXPORTED = ("machine", "operation", "dtype", "implementation", "shape", "time_us", "source")
"""The columns that ``megatile perfdb export`` writes; they are read again."""


def read_measurements(
    path: str | Path, machine: str | None = None, *, operation: str | None = None, source: str | None = None
) -> list[Measurement]:
    """Return every row of a table or log; ``machine`` names where it was measured, unless the table says it.

    ``operation`` is needed for logs that do not name it; ``source`` is the file's name unless given.
    """
    path = Path(path)
    said = source if source is not None else path.name
    if path.suffix.lower() in (".parquet", ".pq"):
        return list(_table(_parquet(path), path, machine, said))
    content = read_file(path, MAX_FILE_BYTES, DatabaseError, unpack=True)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        message = f"is neither a text table nor a .parquet file (byte {problem.start} is not UTF-8)"
        raise DatabaseError(message, place=Place(str(path))) from None
    if re.search(
        r"^(?:\[[\d,]+\]<std\w+>:? ?)?#.*(nThread|busbw|nccl|rccl)",
        text[:20000],
        re.MULTILINE | re.IGNORECASE,
    ):
        return list(_log(text, path, machine, operation, said))
    return list(_table(_csv(text, path), path, machine, said))


def _csv(text: str, path: Path) -> Iterator[Row]:
    try:
        reader = csv.DictReader(io.StringIO(text), strict=True)
        for row in reader:
            if None in row or None in row.values():
                raise DatabaseError(
                    "has another number of fields than the first line",
                    place=Place(str(path), reader.line_num),
                )
            yield row
    except csv.Error as problem:
        raise DatabaseError(f"is not a CSV table: {problem}", place=Place(str(path))) from None


def _parquet(path: Path) -> Iterator[Row]:
    _, parquet = _pyarrow(path)
    read_file(path, MAX_FILE_BYTES, DatabaseError)  # regular, and not too large
    try:
        with parquet.ParquetFile(path) as opened:
            if opened.metadata.num_rows > MAX_ROWS:
                raise DatabaseError(f"has more than {MAX_ROWS} rows", place=Place(str(path)))
            for batch in opened.iter_batches():
                yield from batch.to_pylist()
    except (OSError, ValueError) as problem:  # what pyarrow raises for damaged files derives from both
        if isinstance(problem, MegatileError):
            raise
        raise DatabaseError(f"is not a Parquet file: {problem}", place=Place(str(path))) from None


def _table(rows: Iterable[Row], path: Path, machine: str | None, source: str) -> Iterator[Measurement]:
    formats: tuple[Format, ...] = ()
    number = 0
    for number, row in enumerate(rows, 2):
        if number > MAX_ROWS:
            raise DatabaseError(f"has more than {MAX_ROWS} rows", place=Place(str(path)))
        if number == 2 and not set(EXPORTED) <= set(row):
            formats = _format(set(row), path)
        if number % 10_000 == 0:
            tell(f"reading {path.name}", number, number)
        try:
            if not formats:
                yield _exported(row, machine)
            for form in formats:
                yield _measurement(form, row, machine, source)
        except (MegatileError, ValueError, TypeError, KeyError) as problem:
            message = problem.message if isinstance(problem, MegatileError) else str(problem)
            raise DatabaseError(message, place=Place(str(path), number)) from None
    if not number:
        raise DatabaseError("has no rows", place=Place(str(path)))


def _format(columns: set[str], path: Path) -> tuple[Format, ...]:
    # The one that reads the most columns: a table of all-reduces has those of other collectives, and more.
    fitting = [f for f in FORMATS if f.columns <= columns]
    if not fitting:
        known = "; ".join(",".join(sorted(f.columns)) for f in FORMATS)
        advice = f"known tables have {known}; or {','.join(EXPORTED)}"
        raise DatabaseError(
            "does not have the columns of any known table of times", place=Place(str(path), 1), advice=advice
        )
    chosen = max(fitting, key=lambda f: len(f.columns))
    return (chosen, *chosen.also)


def _measurement(form: Format, row: Row, machine: str | None, source: str) -> Measurement:
    operation = form.operation if isinstance(form.operation, str) else form.operation(row)
    found = OPERATIONS.find(operation)
    spelled = form.dtype[1:]
    if not form.dtype.startswith("="):
        spelled = "/".join(str(row[column]) for column in form.dtype.split("/"))
    shape = {extent: _whole(row[column], column) for column, extent in form.extents.items()} | dict(
        form.fixed
    )
    implementation = " ".join(str(row[column]) for column in form.implementation)
    if operation == "moe":
        law = str(row["distribution"]).partition("power_law_")[2]
        shape["skew"] = round(100 * float(law)) if law else 0
        spelled = "int4" if MARLIN in implementation else spelled
    kind = found.dtype_of(spelled)
    return Measurement(_named(machine), operation, kind, implementation, shape, _time(row[form.time]), source)


def _exported(row: Row, machine: str | None) -> Measurement:
    pairs = (pair.partition("=") for pair in str(row["shape"]).split())
    shape = {name: _whole(value, name) for name, _, value in pairs}
    named = _named(machine or str(row["machine"]))
    time = _time(row["time_us"])
    operation = str(row["operation"])
    kind = OPERATIONS.find(operation).dtype_of(str(row["dtype"]))
    return Measurement(named, operation, kind, str(row["implementation"]), shape, time, str(row["source"]))


def _named(machine: str | None) -> str:
    if not machine:
        raise DatabaseError(
            "the table does not name the machine it was measured on", advice="name it with -m"
        )
    return machine


def _whole(value: Any, column: str) -> int:
    number = float(value)
    if not number.is_integer() or not 0 <= number <= 1e15:
        raise ValueError(f"{column} is not an extent: {value!r}")
    return int(number)


def _time(value: Any) -> float:
    time = float(value)
    if not math.isfinite(time) or time <= 0:
        raise ValueError(f"no time: {value!r} us")
    return time


def _log(
    text: str, path: Path, machine: str | None, operation: str | None, source: str
) -> Iterator[Measurement]:
    """Yield lines of nccl-tests: size count type [redop [root]] time algbw busbw wrong, twice (out of place,
    in place); the shorter time counts. Ranks are the lines that list them; a log may have several runs."""
    text = re.sub(r"^\[[\d,]+\]<std\w+>:? ?", "", text, flags=re.MULTILINE)  # what mpirun puts before lines
    named, whole = operation, operation or _operation(text, path)
    ranks, found, kernel = 0, 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.split()
        place = Place(str(path), number)
        if operation is None and (said := re.search(r"([a-z_]+)_perf", line)):
            named = _collective(said[1])
        if re.match(r"\s*#.*\bnThread\b", line):  # a run begins: a log may have several
            ranks, kernel = 0, CAPTURED if re.search(r"\bgraph: [1-9]", line) else ""
        ranks += bool(re.match(r"\s*#\s+Rank\s+\d+", line))
        rows = len(fields) >= 11 and fields[0].isdigit() and fields[1].isdigit()
        if line.lstrip().startswith("#") or not rows:
            continue
        if (named or whole) not in COLLECTIVES:
            raise DatabaseError(
                f"'{operation}' is not an operation of nccl-tests" if operation else
                "the log does not say which collective it measures",
                place=place, advice=f"name it with --operation: {', '.join(COLLECTIVES)}",
            )  # fmt: skip
        if not ranks:
            raise DatabaseError("the log lists no ranks ('#  Rank  0 …')", place=place)
        try:
            times = [_time(fields[-8]), _time(fields[-4])]
            kind, size = dtype_name(fields[2]), _whole(fields[0], "size")
        except (ValueError, MegatileError) as problem:
            raise DatabaseError(f"not a line of nccl-tests: {problem}", place=place) from None
        if size:
            found += 1
            shape = {"ranks": ranks, "bytes": size}
            yield Measurement(_named(machine), named or whole, kind, kernel, shape, min(times), source)
    if not found:
        raise DatabaseError("has no line with a time", place=Place(str(path)))


def read_devices(path: str | Path) -> list[str]:
    """Return the names of the devices that a log of nccl-tests lists, each once."""
    text = read_file(Path(path), MAX_FILE_BYTES, DatabaseError, unpack=True).decode("utf-8", "replace")
    listed = re.findall(r"#\s+Rank\s+\d+ .*\bdevice\s+\S+\s+\[[^\]]*\]\s*(\S.*?)\s*$", text, re.MULTILINE)
    return list(dict.fromkeys(listed))


def _operation(text: str, path: Path) -> str:
    """Return the collective that a log names anywhere, or its file's name."""
    said = re.search(r"([a-z_]+)_perf", text) or re.search(r"([a-z_]+?)(?:_perf)?\.[a-z]+$", path.name)
    return _collective(said[1] if said else "")


def _collective(name: str) -> str:
    return {"alltoall": "all_to_all", "sendrecv": "send_recv"}.get(name, name)


def write_measurements(path: str | Path, measurements: Sequence[Measurement]) -> int:
    """Write a table with the columns ``EXPORTED``, as CSV or Parquet by the file's name; how many rows it
    has."""
    path = Path(path)
    shapes = (" ".join(f"{name}={value}" for name, value in m.shape.items()) for m in measurements)
    rows = [{**m._asdict(), "shape": shape} for m, shape in zip(measurements, shapes, strict=True)]
    if path.suffix.lower() not in (".csv", ".parquet"):
        raise DatabaseError(f"'{path}' ends in neither .csv nor .parquet")
    with whole_file(path, DatabaseError) as out:
        if path.suffix.lower() == ".parquet":
            arrow, parquet = _pyarrow(path)
            parquet.write_table(arrow.Table.from_pylist(rows), out)
        else:
            text = io.StringIO()
            writer = csv.DictWriter(text, EXPORTED, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
            out.write(text.getvalue().encode())
    return len(rows)


def _pyarrow(path: Path) -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        advice = "pip install 'megatile[perf]'"
        raise DatabaseError("Parquet needs pyarrow", place=Place(str(path)), advice=advice) from None
    return pyarrow, pyarrow.parquet
