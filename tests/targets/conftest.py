"""Every text that a test of this folder makes, and every run of the interpreter, is the one that is known.

`texts.txt` has for each test the hashes of the C (for two kinds of vectors), CUDA and TileLang texts that are
written while it runs, and of what the interpreter does: steps, warnings, lines printed, writes where they are
recorded, integers in arrays, or the whole error. ``pytest -n 0 tests/targets --update-golden`` takes those of
the tests that run as right. With ``MEGATILE_TEXTS=FOLDER`` in the environment what is hashed is written
into files there: two versions of the sources are compared with ``diff -r``.
"""

import fcntl
import functools
import hashlib
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megatile.core.errors import MegatileError
from megatile.targets.cpu import kernel as cpu_kernel
from megatile.targets.cpu.generator import generate
from megatile.targets.cuda import generator as cuda_generator, kernel as cuda_kernel
from megatile.targets.interpret.machine import Interpreter
from megatile.targets.tilelang import writer

interpret = import_module("megatile.targets.interpret.run")
FILE = Path(__file__).with_name("texts.txt")
VECTORS = {"c": (8, 6, frozenset()), "wide": (16, 14, frozenset({"bf16", "i8", "i16"}))}
TEXTS = {*VECTORS, "cuda", "tilelang"}
SEEN: dict[str, str] = {}
"""Texts of the test that runs, by kind and hash."""
FOUND: dict[str, str] = {}
"""Lines of tests that have run."""
Write = Callable[..., Any]


def steady(text: str) -> str:
    """A text without the folders and line numbers of its program."""
    text = re.sub(r"[\w./~-]*/(\w+\.py)", r"\1", text)
    text = re.sub(r"\n +\^$", "", text, flags=re.MULTILINE)
    return re.sub(r"(\.py:|\blines? )\d+(, \d+)*", r"\1", text)


def rounded(text: str) -> str:
    """A text with four digits of each number: others may depend on the processor."""
    return re.sub(r"\d+\.\d{4,}(e[+-]?\d+)?", lambda found: f"{float(found[0]):.4g}", text)


def note(kind: str, text: str) -> None:
    text = steady(text) if kind in TEXTS else rounded(steady(text))
    SEEN[f"{kind}:{hashlib.sha256(text.encode()).hexdigest()[:10]}"] = text


@contextmanager
def refusals(kind: str) -> Iterator[None]:
    """Note an error that a text or a run ends with."""
    try:
        yield
    except MegatileError as error:
        note(kind, f"{type(error).__name__}: {error}")
        raise


def all_vectors(original: Write) -> Write:
    @functools.wraps(original)
    def made(program: Any, *given: Any) -> Any:
        with refusals("c"):
            found = original(program, *given)
        for kind, how in VECTORS.items():
            one = generate(program, *how)
            note(kind, f"{one.text}\n{one.collectives}\n{one.flops}")
        return found

    return made


def noted(kind: str, original: Write) -> Write:
    @functools.wraps(original)
    def made(*given: Any) -> Any:
        with refusals(kind):
            found = original(*given)
        note(kind, getattr(found, "text", found))
        return found

    return made


def is_exact(array: np.ndarray) -> bool:
    """Whether elements do not depend on the order of operations: they are integers."""
    with np.errstate(all="ignore"):
        return array.dtype.kind in "iub" or bool((array.astype(np.float64) % 1 == 0).all())


def result_of(original: Write) -> Write:
    """An array at the end of a run."""

    @functools.wraps(original)
    def result(interpreter: Interpreter, param: Any, storage: Any) -> Any:
        with refusals("run"):
            found = original(interpreter, param, storage)
        if is_exact(found):
            note("array", f"{param.name} {found.astype(np.float64).tolist()}")
        return found

    return result


def known_run(self: Interpreter) -> None:
    with refusals("run"):
        RUN(self)


def known_end(self: Any, *given: Any) -> None:
    END(self, *given)
    writes = self.recorder.writes if self.recorder is not None else []
    note("run", "\n".join(map(str, [self.program.name, self.steps, *self.printed, *writes])))


def known_note(original: Write) -> Write:
    @functools.wraps(original)
    def warn(self: Interpreter, message: str, advice: str | None, node: Any = None) -> None:
        note("warning", f"{message} {advice}")
        original(self, message, advice, node)

    return warn


cpu_kernel.generate = all_vectors(cpu_kernel.generate)
for module in (cuda_generator, cuda_kernel):
    module.generate_cuda = noted("cuda", module.generate_cuda)
writer.generate_tilelang = noted("tilelang", writer.generate_tilelang)
interpret._result = result_of(interpret._result)
RUN, Interpreter.run = Interpreter.run, known_run
END, interpret.RunResult.__init__ = interpret.RunResult.__init__, known_end
Interpreter.note = known_note(Interpreter.note)


@functools.cache
def known() -> dict[str, str]:
    lines = FILE.read_text(encoding="utf-8").splitlines() if FILE.exists() else []
    return dict(line.rsplit(" | ", 1) for line in lines)


def is_fixed(item: pytest.Item) -> bool:
    """Whether a test does the same each time: hypothesis draws anew."""
    return not hasattr(getattr(item, "obj", None), "hypothesis")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    SEEN.clear()
    result = yield
    if is_fixed(item):
        name = item.nodeid.removeprefix("tests/targets/")
        line = FOUND[name] = " ".join(sorted(SEEN))
        if folder := os.environ.get("MEGATILE_TEXTS"):
            for number, text in SEEN.items():
                file = Path(folder) / re.sub(r"[^\w.-]+", "_", f"{name}/{number.partition(':')[0]}")
                file.parent.mkdir(parents=True, exist_ok=True)
                with file.open("a", encoding="utf-8") as out:
                    out.write(f"{text}\n")
        if not item.config.getoption("--update-golden") and line != known().get(name, line):
            new = [text for number, text in SEEN.items() if number not in known()[name].split()]
            shown = "\n\n".join(text[:2000] for text in new) or "less than before"
            pytest.fail(
                f"{name} makes other texts than before; MEGATILE_TEXTS=FOLDER keeps them, --update-golden "
                f"takes them as right:\n{shown}",
                pytrace=False,
            )
    return result


def pytest_sessionfinish(session: pytest.Session) -> None:
    if not session.config.getoption("--update-golden") or not FOUND:
        return
    with FILE.open("a+", encoding="utf-8") as file:  # other workers have other tests
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        lines = dict(line.rsplit(" | ", 1) for line in file.read().splitlines()) | FOUND
        file.truncate(0)
        file.write("".join(f"{name} | {line}\n" for name, line in sorted(lines.items()) if line))
