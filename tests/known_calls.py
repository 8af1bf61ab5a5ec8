"""What simulations, bounds, lowered programs, checks, collectives and expected errors give in the tests of a
folder that knows them (`tests.known_texts`)."""

import functools
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.expected import shown
from tests.known_texts import WANTED, Known, note, rounded

from megatile.collectives.planner import Prediction
from megatile.collectives.registry import Algorithm
from megatile.core.errors import MegatileError
from megatile.core.limits import OutOfMemory, TimeBudgetExceeded
from megatile.cost.price import Price
from megatile.hda.instance import Instance
from megatile.lowering.lowered import Lowered
from megatile.plan.build import PlanBuilder
from megatile.plan.check import Checked
from megatile.sim.result import Result
from megatile.sim.session import Session

KINDS = ("error", "lowered", "time", "text", "price", "collective", "plan", "checked", "launch")
RAISES = pytest.raises
FOLDERS = r"(?<![\w.])/(?:[\w.@+-]+/)+"
PARSED = r"(cannot read the text|is not an integer expression|not valid YAML|not valid JSON).*"
OF_THIS_COMPUTER = (TimeBudgetExceeded, OutOfMemory)
"""Errors that say how far it came, or what it has."""
HERE = ("tests.known_calls", "tests.known_texts")


def is_asked(*modules: str) -> bool:
    """Whether a test asks for what is made now through functions of these modules alone: what others make on
    their way they may have in a cache."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name.startswith("tests.") and name not in HERE:
            return True
        if name.startswith("megatile.") and not name.startswith(("megatile.core.", *modules)):
            return False
        frame = frame.f_back
    return False


def keep(kind: str, text: str) -> None:
    """Note a text without what Python's parser says; not one of the machine that is this computer."""
    if not re.search(r"\bcpu\b", text):
        note(kind, rounded(re.sub(FOLDERS, "", re.sub(PARSED, r"\1", text))))


def noting(kind: str, owner: Any, method: str, text: Callable[[Any, Any], str], *modules: str) -> None:
    """Note a text of (self, what is returned) whenever a test asks for a method's result."""
    original = getattr(owner, method)

    @functools.wraps(original)
    def noted(self: Any, *given: Any, **named: Any) -> Any:
        found = original(self, *given, **named)
        if kind in WANTED and is_asked(*modules):
            keep(kind, text(self, found))
        return found

    setattr(owner, method, noted)


def of_result(result: Result, _: None) -> str:
    said = (
        result.plan.name,
        result.machine.name,
        result.time_ps,
        result.timed_by,
        result.messages,
        result.choices,
    )
    return shown(said)


def of_launch(_: Session, launch: Any) -> str:
    times = f"{launch.submit_ps} {launch.begin_ps} {launch.end_ps}"
    return f"{launch.name} {times} {launch.state} {shown(launch.messages)}"


def of_price(price: Price, _: None) -> str:
    return shown(
        (price.lower_ps, price.__dict__.get("upper_ps"), sorted(map(str, price.__dict__.get("shared", ()))))
    )


def of_prediction(found: Prediction, _: None) -> str:
    return f"{found.time_ps} {found.model} {found.candidate} {found.explanation}\n{found.plan}"


def of_lowered(lowered: Lowered, _: None) -> str:
    return f"{lowered}\n{lowered.plan}"


def returned(_: Any, found: Any) -> str:
    return str(found)


noting("time", Result, "__init__", of_result, "megatile.sim.simulate", "megatile.lowering.calls")
noting("launch", Session, "_keep", of_launch, "megatile.sim.", "megatile.plan.")
noting("price", Price, "__init__", of_price, "megatile.cost.price", "megatile.lowering.calls")
noting("collective", Prediction, "__init__", of_prediction, "megatile.collectives.planner")
noting("lowered", Lowered, "__init__", of_lowered, "megatile.lowering.lowered", "megatile.lowering.calls")
noting(
    "checked",
    Checked,
    "__init__",
    lambda checked, _: repr(checked),
    "megatile.plan.check",
    "megatile.lowering.calls",
)
noting("plan", PlanBuilder, "finish", returned)
noting("plan", Algorithm, "plan", returned)
for method in ("summary", "why_slow", "what_helps"):
    noting("text", Result, method, returned)
noting("text", Lowered, "explain", returned)
noting("text", Session, "summary", returned)
noting("text", Instance, "__init__", lambda launch, _: repr((launch.names, launch.shape)), "megatile.hda.")


@contextmanager
def _raises(*given: Any, **named: Any) -> Iterator[Any]:
    with RAISES(*given, **named) as info:
        yield info
    if isinstance(info.value, MegatileError) and not isinstance(info.value, OF_THIS_COMPUTER):
        keep("error", f"{type(info.value).__name__}: {info.value}")


@functools.wraps(RAISES)
def raises(*given: Any, **named: Any) -> Any:
    return RAISES(*given, **named) if len(given) > 1 else _raises(*given, **named)


raises.Exception = getattr(RAISES, "Exception", None)  # type: ignore[attr-defined]
pytest.raises = raises


def known(conftest: str) -> Known:
    """What the tests of a folder are known by."""
    return Known(Path(conftest).with_name("texts.txt"), *KINDS)
