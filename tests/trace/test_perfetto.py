"""``trace/perfetto.py``: gzipped Chrome/Perfetto JSON."""

from __future__ import annotations

import gzip
import json

from hypothesis import given, settings, strategies as st
from tests.trace.shared import small

from megatile.trace import TraceBuilder, read_trace, write_perfetto, write_trace


def test_perfetto_has_tracks_arrows_and_counters(tmp_path) -> None:
    path = write_perfetto(small(), tmp_path / "t.json.gz")
    document = json.loads(gzip.decompress(path.read_bytes()))
    rows = document["traceEvents"]
    processes = {r["pid"]: r["args"]["name"] for r in rows if r["name"] == "process_name"}
    assert processes == {1: "d0/pe0", 2: "d0/pe1"}
    threads = {(r["pid"], r["tid"]): r["args"]["name"] for r in rows if r["name"] == "thread_name"}
    assert threads == {(1, 1): "dma", (2, 2): "channel", (2, 3): "vector"}
    arrow = {r["ph"]: r for r in rows if r["ph"] in "sf"}
    assert arrow["s"]["pid"] == 1
    assert arrow["f"]["pid"] == 2
    assert arrow["s"]["id"] == arrow["f"]["id"]
    assert [r["args"]["value"] for r in rows if r["ph"] == "C"] == [0.0, 1.0, 0.0]
    send = next(r for r in rows if r["ph"] == "X")
    assert (send["ts"], send["dur"]) == (0, 1.234)  # whole nanoseconds, rounded down
    assert send["args"] == {
        "start_ps": 0,
        "end_ps": 1_234_567,
        "cause": -1,
        "bytes": 64,
        "engine": "dma",
        "source": "k.py:3",
        "operand": "",
    }
    assert [r["args"].get("released by") for r in rows if r["ph"] == "X"][1] == "d0/pe0 dma send"


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.text(max_size=5),
            st.text(max_size=5),
            st.integers(0, 2**52),
            st.integers(0, 2**40),
            st.integers(0, 2**40),
        ),
        max_size=20,
    )
)
def test_any_names_and_times_survive(tmp_path_factory, rows) -> None:
    builder = TraceBuilder("m")
    for name, operand, start, length, size in rows:
        builder.add(
            unit=name,
            engine=name[:1],
            operation=name,
            operand=operand,
            start_ps=start,
            end_ps=start + length,
            bytes=size,
        )
    trace = builder.build()
    folder = tmp_path_factory.mktemp("trace")
    for name in ("t.json.gz", "t.jsonl"):
        assert read_trace(write_trace(trace, folder / name)) == trace
