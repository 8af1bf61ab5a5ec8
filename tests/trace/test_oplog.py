"""``trace/oplog.py``: the op log."""

from __future__ import annotations

import json

import pytest
from tests.trace.shared import small

from megatile.trace import TraceError, read_trace, write_oplog


def test_oplog_lines_speak_for_themselves(tmp_path) -> None:
    path = write_oplog(small(), tmp_path / "t.jsonl")
    row = json.loads(path.read_text().splitlines()[1])
    assert row["unit"] == "d0/pe0"
    assert row["op"] == "send"
    assert row["t_end"] == 1_234_567
    assert row["source"] == "k.py:3"


def test_a_damaged_oplog_names_the_line(tmp_path) -> None:
    lines = write_oplog(small(), tmp_path / "t.jsonl").read_text().splitlines()
    (tmp_path / "a.jsonl").write_text("\n".join([lines[0], lines[1], lines[2][:20]]))
    with pytest.raises(TraceError, match=r"a.jsonl:3: not a JSON line"):
        read_trace(tmp_path / "a.jsonl")
    (tmp_path / "b.jsonl").write_text("\n".join([lines[0], '{"unit": "nobody"}']))
    with pytest.raises(TraceError, match=r"b.jsonl:2: malformed"):
        read_trace(tmp_path / "b.jsonl")
