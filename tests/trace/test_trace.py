"""Traces: columns, files that survive a round trip, files that are damaged, and speed."""

from __future__ import annotations

import gzip
import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from megatile.trace import (
    Trace,
    TraceBuilder,
    TraceError,
    convert_trace,
    read_trace,
    write_oplog,
    write_perfetto,
    write_trace,
)
from megatile.trace.events import COLUMNS
from megatile.trace.files import read_text
from megatile.trace.lanes import rows_of


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


@pytest.mark.parametrize("name", ["t.json", "t.json.gz", "t.jsonl", "t.jsonl.gz"])
def test_files_round_trip_and_repeat_byte_for_byte(tmp_path, name: str) -> None:
    trace = small()
    first = write_trace(trace, tmp_path / name)
    assert read_trace(first) == trace
    again = write_trace(small(), tmp_path / f"again-{name}")
    assert first.read_bytes() == again.read_bytes()


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


def test_files_of_the_schema_before_are_read(tmp_path) -> None:
    path = tmp_path / "old.json"
    event = {"ph": "X", "name": "add", "pid": 1, "tid": 2, "ts": 0.000005, "dur": 1.234567}
    tables = {
        "units": ["pe0"],
        "engines": ["dma", "vector"],
        "operations": ["add"],
        "operands": ["", "x"],
        "sources": ["k.py:3"],
    }
    header = {"schema": "megatile-trace-1", "machine": "toy", **tables}
    rows = [event | {"args": {"cause": -1, "bytes": 8, "source": 0, "operand": 1}}]
    path.write_text(json.dumps({"otherData": header, "traceEvents": rows}))
    (found,) = read_trace(path)
    assert (found.engine, found.operand, found.source) == ("vector", "x", "k.py:3")
    assert (found.start_ps, found.end_ps) == (5, 1_234_572)


def test_lanes_part_what_overlaps() -> None:
    builder = TraceBuilder("toy")
    for engine, start, end in (("dma.0", 0, 10), ("dma.17", 5, 8), ("dma.0", 10, 12), ("vector", 0, 3)):
        builder.add(unit="pe0", engine=engine, operation="x", start_ps=start, end_ps=end)
    rows, row = rows_of(builder.build())
    assert [r.name for r in rows] == ["dma", "dma 2", "vector"]
    assert row.tolist() == [0, 1, 0, 2]
    assert rows_of(TraceBuilder().build())[0] == []


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 9)), max_size=40))
def test_no_two_events_of_a_lane_overlap(rows) -> None:
    builder = TraceBuilder("m")
    for engine, start, length in rows:
        builder.add(unit="u", engine=f"dma.{engine}", operation="x", start_ps=start, end_ps=start + length)
    trace = builder.build()
    found, row = rows_of(trace)
    most = max((sum(s <= t < e for _, s, e in _spans(trace)) for t in range(41)), default=0)
    assert len(found) <= max(1, most + 1) if rows else not found  # empty events may need one more
    for number in range(len(found)):
        spans = sorted((s, e) for i, s, e in _spans(trace) if row[i] == number)
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))


def _spans(trace: Trace) -> list[tuple[int, int, int]]:
    return [(e.index, e.start_ps, e.end_ps) for e in trace]


def test_oplog_lines_speak_for_themselves(tmp_path) -> None:
    path = write_oplog(small(), tmp_path / "t.jsonl")
    row = json.loads(path.read_text().splitlines()[1])
    assert row["unit"] == "d0/pe0"
    assert row["op"] == "send"
    assert row["t_end"] == 1_234_567
    assert row["source"] == "k.py:3"


def test_convert_both_ways(tmp_path) -> None:
    write_trace(small(), tmp_path / "a.json.gz")
    convert_trace(tmp_path / "a.json.gz", tmp_path / "b.jsonl")
    convert_trace(tmp_path / "b.jsonl", tmp_path / "c.json")
    assert read_trace(tmp_path / "c.json") == small()
    with pytest.raises(TraceError, match="does not say which trace format"):
        convert_trace(tmp_path / "a.json.gz", tmp_path / "b.txt")


