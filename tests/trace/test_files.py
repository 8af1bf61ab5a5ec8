"""``trace/files.py``: opening trace files that may be anything."""

from __future__ import annotations

import gzip
import json

import pytest
from tests.trace.shared import small

from megatile.trace import TraceError, read_trace, write_perfetto
from megatile.trace.files import read_text


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


def test_a_small_file_that_unpacks_to_much_is_refused(tmp_path) -> None:
    (tmp_path / "bomb.json.gz").write_bytes(gzip.compress(b" " * 100_000))
    with pytest.raises(TraceError, match="unpacks to more than"):
        read_text(tmp_path / "bomb.json.gz", limit=5000)
