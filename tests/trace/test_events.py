"""``trace/events.py``: the event schema and its columnar store."""

from __future__ import annotations

import numpy as np
import pytest
from tests.trace.shared import small

from megatile.trace import Trace, TraceBuilder, TraceError


def test_events_have_names_times_and_causes() -> None:
    trace = small()
    assert len(trace) == 3
    assert trace.end_ps == 2_000_002
    event = trace[1]
    assert (event.unit, event.engine, event.operation, event.cause) == ("d0/pe1", "channel", 'recv "W"', 0)
    assert trace[-1].duration_ps == 1
    assert trace.select(unit="d0/pe1", engine="vector").tolist() == [2]
    assert trace.select(engine="nobody").tolist() == []
    assert [e.index for e in trace] == [0, 1, 2]
    with pytest.raises(IndexError):
        trace[3]
    with pytest.raises(TraceError, match="selected by 'bytes'"):
        trace.select(bytes="1")


def test_a_trace_checks_itself() -> None:
    trace = small()
    wrong = {**trace.columns, "end_ps": trace.columns["start_ps"] - 1}
    tables = (trace.units, trace.engines, trace.operations, trace.operands, trace.sources)
    with pytest.raises(TraceError, match="ends before it starts"):
        Trace(*tables, columns=wrong)
    with pytest.raises(TraceError, match="missing or unknown: cause"):
        Trace(*tables, columns={k: v for k, v in trace.columns.items() if k != "cause"})
    with pytest.raises(TraceError, match="'unit' has 0 rows"):
        Trace(*tables, columns={**trace.columns, "unit": np.zeros(0)})
    with pytest.raises(TraceError, match="one value per time"):
        TraceBuilder().counter("c", [1, 2], [1])
    with pytest.raises(TraceError, match="not a number of picoseconds"):
        TraceBuilder().counter("c", [1, float("inf")], [1, 2])
