"""Tables of expected results, ``tests/<folder>/expected/*.txt``: one question per line, ``name: answer``.

A time, a bound, a text or an error that changes is found here, whatever changed it. If the change is meant,
say in CHANGELOG.md which rule is new, then write the table anew: ``pytest --update-golden FILE``.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from megatile.core.errors import MegatileError

MAX_CHARS = 200
"""Of an error in a table."""
ADVICE = "if this is meant, name the new rule in CHANGELOG.md, then run pytest --update-golden on this file"


def differences(known: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """Two lines for every answer that is not the known one."""
    lines = []
    for name, answer in found.items():
        if known.get(name) != answer:
            lines += [f"- {name}: {known.get(name, '(not in the table)')}", f"+ {name}: {answer}"]
    return lines


def compare(file: Path, found: Mapping[str, Any], write: bool = False) -> None:
    """Compare answers with those of a table; ``write`` puts them into it instead."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    known = dict(line.split(": ", 1) for line in lines)
    answers = {name: escaped(answer) for name, answer in found.items()}
    assert not any(": " in name for name in answers)
    if write:
        file.parent.mkdir(exist_ok=True)
        text = "".join(f"{name}: {answer}\n" for name, answer in sorted((known | answers).items()))
        file.write_text(text, encoding="utf-8")
        return
    changed = differences(known, answers)
    assert not changed, "\n".join([f"{file.name} says otherwise:", *changed, ADVICE])


def escaped(answer: Any) -> str:
    """An answer in one line."""
    return str(answer).replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")


def tried(call: Callable[[], Any]) -> Any:
    """What a call returns, or its error."""
    try:
        return call()
    except MegatileError as error:
        return problem(error)


def problem(error: Exception) -> str:
    """The text of an error; of a long one the beginning, with digits for all of it."""
    text = f"{type(error).__name__}: {plain(str(error))}"
    return text if len(text) <= MAX_CHARS else f"{text[:MAX_CHARS]} … {digest(text)}"


def plain(text: str) -> str:
    """A text without folders, lines of tests and the widths of columns, which depend on them."""
    text = re.sub(r"(?<![\w.])/(?:[\w.@+-]+/)+", "", text)
    return re.sub(r"( |─|-)\1+", r"\1", re.sub(r"(\w+\.py):\d+", r"\1", text))


def digest(*values: Any) -> str:
    """Eight digits that change with any of the values: of what is too long to stand in a table."""
    return f"{zlib.crc32(shown(values).encode()):08x}"


def shown(value: Any) -> str:
    """A value as text, the same on every machine: floats with nine digits, dicts and sets sorted."""
    if isinstance(value, np.ndarray):
        return f"{value.shape}{shown(value.tolist())}"
    if isinstance(value, (float, np.floating)):
        return f"{float(value):.9g}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(sorted(f"{shown(k)}: {shown(v)}" for k, v in value.items())) + "}"
    if isinstance(value, (set, frozenset)):
        return "{" + ", ".join(sorted(map(shown, value))) + "}"
    if isinstance(value, (list, tuple)):
        return f"({', '.join(map(shown, value))})"
    return plain(str(value))


NOTHING = ("", "None", "()", "{}", "0", "1")


def line(**fields: Any) -> str:
    """Fields as ``name=value``; those without a value are left out, long values cut, with digits for all."""
    texts = {name: shown(value) for name, value in fields.items()}
    long = {name: f"{text[:40]}…{digest(text)}" for name, text in texts.items() if len(text) > MAX_CHARS}
    return " ".join(f"{name}={text}" for name, text in (texts | long).items() if text not in NOTHING)


def chunks(values: Iterable[Any], size: int) -> list[list[Any]]:
    """Equal parts, for a test each."""
    every = list(values)
    return [every[at : at + size] for at in range(0, len(every), size)]


def of_cases(names: Iterable[str], cases: Mapping[str, Any], answer: Callable[[Any], Any]) -> dict[str, Any]:
    """Answers for cases, each a maker and its seed; not for those of the machine that is this computer."""
    made = {name: make(seed) for name, (make, seed) in ((name, cases[name]) for name in names)}
    return {name: answer(case) for name, case in made.items() if case.hda.name != "cpu"}
