"""``trace/formats.py``: reading and writing by file name."""

from __future__ import annotations

import pytest
from tests.trace.shared import small

from megatile.trace import TraceBuilder, TraceError, convert_trace, read_trace, write_trace


@pytest.mark.parametrize("name", ["t.json", "t.json.gz", "t.jsonl", "t.jsonl.gz"])
def test_files_round_trip_and_repeat_byte_for_byte(tmp_path, name: str) -> None:
    trace = small()
    first = write_trace(trace, tmp_path / name)
    assert read_trace(first) == trace
    again = write_trace(small(), tmp_path / f"again-{name}")
    assert first.read_bytes() == again.read_bytes()


def test_convert_both_ways(tmp_path) -> None:
    write_trace(small(), tmp_path / "a.json.gz")
    convert_trace(tmp_path / "a.json.gz", tmp_path / "b.jsonl")
    convert_trace(tmp_path / "b.jsonl", tmp_path / "c.json")
    assert read_trace(tmp_path / "c.json") == small()
    with pytest.raises(TraceError, match="does not say which trace format"):
        convert_trace(tmp_path / "a.json.gz", tmp_path / "b.txt")


def test_an_empty_trace_can_be_written(tmp_path) -> None:
    empty = TraceBuilder("m").build()
    assert empty.end_ps == 0
    assert read_trace(write_trace(empty, tmp_path / "e.json.gz")) == empty


@pytest.mark.parametrize("name", ["run.json", "run.json.gz", "run.jsonl"])
def test_a_place_that_cannot_be_written_is_one_clear_error(tmp_path, name: str) -> None:
    with pytest.raises(TraceError, match=r"cannot write .*No such file or directory"):
        write_trace(TraceBuilder(machine="toy").build(), tmp_path / "nowhere" / name)