def test_damaged_files_are_refused_with_a_reason(tmp_path) -> None:
    good = write_perfetto(small(), tmp_path / "t.json.gz").read_bytes()
    plain = gzip.decompress(good)
    cases = {
        "cut.json.gz": (good[: len(good) // 2], "truncated or damaged gzip"),
        "flip.json.gz": (good[:30] + b"\xff\xff" + good[32:], "damaged gzip|not valid JSON|not a text"),
        "cut.json": (plain[: len(plain) // 2], "not valid JSON"),
        "binary.json": (b"\x00\xff\xfe", "not a text file"),
        "list.json": (b"[]", "no list 'traceEvents'"),
        "other.json": (b'{"traceEvents":[]}', "another program"),
        "row.json": (plain.replace(b'"ph":"X"', b'"ph":7', 1), "record .* malformed"),
        "nan.json": (plain.replace(b'"ts":0.000000', b'"ts":NaN', 1), "NaN is not JSON"),
        "cause.json": (plain.replace(b'"cause":0', b'"cause":99', 1), "outside -1..2"),
        "deep.json": (b"[" * 200_000, "not valid JSON"),
        "empty.jsonl": (b"", "not a JSON line"),
        "schema.jsonl": (b'{"schema":"x"}\n', "not an op log"),
    }
    for name, (data, message) in cases.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(TraceError, match=message):
            read_trace(tmp_path / name)
    with pytest.raises(TraceError, match=r"missing\.json: cannot be read: No such file"):
        read_trace(tmp_path / "missing.json")


def test_a_damaged_oplog_names_the_line(tmp_path) -> None:
    lines = write_oplog(small(), tmp_path / "t.jsonl").read_text().splitlines()
    (tmp_path / "a.jsonl").write_text("\n".join([lines[0], lines[1], lines[2][:20]]))
    with pytest.raises(TraceError, match=r"a.jsonl:3: not a JSON line"):
        read_trace(tmp_path / "a.jsonl")
    (tmp_path / "b.jsonl").write_text("\n".join([lines[0], '{"unit": "nobody"}']))
    with pytest.raises(TraceError, match=r"b.jsonl:2: malformed"):
        read_trace(tmp_path / "b.jsonl")


def test_a_small_file_that_unpacks_to_much_is_refused(tmp_path) -> None:
    (tmp_path / "bomb.json.gz").write_bytes(gzip.compress(b" " * 100_000))
    with pytest.raises(TraceError, match="unpacks to more than"):
        read_text(tmp_path / "bomb.json.gz", limit=5000)


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


def test_an_empty_trace_can_be_written(tmp_path) -> None:
    empty = TraceBuilder("m").build()
    assert empty.end_ps == 0
    assert read_trace(write_trace(empty, tmp_path / "e.json.gz")) == empty


def many(count: int) -> Trace:
    rng = np.random.default_rng(0)
    columns = {name: np.zeros(count, dtype=kind) for name, kind in COLUMNS.items()}
    columns["unit"] = rng.integers(0, 64, count)
    columns["operation"] = rng.integers(0, 3, count)
    columns["start_ps"] = np.sort(rng.integers(0, 10**12, count))
    columns["end_ps"] = columns["start_ps"] + rng.integers(0, 10**6, count)
    columns["cause"] = np.arange(count) - 1
    names = tuple(f"sip0/cube{i // 8}/pe{i % 8}" for i in range(64))
    return Trace(names, ("dma",), ("send", "recv", "add"), ("",), ("k.py:1",), columns=columns)


@pytest.mark.parametrize("name", ["run.json", "run.json.gz", "run.jsonl"])
def test_a_place_that_cannot_be_written_is_one_clear_error(tmp_path, name: str) -> None:
    with pytest.raises(TraceError, match=r"cannot write .*No such file or directory"):
        write_trace(TraceBuilder(machine="toy").build(), tmp_path / "nowhere" / name)
