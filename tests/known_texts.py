"""What tests make besides what they assert: texts, errors and numbers, which are the ones that are known.

A folder's ``conftest.py`` notes them (`note`) and has the hooks of `Known`. Its `texts.txt` has the hashes of
each test. ``pytest -n 0 FOLDER --update-golden`` takes those of the tests that run as right. With
``MEGATILE_TEXTS=FOLDER`` in the environment what is hashed is written into files there: two versions of the
sources are compared with ``diff -r``.
"""

import fcntl
import hashlib
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megatile.core.errors import MegatileError

SEEN: dict[str, str] = {}
"""Texts of the test that runs, by kind and hash."""
FOUND: dict[str, str] = {}
"""Lines of tests that have run."""
FEW = 4
"""Texts of a kind that have a hash each."""
WANTED: set[str] = set()
"""The kinds that the test that runs is known by: those of its folder."""


def steady(text: str) -> str:
    """A text without the folders and line numbers of its program."""
    if ".py" in text:
        text = re.sub(r"[\w./~-]*/(\w+\.py)", r"\1", text)
        text = re.sub(r"\n +\^$", "", text, flags=re.MULTILINE)
    return re.sub(r"(\.py:|\blines? )\d+(, \d+)*", r"\1", text)


def rounded(text: str) -> str:
    """A text with four digits of each number: others may depend on the processor."""
    return re.sub(r"\d+\.\d{4,}(e[+-]?\d+)?", lambda found: f"{float(found[0]):.4g}", text)


def note(kind: str, text: str) -> None:
    """Note a text of the test that runs, if its folder wants that kind."""
    if kind not in WANTED:
        return
    text = steady(text)
    SEEN[_number(kind, text)] = text


@contextmanager
def refusals(kind: str) -> Iterator[None]:
    """Note an error that something ends with."""
    try:
        yield
    except MegatileError as error:
        note(kind, rounded(f"{type(error).__name__}: {error}"))
        raise


def is_exact(array: np.ndarray) -> bool:
    """Whether elements do not depend on the order of operations: they are integers."""
    with np.errstate(all="ignore"):
        return array.dtype.kind in "iub" or bool((array.astype(np.float64) % 1 == 0).all())


def is_fixed(item: pytest.Item) -> bool:
    """Whether a test does the same each time: hypothesis draws anew."""
    return not hasattr(getattr(item, "obj", None), "hypothesis")


class Known:
    """The hashes of the tests of a folder, in a file; a test without a line there may make anything."""

    def __init__(self, file: Path, *kinds: str, end: Callable[[], None] = lambda: None):
        self.file, self.kinds, self.end = file, kinds, end
        self.prefix = f"tests/{file.parent.name}/"
        self.lines = dict(line.rsplit(" | ", 1) for line in self._read())

    def _read(self) -> list[str]:
        return self.file.read_text(encoding="utf-8").splitlines() if self.file.exists() else []

    def run(self, item: Any) -> Iterator[None]:
        """``pytest_runtest_call``, as a wrapper."""
        SEEN.clear()
        WANTED.update(self.kinds)
        try:
            result = yield
            self.end()
        finally:
            WANTED.clear()
        if is_fixed(item):
            name = item.nodeid.removeprefix(self.prefix)
            line = FOUND[item.nodeid] = " ".join(sorted(_few(SEEN)))
            if folder := os.environ.get("MEGATILE_TEXTS"):
                _keep(Path(folder), name)
            if not item.config.getoption("--update-golden"):
                self.compare(name, line)
        return result

    def compare(self, name: str, line: str) -> None:
        before = self.lines.get(name, line)
        if line != before:
            new = [text for number, text in _few(SEEN).items() if number not in before.split()]
            shown = "\n\n".join(text[:2000] for text in new) or "less than before"
            pytest.fail(
                f"{name} makes other texts than before; MEGATILE_TEXTS=FOLDER keeps them, --update-golden "
                f"takes them as right:\n{shown}",
                pytrace=False,
            )

    def finish(self, session: pytest.Session) -> None:
        """``pytest_sessionfinish``: write the file anew, if that was asked for."""
        own = {n.removeprefix(self.prefix): line for n, line in FOUND.items() if n.startswith(self.prefix)}
        if not session.config.getoption("--update-golden") or not own:
            return
        with self.file.open("a", encoding="utf-8") as lock:  # other workers have other tests
            fcntl.flock(lock, fcntl.LOCK_EX)
            lines = dict(line.rsplit(" | ", 1) for line in self._read()) | own
            text = "".join(f"{name} | {line}\n" for name, line in sorted(lines.items()) if line)
            self.file.write_text(text, encoding="utf-8")

    def without_tests(self) -> list[str]:
        """The lines whose tests are gone."""
        gone = []
        for name in self.lines:
            file, _, test = name.partition("::")
            path = self.file.parent / file
            function = test.partition("[")[0].rpartition("::")[2]
            if not path.exists() or f"def {function}(" not in path.read_text(encoding="utf-8"):
                gone.append(name)
        return gone


def _few(seen: dict[str, str]) -> dict[str, str]:
    """The texts, with those of a kind that has many as one."""
    kinds = [number.partition(":")[0] for number in sorted(seen)]
    found = {number: text for number, text in seen.items() if kinds.count(number.partition(":")[0]) <= FEW}
    for kind in set(kinds):
        if kinds.count(kind) > FEW:
            text = "\n".join(sorted(text for number, text in seen.items() if number.startswith(f"{kind}:")))
            found[_number(kind, text)] = text
    return found


def _number(kind: str, text: str) -> str:
    return f"{kind}:{hashlib.sha256(text.encode()).hexdigest()[:10]}"


def _keep(folder: Path, name: str) -> None:
    for number, text in SEEN.items():
        file = folder / re.sub(r"[^\w.-]+", "_", f"{name}/{number.partition(':')[0]}")
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a", encoding="utf-8") as out:
            out.write(f"{text}\n")
