"""Every text that a test of this folder makes, and every run of the interpreter, is the one that is known.

`texts.txt` (`tests.known_texts`) has for each test the hashes of the C (for two kinds of vectors), CUDA and
TileLang texts that are written while it runs, and of what the interpreter does: steps, warnings, lines
printed, writes where they are recorded, integers in arrays, or the whole error.
"""

import functools
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.known_texts import WANTED, Known, is_exact, note, refusals, rounded

from megatile.targets.cpu import kernel as cpu_kernel
from megatile.targets.cpu.generator import generate
from megatile.targets.cuda import generator as cuda_generator, kernel as cuda_kernel
from megatile.targets.interpret.machine import Interpreter
from megatile.targets.tilelang import writer

interpret = import_module("megatile.targets.interpret.run")
VECTORS = {"c": (8, 6, frozenset()), "wide": (16, 14, frozenset({"bf16", "i8", "i16"}))}
KINDS = (*VECTORS, "cuda", "tilelang", "run", "array", "warning")
KNOWN = Known(Path(__file__).with_name("texts.txt"), *KINDS)
Write = Callable[..., Any]


def all_vectors(original: Write) -> Write:
    @functools.wraps(original)
    def made(program: Any, *given: Any) -> Any:
        with refusals("c"):
            found = original(program, *given)
        for kind, how in VECTORS.items() if WANTED else ():
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
    said = "\n".join(map(str, [self.program.name, self.steps, *self.printed, *writes]))
    note("run", rounded(said))


def known_note(original: Write) -> Write:
    @functools.wraps(original)
    def warn(self: Interpreter, message: str, advice: str | None, node: Any = None) -> None:
        note("warning", rounded(f"{message} {advice}"))
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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    return (yield from KNOWN.run(item))


def pytest_sessionfinish(session: pytest.Session) -> None:
    KNOWN.finish(session)
