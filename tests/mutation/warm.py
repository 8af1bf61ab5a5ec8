"""A pytest plugin (``-p tests.mutation.warm``): collect once, then test every mutant in a fork.

The tests' process writes a line, its ``tests`` and the functions ``called`` while it collected, which made
things that a fork finds made. Then it reads requests, one JSON object per line, from the file descriptor that
``MEGATILE_MUTANTS`` names first and writes an answer per line to the second. A request has the ``file`` of
a mutant below ``megatile/``, its ``text``, the ``tests`` in their order and the ``seconds`` of processor time
after which none begins any more. In
the fork the code of every function that came from the file is replaced; the file on disk must have the change
too, for what is imported later and for other processes. The answer is ``[outcome, test, found]``: killed (by
it), slow (that test took longer than MAX_SECONDS), survived, or fresh, where functions cannot be told apart;
and of every test that passed its processor time and which of the functions ``watched`` it called.
"""

from __future__ import annotations

import collections
import contextlib
import gc
import json
import os
import signal
import sys
import threading
import time
import types
from collections.abc import Iterator
from typing import Any

import pytest

WALL_CLOCK = 8.0
"""How much longer than its processor time a mutant may take by the clock: others use the processor too."""
MAX_SECONDS = 10.0
"""Processor time that one test may take."""
CALLED: set[types.CodeType] = set()
"""What was called while tests were collected."""
if "MEGATILE_MUTANTS" in os.environ:
    sys.settrace(lambda frame, event, _: CALLED.add(frame.f_code))


def pytest_collection_finish() -> None:
    sys.settrace(None)
    gc.collect()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool:
    """Answer requests until there are no more."""
    source, sink = (int(number) for number in os.environ["MEGATILE_MUTANTS"].split(","))
    items = {item.nodeid: item for item in session.items}
    called = _names(CALLED)
    with os.fdopen(source, encoding="utf-8") as requests, os.fdopen(sink, "w", encoding="utf-8") as answers:
        print(json.dumps({"tests": sorted(items), "called": sorted(called)}), file=answers, flush=True)
        for line in requests:
            print(json.dumps(_answer(items, json.loads(line))), file=answers, flush=True)
    return True


def _answer(items: dict[str, pytest.Item], request: dict[str, Any]) -> list[Any]:
    read, write = os.pipe()
    child = os.fork()
    if not child:
        _child(items, request, write)
    os.close(write)
    limit = time.monotonic() + WALL_CLOCK * (request["seconds"] + MAX_SECONDS)
    said = b""
    os.set_blocking(read, False)
    done, status = 0, 0
    while not done and time.monotonic() < limit:
        time.sleep(0.01)
        with contextlib.suppress(BlockingIOError):
            said += os.read(read, 1 << 16)
        done, status = os.waitpid(child, os.WNOHANG)
    with contextlib.suppress(ProcessLookupError):  # and what the tests have started
        os.killpg(child, signal.SIGKILL)
    if not done:
        os.waitpid(child, 0)
    with contextlib.suppress(BlockingIOError):
        said += os.read(read, 1 << 16)
    os.close(read)
    lines = [line.split("\t") for line in said.decode().split("\n")[:-1]]
    current = lines[-1][0] if lines and len(lines[-1]) == 1 else ""
    found = {test: (float(seconds), names.split()) for test, seconds, names in filter(lambda x: x[1:], lines)}
    code = os.waitstatus_to_exitcode(status) if done else -signal.SIGPROF
    if code in (0, 3):
        return ["survived" if code == 0 else "fresh", "", found]
    return ["slow" if code == -signal.SIGPROF else "killed", current, found]


def _child(items: dict[str, pytest.Item], request: dict[str, Any], write: int) -> None:
    """Run the tests until one fails; every test is named before it begins. Never returns."""
    code = 4
    try:
        os.setpgid(0, 0)
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        if not replace_code(request["file"], request["text"]):
            os._exit(3)
        begin = sum(os.times()[:4])
        chosen = [items[test] for test in request["tests"]]
        session = chosen[0].session
        session.testsfailed = 0
        for item, following in zip(chosen, [*chosen[1:], None], strict=True):
            now = sum(os.times()[:4])
            if now - begin > request["seconds"]:
                break
            os.write(write, f"{item.nodeid}\n".encode())
            signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS)
            with _noted() as called:
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if session.testsfailed or session.shouldstop:
                os._exit(1)
            names = " ".join(_names(called).intersection(request["watched"]))
            os.write(write, f"{item.nodeid}\t{sum(os.times()[:4]) - now}\t{names}\n".encode())
        code = 0
    finally:
        os._exit(code)


@contextlib.contextmanager
def _noted() -> Iterator[set[types.CodeType]]:
    """The functions that are called inside."""
    called: set[types.CodeType] = set()

    def note(frame: types.FrameType, event: str, arg: object) -> None:
        called.add(frame.f_code)

    threading.settrace(note)
    sys.settrace(note)
    try:
        yield called
    finally:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]


def _names(called: set[types.CodeType]) -> set[str]:
    return {f"{c.co_filename.rpartition('/megatile/')[2]}:{c.co_firstlineno}" for c in called}


def replace_code(file: str, text: str) -> bool:
    """Give every function of a file the code that it has in a changed text; False: some look alike."""
    name = f"megatile.{file.removesuffix('.py').replace('/', '.')}".removesuffix(".__init__")
    module = sys.modules.get(name)
    if module is None:  # nobody has imported it: the change on disk will be read
        return True
    path = str(module.__file__)
    new = collections.defaultdict(list)
    for code in _codes(compile(text, path, "exec", dont_inherit=True)):
        new[code.co_name, code.co_firstlineno].append(code)
    gc.unfreeze()
    functions = [f for f in gc.get_objects() if isinstance(f, types.FunctionType)]
    for function in functions:
        old = function.__code__
        if old.co_filename != path and not old.co_filename.endswith(f"/megatile/{file}"):
            continue
        found = new.get((old.co_name, old.co_firstlineno), [])
        if len(found) != 1 or found[0].co_freevars != old.co_freevars:
            if all(f.co_code == old.co_code and f.co_consts == old.co_consts for f in found):
                continue
            return False
        function.__code__ = found[0]
    return True


def _codes(code: types.CodeType) -> list[types.CodeType]:
    inner = [c for c in code.co_consts if isinstance(c, types.CodeType)]
    return [*inner, *(deeper for c in inner for deeper in _codes(c))]
