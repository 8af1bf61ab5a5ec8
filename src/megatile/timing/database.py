"""Measured times of library kernels, in one SQLite file: exact where a shape was measured, else interpolated.

    with Database("perf.sqlite") as database:
        database.add(read_measurements("gemm.csv", machine="dgx-h100"))
        database.predict(...)                       # or predict_kernel(..., database="perf.sqlite")

Between measured shapes the ratio of measured time to the formula's is interpolated: a weighted local plane
through the nearest shapes, over the logarithms of extents.
The error bar is what the same interpolation misses at those shapes when each is left out.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from megatile.core.cached import cached_in_owner
from megatile.core.errors import MegatileError, Place
from megatile.core.files import exists
from megatile.core.sqlite import open_table
from megatile.hda import HDA, machine as find_machine, machine_names
from megatile.timing.coverage import with_coverage
from megatile.timing.device import NUMBERS, device_of
from megatile.timing.exchange_rules import model_name
from megatile.timing.formulas import OPERATIONS, Device, KernelTime, Operation, hardware
from megatile.timing.machine_timing import Origin

NEAREST_SHAPES = 12
"""Measured shapes that one prediction interpolates."""
FARTHEST = 3.0
"""In factors of two: a shape that is further from all measured ones is left to the formula."""
BEYOND = 1.0
"""The same for collectives outside the measured sizes and ranks: beyond, another protocol may take over."""
BASE, RIDGE = 0.1, 0.01
"""The squared distance at which weights begin to fall; what holds slopes that few shapes determine."""
MAX_TIME_US = 1e12
"""Longest time of a row, in microseconds: 12 days."""
_SCHEMA = """CREATE TABLE measurements (
  machine TEXT, operation TEXT, dtype TEXT, implementation TEXT, shape TEXT, time_us REAL, source TEXT,
  PRIMARY KEY (machine, operation, dtype, implementation, shape)) WITHOUT ROWID"""
_KEYS = ("machine", "operation", "dtype", "implementation")


class DatabaseError(MegatileError, ValueError):
    """A performance database, or a table of measurements, that cannot be used; says why."""


class Measurement(NamedTuple):
    """A measured time with its operation, shape, element type, kernel and source."""

    machine: str
    operation: str
    dtype: str
    implementation: str
    shape: dict[str, int]
    time_us: float
    source: str = ""


class Added(NamedTuple):
    """What became of measurements: how many were new, and how many took the place of an older time."""

    new: int
    replaced: int


class Database:
    """Measured times by machine, operation, element type, implementation and shape."""

    def __init__(self, path: str | Path, *, create: bool = True) -> None:
        if not isinstance(path, (str, Path)):
            raise DatabaseError(
                f"a database is a file, not {type(path).__name__}",
                advice='Database("times.sqlite"), or ":memory:"',
            )
        self.path = Path(path)
        self._tables: dict[tuple[str, ...], _Table] = {}
        if not create and not exists(self.path):
            advice = "fill one with 'megatile perfdb import TABLE -m MACHINE --db FILE'"
            raise DatabaseError(
                "there is no such performance database", place=Place(str(path)), advice=advice
            )
        with self._guard():
            self._link = open_table(path, _SCHEMA, create)

    def __enter__(self) -> Database:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._link.close()

    @contextmanager
    def _guard(self) -> Iterator[None]:
        try:
            yield
        except (ValueError, TypeError, AttributeError) as problem:  # rows that somebody else made
            if isinstance(problem, MegatileError):
                raise
            raise DatabaseError(f"holds no measurements: {problem}", place=Place(str(self.path))) from None
        except sqlite3.Error as problem:
            advice = "give a file that 'megatile perfdb import' made, in a writable folder"
            raise DatabaseError(
                f"cannot be used: {problem}", place=Place(str(self.path)), advice=advice
            ) from None

    def add(self, measurements: Iterable[Measurement]) -> Added:
        """Add all of them or, when one is wrong, none; a later time of the same shape replaces an older
        one."""
        rows = [_row(m) for m in measurements]
        with self._guard(), self._link:
            before = self._count()
            self._link.executemany("INSERT OR REPLACE INTO measurements VALUES (?,?,?,?,?,?,?)", rows)
            new = self._count() - before
        self._tables.clear()
        return Added(new, len(rows) - new)

    def _count(self) -> int:
        return int(self._link.execute("SELECT count(*) FROM measurements").fetchone()[0])

    def rows(self, **keys: str | None) -> Iterator[Measurement]:
        """Yield the measurements with these values (machine, operation, dtype, implementation), in order."""
        chosen = {name: value for name, value in keys.items() if value is not None}
        assert set(chosen) <= set(_KEYS)
        where = " AND ".join(f"{name} = ?" for name in chosen) or "1"
        order = ", ".join((*_KEYS, "shape"))
        with self._guard():
            found = self._link.execute(
                f"SELECT * FROM measurements WHERE {where} ORDER BY {order}", tuple(chosen.values())
            )
            for machine, operation, dtype, implementation, shape, time, source in found:
                texts = str(machine), str(operation), str(dtype), str(implementation)
                yield Measurement(*texts, _shape(shape), _checked(time), str(source))

    def summary(self) -> list[tuple[str, str, str, str, int, float, float]]:
        """By machine, operation, dtype and implementation: how many times, the shortest and the longest."""
        keys = ", ".join(_KEYS)
        counted = f"SELECT {keys}, count(*), min(time_us), max(time_us) FROM measurements"
        with self._guard():
            found = self._link.execute(f"{counted} GROUP BY {keys} ORDER BY {keys}")
            return [
                (str(m), str(o), str(d), str(i), int(n), float(a), float(b)) for m, o, d, i, n, a, b in found
            ]

    def predict(
        self,
        operation: Operation,
        hda: HDA,
        dtype: str,
        shape: dict[str, int],
        implementation: str | None = None,
    ) -> KernelTime | None:
        """Return the measured or interpolated time; None where nothing near was measured.

        Without an ``implementation``, the fastest of those whose nearest shape is as near as any counts.
        """
        found = [
            (table.distance(shape), time.time_us, time)
            for table in self._implementations(operation, hda, dtype, implementation)
            if (time := table.predict(shape)) is not None
        ]
        return min(found, key=lambda f: f[:2])[2] if found else None

    def leave_one_out(
        self, operation: str, hda: HDA, dtype: str, implementation: str | None = None
    ) -> np.ndarray[Any, Any]:
        """Signed relative errors of the interpolation at every measured shape, that shape left out."""
        tables = self._implementations(OPERATIONS.find(operation), hda, dtype, implementation)
        return np.concatenate([table.leave_one_out() for table in tables] or [np.empty(0)])

    def _implementations(
        self, operation: Operation, hda: HDA, dtype: str, wanted: str | None
    ) -> list[_Table]:
        stands = self._machine(hda, operation)
        names = [wanted] if wanted is not None else self._names(stands, operation.name, dtype)
        tables = []
        for name in names:
            key = (stands, operation.name, dtype, name)
            if key not in self._tables:
                self._tables[key] = _Table(
                    operation, hda, dtype, list(self.rows(**dict(zip(_KEYS, key, strict=True))))
                )
            if self._tables[key].rows:
                tables.append(self._tables[key])
        return tables

    def _machine(self, hda: HDA, operation: Operation) -> str:
        """Return the machine whose times hold: one that ships and has the same devices (and links, where
        several devices work), or this very one.

        So a machine that extends another has its times, and one whose memory was changed has not.
        """
        with self._guard():
            known = {name for (name,) in self._link.execute("SELECT DISTINCT machine FROM measurements")}
        linked = "ranks" in operation.extents or "nodes" in operation.extents
        mine = hardware(hda, linked)
        shipped = [name for name in machine_names() if name in known]
        same = [name for name in shipped if hardware(find_machine(name), linked) == mine]
        own = [hda.name] if hda.name in known and (hda.name not in shipped or hda.name in same) else []
        return next(iter((*own, *same)), "")

    def _names(self, *keys: str) -> list[str]:
        where = "WHERE machine=? AND operation=? AND dtype=? ORDER BY 1"
        with self._guard():
            found = self._link.execute(f"SELECT DISTINCT implementation FROM measurements {where}", keys)
            return [name for (name,) in found]


class _Table:
    """The measurements of one implementation, as arrays to interpolate in."""

    def __init__(self, operation: Operation, hda: HDA, dtype: str, rows: list[Measurement]) -> None:
        self.operation, self.hda, self.dtype, self.rows = operation, hda, dtype, rows
        self.exact = {_shape_text(row.operation, row.shape): row for row in rows}
        shapes = [operation.shape(row.shape) for row in rows]
        self.columns = {name: np.array([s[name] for s in shapes], float) for name in operation.extents}
        self.points = self._points(self.columns)
        beyond = BEYOND if "ranks" in operation.extents else np.inf
        self.range = (self.points.min(0) - beyond, self.points.max(0) + beyond) if rows else None
        times = np.array([row.time_us for row in rows])
        self.values = np.log(times / self._formula(self.columns)) if rows else times

    def _formula(self, columns: Any) -> Any:
        return self.operation.formula(Device.of(self.hda), columns, self.dtype)

    def _points(self, columns: Any) -> np.ndarray[Any, Any]:
        """Logarithms of extents; 0 (no window, nothing cached) is far from every extent."""
        return np.stack([np.log2(np.where(c > 0, c, 2.0**-4)) for c in columns.values()], axis=-1)

    def distance(self, shape: dict[str, int]) -> float:
        return float(np.sqrt(self._squares(self._points(_arrays(shape))[0]).min()))

    def _squares(self, point: Any) -> Any:
        return ((self.points - point) ** 2).sum(axis=1)

    def predict(self, shape: dict[str, int]) -> KernelTime | None:
        known = self.exact.get(_shape_text(self.operation.name, shape))
        if known is not None:
            return KernelTime(known.time_us, Origin("measured", known.source), 0.0, "measured rows")
        arrays = _arrays(shape)
        found = self._interpolate(self._points(arrays)[0], None)
        if found is None:
            return None
        value, near = found
        errors = [abs(e) for i in near if (e := self._error(int(i))) is not None]
        time = float(np.ravel(self._formula(arrays) * math.exp(value))[0])
        source = f"{len(near)} nearest shapes of {self.rows[int(near[0])].source or 'the database'}"
        error = float(np.median(errors)) if errors else None
        return KernelTime(time, Origin("interpolated", source), error, "interpolated rows")

    @cached_in_owner
    def _error(self, index: int) -> float | None:
        found = self._interpolate(self.points[index], index)
        return None if found is None else math.exp(found[0] - self.values[index]) - 1

    def leave_one_out(self) -> np.ndarray[Any, Any]:
        """Where nothing else is near, the formula answers."""
        far = np.exp(-self.values) - 1
        found = [self._error(i) for i in range(len(self.rows))]
        return np.array([f if e is None else e for e, f in zip(found, far, strict=True)])

    def _interpolate(self, point: Any, without: int | None) -> tuple[float, Any] | None:
        """Return the value at a point and the rows it comes from, the nearest first."""
        if self.range is None or (point < self.range[0]).any() or (point > self.range[1]).any():
            return None
        squares = self._squares(point)
        if without is not None:
            squares[without] = np.inf
        count = min(NEAREST_SHAPES, len(squares) - (without is not None))
        if count < 1:
            return None
        near = np.argpartition(squares, count - 1)[:count]
        near = near[np.lexsort((near, squares[near]))]
        if squares[near[0]] > FARTHEST**2:
            return None
        weights = 1 / (squares[near] + BASE)
        weights /= weights.sum()
        values, offsets = self.values[near], self.points[near] - point
        middle, centre = weights @ values, weights @ offsets
        spread = offsets - centre
        square = (spread * weights[:, None]).T @ spread + RIDGE * np.eye(len(centre))
        slopes = np.linalg.solve(square, (spread * weights[:, None]).T @ (values - middle))
        # The ratio to the formula stays among those measured.
        return float(np.clip(middle - centre @ slopes, values.min(), values.max())), near


def _arrays(shape: dict[str, int]) -> dict[str, Any]:
    return {name: np.array([float(value)]) for name, value in shape.items()}


def _shape_text(operation: str, shape: dict[str, int]) -> str:
    """Return extents that are not as usual, in their order."""
    usual = OPERATIONS.find(operation).extents
    return json.dumps({name: shape[name] for name in usual if shape.get(name, usual[name]) != usual[name]})


def _shape(text: str) -> dict[str, int]:
    found = json.loads(text)
    return {str(name): int(value) for name, value in found.items()}


def _row(m: Measurement) -> tuple[str, str, str, str, str, float, str]:
    shape = OPERATIONS.find(m.operation).shape(m.shape)
    _checked(m.time_us, f"{m.operation} {m.shape} of {m.source or 'a table'} takes ")
    return (*m[:4], _shape_text(m.operation, shape), float(m.time_us), m.source)


def _checked(time_us: Any, said: str = "") -> float:
    if not isinstance(time_us, (int, float)) or not 0 < time_us <= MAX_TIME_US:
        raise DatabaseError(f"{said}{time_us} us: no time")
    return float(time_us)


def predict_kernel(
    operation: str,
    *,
    machine: str | HDA,
    dtype: Any = None,
    kv_dtype: Any = None,
    library: str | None = None,
    captured: bool = False,
    implementation: str | None = None,
    database: Database | str | Path | None = None,
    **extents: int,
) -> KernelTime:
    """Return how long a library takes for an operation on one device of a machine, and how that is known.

    ``library`` is the framework whose kernels are meant (vllm, trtllm, sglang, torch), ``dtype`` an element
    type or, for products, a quantisation scheme (fp8, fp8_block, int4, mxfp4, nvfp4), ``kv_dtype`` the type
    of a cache that has another. ``captured``: a graph replays the call, which then takes no time of the
    host.

    ``database`` (a `Database` or its file) has measured times: a measured shape is taken as it is, others
    are interpolated between the nearest; where there are none near, and without a database, the formula of
    the machine file says it. ``implementation`` is whose kernel is meant, as the measurements name it.
    """
    found = OPERATIONS.find(operation)
    hda = machine if isinstance(machine, HDA) else find_machine(machine)
    kind = found.dtype_of(dtype, kv_dtype)
    shape = found.shape(extents)
    if database is not None:
        known = measured_time(found, hda, kind, shape, implementation, database)
        if known is not None:
            return known
    device = device_of(hda, library, captured, NUMBERS)
    origin, error = with_coverage(found.name, shape, *found.origin(device, shape, kind))
    model = model_name(device, found.name, shape, kind)
    return KernelTime(float(found.formula(device, shape, kind)), origin, error, model)


def measured_time(
    operation: Operation,
    hda: HDA,
    dtype: str,
    shape: dict[str, int],
    implementation: str | None,
    database: Database | str | Path,
) -> KernelTime | None:
    """Return the time that a database (or the file of one) has for an operation; None where nothing near was
    measured."""
    opened = nullcontext(database) if isinstance(database, Database) else Database(database, create=False)
    with opened as measured:
        return measured.predict(operation, hda, dtype, shape, implementation)
