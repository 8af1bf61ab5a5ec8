"""Small files that would take minutes or gigabytes are refused in one sentence, at once."""

from __future__ import annotations

import gzip
import json
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import megatile as mt
from megatile.collectives import load_ccl_config
from megatile.collectives.choice_table import read_file as read_choices
from megatile.core.errors import MegatileError
from megatile.core.files import read_file
from megatile.hda import machine, problems
from megatile.plan.model import Plan
from megatile.runtime.host.oplog import SCHEMA
from megatile.timing.database import Database
from megatile.trace import TraceBuilder, read_trace, write_trace
from megatile.tuning.store import Store

SECONDS = 3.0
"""Of the processor, on a machine with much else to do; each takes less than one on a quiet machine."""


@contextmanager
def refused_soon(message: str) -> Iterator[None]:
    begin = time.process_time()
    with pytest.raises(MegatileError, match=message) as caught:
        yield
    assert time.process_time() - begin < SECONDS
    assert len(str(caught.value)) < 1000


KEYS = "\n".join(f"k{i}: 1" for i in range(150_000))
LAUGHS = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10)
)
YAML = {
    "keys": (KEYS, "more than 50000 values"),
    "keys of one mapping": ("algorithms: {a: {" + KEYS.replace("\n", ",") + "}}", "more than 50000 values"),
    "billion laughs": (LAUGHS, "more than 50000 values"),
    "list": ("a: [" + "x," * 1_900_000 + "x]", "more than 50000 values"),
    "repeated text": (
        "a: &a " + "x" * 100_000 + "\nb: [" + "*a," * 40_000 + "*a]",
        "more than 4194304 characters",
    ),
    "anchored list": ("a: &a [" + "x," * 1_900_000 + "x]", "more than 50000 values"),
    "merges": ("a: &a {x: 1}\nb:\n  <<: [" + ",".join(["*a"] * 200_000) + "]", "more than 50000 values"),
}


@pytest.mark.parametrize("name", YAML)
@pytest.mark.parametrize("read", [machine, load_ccl_config])
def test_yaml(tmp_path: Path, name: str, read: Callable[[Any], Any]) -> None:
    text, message = YAML[name]
    (tmp_path / "m.yaml").write_text(text)
    with refused_soon(message):
        read(tmp_path / "m.yaml")


def test_many_problems_of_a_machine_file(tmp_path: Path) -> None:
    text = "extends: dgx-h100\n" + "\n".join(f"k{i}: 1" for i in range(20_000))
    (tmp_path / "m.yaml").write_text(text)
    with refused_soon("unknown key 'k0'; 19999 more"):
        machine(tmp_path / "m.yaml")
    found = problems(tmp_path / "m.yaml")
    assert len(found) == 1001
    assert "19000 more problems are not shown" in str(found[-1])


