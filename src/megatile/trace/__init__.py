"""What happened when and why: the event schema, its columns, and the files it is written to.

builder = TraceBuilder(machine="ahbm")
builder.add(unit="sip0/cube0/pe0", engine="dma", operation="send", start_ps=0, end_ps=1200, bytes=64)
trace = builder.build()
write_perfetto(trace, "run.json.gz")      # opens in ui.perfetto.dev
write_oplog(trace, "run.jsonl")           # one line per event
assert read_trace("run.json.gz") == trace
"""

from megatile.core.tables import text_table
from megatile.trace.critical import CriticalStep, critical_groups, critical_path, why_slow
from megatile.trace.events import Counter, Event, Trace, TraceBuilder, TraceError, join_traces
from megatile.trace.exposure import LAUNCH, busy_ps, exposed_ps
from megatile.trace.formats import convert_trace, read_trace, write_trace
from megatile.trace.oplog import read_oplog, write_oplog
from megatile.trace.perfetto import read_perfetto, write_perfetto
from megatile.trace.waits import Pointers, Waiter, WaitGraph

__all__ = [
    "LAUNCH",
    "Counter",
    "CriticalStep",
    "Event",
    "Pointers",
    "Trace",
    "TraceBuilder",
    "TraceError",
    "WaitGraph",
    "Waiter",
    "busy_ps",
    "convert_trace",
    "critical_groups",
    "critical_path",
    "exposed_ps",
    "join_traces",
    "read_oplog",
    "read_perfetto",
    "read_trace",
    "text_table",
    "why_slow",
    "write_oplog",
    "write_perfetto",
    "write_trace",
]
