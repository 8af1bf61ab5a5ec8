"""What several files of tests/trace share."""

from __future__ import annotations

from megatile.trace import Trace, TraceBuilder


def small() -> Trace:
    builder = TraceBuilder(machine="toy")
    send = builder.add(
        unit="d0/pe0", engine="dma", operation="send", start_ps=0, end_ps=1_234_567, bytes=64, source="k.py:3"
    )
    recv = builder.add(
        unit="d0/pe1", engine="channel", operation='recv "W"', start_ps=5, end_ps=2_000_001, cause=send
    )
    builder.add(
        unit="d0/pe1", engine="vector", operation="add", start_ps=2_000_001, end_ps=2_000_002, cause=recv
    )
    builder.flow(send, recv)
    builder.counter("queue pe1.W", [0, 7, 2_000_001], [0, 1, 0])
    return builder.build()
