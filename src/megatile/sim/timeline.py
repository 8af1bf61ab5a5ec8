"""Installs and launches of a session as one trace: they overlap, and messages go from one to another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from megatile.sim.launches import Launch
from megatile.sim.record import Record
from megatile.sim.repeat import recorded
from megatile.sim.state import Recorded
from megatile.trace import Trace, TraceBuilder, join_traces


def install_trace(machine: str, operation: str, names: Sequence[str], ends_ps: Sequence[int]) -> Trace:
    """Return the messages of an install on their way."""
    builder = TraceBuilder(machine)
    for name, end in zip(names, ends_ps, strict=True):
        builder.add(unit=name, engine="control", operation=operation, start_ps=0, end_ps=end)
    return builder.build()


def one_timeline(launches: Sequence[Launch], machine: str) -> Trace:
    """Return the traces of launches of a session's history on one clock."""
    ordered = [(w.submit_ps, _events(w)) for w in sorted(launches, key=lambda w: w.submit_ps)]
    parts = [(begin, *found) for begin, found in ordered if found is not None]
    whole = join_traces([(begin, trace) for begin, _, trace in parts], machine)
    first = np.cumsum([0, *(len(trace) for *_, trace in parts)]).tolist()
    records = [(r, at) for (_, r, _), at in zip(parts, first, strict=False) if r is not None]
    return replace(
        whole,
        columns={**whole.columns, "cause": _causes(whole.columns["cause"], records)},
        flows=np.concatenate([whole.flows, _flows(records)]),
    )


def _events(launch: Launch) -> tuple[Record | None, Trace] | None:
    """Return the events of a launch, and the records they are made of; None where they are not kept."""
    if launch.trace is not None:
        return None, launch.trace
    if launch.record is None and launch.like is None and not launch.repeatable:
        return None
    record = recorded(launch)
    return record, record.trace(launch.begin_ps)


def _causes(cause: Any, records: Sequence[tuple[Record, int]]) -> Any:
    """Give what another launch released that event as its cause."""
    if len(records) < 2:
        return cause
    numbers = np.concatenate([r.numbers for r, _ in records])
    events = np.concatenate([r.events + at for r, at in records])
    order = np.argsort(numbers)
    numbers, events, found = numbers[order], events[order], cause.copy()
    for record, at in records:
        by = record.rows[:, Recorded.cause]
        place = np.minimum(np.searchsorted(numbers, by), len(numbers) - 1)
        foreign = (numbers[place] == by) & ~np.isin(by, record.numbers) if len(numbers) else by < by
        found[record.events[foreign] + at] = events[place[foreign]]
    return found


def _flows(records: Sequence[tuple[Record, int]]) -> Any:
    """Messages from one launch to another: the events that sent and that received them."""
    sent: dict[Any, int] = {}
    received: dict[Any, int] = {}
    for record, at in records:
        if not record.lasting_queues:
            continue
        for found, rows in zip((sent, received), record.messages(), strict=True):
            for (queue, message), row in rows.items():
                if queue in record.lasting_queues:
                    found[record.lasting_queues[queue], message] = int(record.events[row]) + at
        own = set(record.messages()[0]) & set(record.messages()[1])
        for queue, message in own:
            sent.pop((record.lasting_queues.get(queue), message), None)
    pairs = [(sent[key], event) for key, event in received.items() if key in sent]
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)