def test_many_computed_values(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text("extends: dgx-h100\ndescription: '" + "${1+1}" * 100_000 + "'\n")
    with refused_soon("description: more than 10000 values are computed"):
        machine(tmp_path / "m.yaml")


HEAD = (
    '{"otherData":{"schema":"megatile-trace-2","machine":"x","units":[],"engines":[],"operations":[],'
    '"sources":[],"operands":[]},"traceEvents":['
)
LOG = json.dumps(
    {"schema": "megatile-oplog-1", "flows": [], "counters": []}
    | {key: [] for key in ("units", "engines", "operations", "sources", "operands")}
)


@pytest.mark.parametrize(
    ("name", "head", "unit", "tail"),
    [
        ("t.json.gz", HEAD, "{},", "{}]}"),
        ("t.json.gz", HEAD, "[],", "{}]}"),
        ("t.json.gz", HEAD, "1,", "1]}"),
        ("t.json.gz", HEAD, '{"ph":"M","name":""},', "{}]}"),
        ("t.jsonl.gz", LOG + "\n", "\n", ""),
        ("t.jsonl.gz", LOG + "\n", "{}\n", ""),
        ("t.jsonl.gz", "", "\0", ""),
    ],
)
def test_packed_traces(tmp_path: Path, name: str, head: str, unit: str, tail: str) -> None:
    block = (unit * (1_000_000 // len(unit))).encode()
    with gzip.open(tmp_path / name, "wb", compresslevel=1) as file:
        file.write(head.encode())
        for _ in range(40):
            file.write(block)
        file.write(tail.encode())
    with refused_soon(f"{name}: unpacks to more than "):
        read_trace(tmp_path / name)


@pytest.mark.parametrize("unit", ["{},", "[],", "1,"])
def test_traces_and_plans_of_empty_values(tmp_path: Path, unit: str) -> None:
    (tmp_path / "t.json").write_text(HEAD + unit * 3_000_000 + unit[:-1] + "]}")
    with refused_soon("too many empty values"):
        read_trace(tmp_path / "t.json")
    with refused_soon("too many empty values"):
        Plan.from_json('{"format":2,"streams":[' + unit * 3_000_000 + unit[:-1] + "]}")


def test_a_trace_that_packs_well_is_read(tmp_path: Path) -> None:
    b = TraceBuilder("toy")
    for at in range(20_000):
        b.add(unit="u", engine="dma", operation="copy", start_ps=at, end_ps=at + 1)
    for name in ("t.json.gz", "t.jsonl.gz"):
        assert len(read_trace(write_trace(b.build(), tmp_path / name))) == 20_000
    (tmp_path / "zeros.gz").write_bytes(gzip.compress(bytes(10 << 20)))
    assert len(read_file(tmp_path / "zeros.gz", 1 << 30, unpack=True)) == 10 << 20


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("plan('x')\n" + "a\n" * 400_000, "too many short lines"),
        ("plan('x'," + "a," * 400_000 + ")\n", "too many short values"),
        ("#" * (17 << 20), "more than 16 MiB"),
    ],
)
def test_texts_of_plans(text: str, message: str) -> None:
    with refused_soon(message):
        Plan.from_text(text)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            [{"kind": "tensor", "tensor": "a", "zero": True, "shape": [1 << 40], "dtype": "f32"}],
            "more than 4 GiB",
        ),
        (
            [{"kind": "tensor", "tensor": "a", "zero": True, "shape": [10**40], "dtype": "f32"}],
            "more than 4 GiB",
        ),
        (
            [{"kind": "launch", "tiles": {"t": [1 << 20, 1 << 20, [8], "f32", 0]}, "load": {}}],
            "more than 4 GiB",
        ),
        (["[" * 100_000], "r.jsonl:2: is not a log: it is nested too deeply"),
        ([[]], "a line of a log is an object"),
        ([{}] * 300_000, "no entries of kind None"),
    ],
)
def test_logs_to_replay(tmp_path: Path, lines: list[Any], message: str) -> None:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    (tmp_path / "r.jsonl").write_text(
        "\n".join([json.dumps({"kind": "log", "schema": SCHEMA}), *texts]) + "\n"
    )
    with refused_soon(message):
        mt.replay(tmp_path / "r.jsonl")


ENDLESS = "AS WITH RECURSIVE r(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r) SELECT"


@pytest.mark.parametrize(
    "statement",
    [
        f"CREATE VIEW measurements {ENDLESS} 'm' || i machine, 'gemm' operation, 'f16' dtype, "
        "'x' implementation, '{}' shape, 1.0 time_us, '' source FROM r",
        "CREATE TABLE measurements (machine TEXT AS (hex(zeroblob(100000000))), time_us REAL)",
    ],
)
def test_databases(tmp_path: Path, statement: str) -> None:
    with sqlite3.connect(tmp_path / "d.sqlite") as link:
        link.execute(statement)
    link.close()
    with refused_soon("holds no table 'measurements' of megatile"):
        Database(tmp_path / "d.sqlite").summary()


def test_stores_of_results(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "d.sqlite") as link:
        link.execute(f"CREATE VIEW results {ENDLESS} 'k' key, 1.0 value FROM r")
    link.close()
    with refused_soon("holds no table 'results' of megatile"):
        Store(tmp_path / "d.sqlite").get("key")


def test_tables_of_choices(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text('{"choices":{' + ",".join(f'"k{i}":1' for i in range(1_000_000)) + "}}")
    with refused_soon("is larger than 8 MiB"):
        read_choices(tmp_path / "c.json")
