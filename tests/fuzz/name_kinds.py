"""The kind of hostile names: of files to read and to write, and of sources that a trace says it came from."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from tests.fuzz import mutate
from tests.fuzz.kinds import folder, kind, known_machine, trace_files

import megatile as mt
from megatile.collectives import load_ccl_config
from megatile.collectives.choice_table import read_file as read_choices
from megatile.core.files import is_inside, write_text
from megatile.hda import HDA, problems
from megatile.hda.document import parse_document
from megatile.models.measured_trace import read_kernels
from megatile.models.predictor import read_batches
from megatile.report.page import page, write_page
from megatile.runtime.host.replay import replay
from megatile.timing.database import Database
from megatile.timing.measurements import read_measurements
from megatile.trace import TraceBuilder, read_trace, write_trace
from megatile.tuning.store import Store

SECRET = "a line of a file that nobody allowed to be shown"
NAMES = ("m.yaml", "c.yaml", "c.json", "t.json", "t.jsonl.gz", "s.jsonl", "r.csv", "e.yaml", "a.py", "pipe", "sub", "loop.yaml",
         "link.yaml", "gone.yaml", "empty.yaml", "noise.yaml", "noise.gz", "noise.sqlite", "huge.yaml", "sub/deep.yaml", "new.json",
         "new.html", "new.gz", "new.sqlite", "../secret.txt", "sub/../../secret.txt", "/dev/zero", "/dev/null", "/dev/stdin",
         "/proc/self/mem", "/proc/self/environ", "/proc/kmsg", ".", "..", "/", "", " ", "-", "~", "~root", "$HOME", "a:1", "a:b", "C:\\a",
         "http://localhost/a.yaml", "file:///a", "//a", "os:system", "dgx-h100", "dgx-h100.yaml", "Llama-3.2-1B", ":memory:",
         "file:x?mode=memory", "x" * 300 + ".yaml", "a/" * 3000 + "a.json", "\ud800.yaml", "a\0b.yaml", "a\nb.json", "\u202egnp.yaml",
         "%s%n", "{0}", "<script>.html", "'\"; rm", "CON", "a.yaml/", "m.yaml/x", "pipe.gz", "*.yaml", "[")  # fmt: skip
READERS: dict[str, Callable[[str], Any]] = {
    "machine": mt.machine,
    "from_yaml": HDA.from_yaml,
    "problems": problems,
    "extends": lambda n: HDA.from_document(
        parse_document(f"extends: {json.dumps(n)}\nname: a", "m.yaml"), {}
    ),
    "ccl": load_ccl_config,
    "model": mt.model,
    "trace": read_trace,
    "kernels": read_kernels,
    "batches": read_batches,
    "measurements": lambda n: read_measurements(n, "dgx-h100"),
    "choices": lambda n: read_choices(Path(n)),
    "replay": replay,
    "requests": lambda n: mt.model("Llama-3.2-1B").serve(machine=known_machine("dgx-h100"), requests=n),
    "database": lambda n: Database(n, create=False).close(),
}
WRITERS: dict[str, Callable[[str], Any]] = {
    "trace": lambda n: write_trace(_small_trace("a.py"), n),
    "text": lambda n: write_text(n, "a"),
    "page": lambda n: write_page(n, "a"),
    "database": lambda n: Database(n).close(),
    "store": lambda n: Store(n).__exit__(),
}


@cache
def place() -> Path:
    """A folder with files of every sort, good ones and traps."""
    here = folder() / "names" / "a" / "b"
    (here / "sub").mkdir(parents=True)
    (here.parent / "secret.txt").write_text(SECRET + "\n")
    for name, content in {
        "m.yaml": b"extends: cpu\nname: mine\n", "c.yaml": b"algorithms: {}\n", "c.json": b"{}", "s.jsonl": b"[[1, 2]]\n",
        "r.csv": b"gemm_dtype,m,n,k,us\nbfloat16,1,1,1,5.5\n", "e.yaml": b"extends: m.yaml\n", "a.py": b"x = 1\n",
        "empty.yaml": b"", "noise.yaml": bytes(range(256)), "noise.gz": b"\x1f\x8b" + bytes(99), "sub/deep.yaml": b"extends: ../m.yaml\n",
        "noise.sqlite": b"SQLite format 3\0" + bytes(200), **dict(trace_files()),
    }.items():  # fmt: skip
        (here / name).write_bytes(content)
    with (here / "huge.yaml").open("wb") as sparse:
        sparse.truncate(5 << 30)
    for name in ("pipe", "pipe.gz"):
        os.mkfifo(here / name)
    for name, target in (("loop.yaml", "loop.yaml"), ("link.yaml", "../secret.txt"), ("gone.yaml", "none")):
        (here / name).symlink_to(target)
    return here


def _small_trace(source: str) -> Any:
    builder = TraceBuilder("cpu")
    builder.add(unit="u", engine="dma", operation="copy", start_ps=0, end_ps=9, source=source)
    return builder.build()


def _name(rng: random.Random, _: int) -> tuple[str, str, str]:
    name = rng.choice(NAMES)
    if rng.random() < 0.5:
        name = mutate.text(rng, name, list(NAMES))
    what = rng.choice(("read", "read", "write", "source"))
    door = rng.choice([*READERS] if what == "read" else [*WRITERS] if what == "write" else ["."])
    return what, door, name


@kind("file_name", _name)
def run_name(case: tuple[str, str, str]) -> None:
    what, door, name = case
    before = Path.cwd()
    os.chdir(written() if what == "write" else place())
    there = _contents()
    try:
        if what == "read":
            READERS[door](name)
        elif what == "source":
            shown = page(_small_trace(f"{name}:1"), title=name, sources=".")
            assert SECRET not in shown, "the page shows a file outside the folder of sources"
        elif not _known(name) or is_inside(name, "."):
            WRITERS[door](name)
            there = {}
    finally:
        left = _contents()
        os.chdir(before)
        if there:
            assert left == there, f"leaves {left} where there was {there}"


def written() -> Path:
    """A folder to write to, as new."""
    here = folder() / "written"
    shutil.rmtree(here, ignore_errors=True)
    (here / "sub").mkdir(parents=True)
    (here / "m.yaml").write_bytes(b"extends: cpu\n")
    return here


def _contents() -> dict[str, tuple[int, int]]:
    """The files of this folder: length and time of the last change."""
    with os.scandir(".") as entries:
        states = {entry.name: entry.stat(follow_symlinks=False) for entry in entries}
    return {name: (state.st_size, state.st_mtime_ns) for name, state in states.items()}


def _known(name: str) -> bool:
    """Whether the system can have a file of that name."""
    try:
        os.fsencode(os.path.realpath(name))
    except (OSError, ValueError):
        return False
    return len(name) < 200
