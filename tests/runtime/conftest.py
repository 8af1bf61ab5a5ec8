"""What the host does in a test of this folder is what is known: errors, launches with their plans and times,
and integers in tensors (`tests.known_texts`)."""

import functools
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.expected import compare
from tests.known_texts import WANTED, Known, is_exact, note, rounded

from megatile.core.errors import MegatileError
from megatile.plan.text import to_text
from megatile.runtime.host.engine import Engine
from megatile.runtime.host.tensor import Tensor

FOLDER = Path(__file__).parent / "expected"
LAUNCHES: list[Any] = []
"""Of the test that runs."""
Call = Callable[..., Any]


def end() -> None:
    """Note launches with the times when they ended."""
    plans = {id(launch.plan): launch.plan for launch in LAUNCHES if launch.plan is not None}
    for plan in plans.values():
        note("plan", to_text(plan))
    for launch in LAUNCHES:
        where = f"{launch.name} {launch.devices} {launch.submit_ps} {launch.begin_ps} {launch.end_ps}"
        note("launch", where)
    LAUNCHES.clear()


KNOWN = Known(Path(__file__).with_name("texts.txt"), "error", "launch", "plan", "tensor", end=end)


def noted(original: Call, then: Call) -> Call:
    """A function that notes what it returns, for a test of this folder."""

    @functools.wraps(original)
    def called(self: Any, *given: Any, **named: Any) -> Any:
        found = original(self, *given, **named)
        if "launch" in WANTED:
            then(self, found)
        return found

    return called


def of_error(error: MegatileError, _: None) -> None:
    note("error", rounded(f"{type(error).__name__}: {error.message} {error.advice}"))


def of_tensor(tensor: Tensor, found: Any) -> None:
    array = np.asarray(found)
    if array.dtype.kind in "iubf" and is_exact(array):
        digits = hashlib.sha256(array.astype(np.float64).tobytes()).hexdigest()
        note("tensor", f"{array.shape} {digits}")


Engine._start = noted(Engine._start, lambda _, launch: LAUNCHES.append(launch))
Tensor.numpy = noted(Tensor.numpy, of_tensor)
MegatileError.__init__ = noted(MegatileError.__init__, of_error)


@pytest.fixture
def expected(request: pytest.FixtureRequest) -> Callable[[str, dict[str, Any]], None]:
    """Compares answers by name with those of a file in ``expected/``."""
    write = request.config.getoption("--update-golden")
    return lambda name, found: compare(FOLDER / f"{name}.txt", found, write)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    LAUNCHES.clear()
    return (yield from KNOWN.run(item))


def pytest_sessionfinish(session: pytest.Session) -> None:
    KNOWN.finish(session)
