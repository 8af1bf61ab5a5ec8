"""Set-up for all tests: pictures without a screen, property tests without a stopwatch, one thread each."""

import gc
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from tests.expected import compare as compare_with_table

os.environ.setdefault("MPLBACKEND", "Agg")
# Threads of torch and NumPy spin on cores that other workers need: that costs more than all they compute.
for library in ("OMP", "OPENBLAS", "MKL"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")

# A shell that runs the tests in the background ignores SIGINT for them and for all processes they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A busy machine must not make a property test fail.
settings.register_profile("megatile", deadline=None)
settings.load_profile("megatile")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="Write the golden texts anew.")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is collected stays to the end: the garbage collector need not look through it again and again.

    Afterwards it looks more rarely than usual: with the caches of thousands of tests, it took a sixth of the
    time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(50_000, 20, 20)
        gc.enable()


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[Path, str], None]:
    """Compare a text with a file; with ``--update-golden`` write the file instead."""

    def compare(file: Path, text: str) -> None:
        if request.config.getoption("--update-golden"):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        assert text == file.read_text(encoding="utf-8"), f"pytest --update-golden writes {file.name} anew"

    return compare


@pytest.fixture
def expected(request: pytest.FixtureRequest) -> Callable[[str, Mapping[str, Any]], None]:
    """Compare answers by name with a table of the test's folder (`tests.expected`); ``--update-golden``
    writes them into it."""

    def compare(table: str, found: Mapping[str, Any]) -> None:
        file = request.path.parent / "expected" / f"{table}.txt"
        compare_with_table(file, found, request.config.getoption("--update-golden"))

    return compare
