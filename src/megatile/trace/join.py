"""Several traces one after another as one: what a machine did over many launches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from megatile.trace.events import COLUMNS, NAME_TABLES, TABLE_OF, Counter, Trace


def join_traces(parts: Sequence[tuple[int, Trace]], machine: str = "") -> Trace:
    """Each trace shifted by its picoseconds; what begins a part is released by the last that ended before.

    >>> # join_traces([(0, first), (first.end_ps, second)])
    """
    tables: dict[str, dict[str, int]] = {table: {} for table in NAME_TABLES}
    columns: dict[str, list[np.ndarray]] = {name: [np.zeros(0, dtype=kind)] for name, kind in COLUMNS.items()}
    flows, counters = [np.zeros((0, 2), dtype=np.int64)], []
    count = 0
    ends: list[tuple[int, int]] = []
    for shift, trace in parts:
        last = max((end for end in ends if end[0] <= shift), default=(0, -1))[1]
        for name, column in trace.columns.items():
            columns[name].append(_renumbered(name, column, trace, tables, shift, count, last))
        flows.append(trace.flows + count)
        counters += [Counter(c.name, c.time_ps + shift, c.value) for c in trace.counters]
        if len(trace):
            event = int(np.argmax(trace.columns["end_ps"]))
            ends.append((shift + int(trace.columns["end_ps"][event]), count + event))
        count += len(trace)
    return Trace(
        **{table: tuple(names) for table, names in tables.items()},
        columns={name: np.concatenate(parts_) for name, parts_ in columns.items()},
        flows=np.concatenate(flows),
        counters=tuple(counters),
        machine=machine,
    )


def _renumbered(
    name: str,
    column: np.ndarray,
    trace: Trace,
    tables: dict[str, dict[str, int]],
    shift: int,
    count: int,
    last: int,
) -> np.ndarray:
    if name in TABLE_OF:
        names = tables[TABLE_OF[name]]
        new = [names.setdefault(text, len(names)) for text in getattr(trace, TABLE_OF[name])]
        return np.asarray(new, dtype=column.dtype)[column] if len(column) else column
    if name in ("start_ps", "end_ps"):
        return column + shift
    if name == "cause":
        return np.where(column < 0, last, column + count)
    return column
