"""Programs of a corpus: their text in C, CUDA and TileLang, and their way through the interpreter.

Digits stand for texts. ``python -m tests.targets.corpus NAME`` prints them.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.expected import chunks, compare, digest
from tests.targets.corpus import CORPUS, WAYS, built_case

FILE = Path(__file__).parent / "expected" / "corpus.txt"
EACH = 8
"""Programs of a test."""


@pytest.mark.parametrize("names", chunks(CORPUS, EACH), ids=lambda names: names[0])
def test_texts_and_runs_are_as_before(names: list[str], request: pytest.FixtureRequest) -> None:
    found: dict[str, Any] = {}
    for name in names:
        case = built_case(name)
        found |= {f"{name} {way}": short(write, case) for way, write in WAYS.items()}
    compare(FILE, found, request.config.getoption("--update-golden"))


def short(write: Callable[[Any], str], case: Any) -> str:
    text = write(case)
    return text if len(text) < 120 and "\n" not in text else digest(text)
