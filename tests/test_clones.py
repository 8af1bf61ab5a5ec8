"""No run of more than fifteen lines stands twice in the package."""

from __future__ import annotations

import io
import tokenize
from collections import defaultdict
from pathlib import Path

from tests.test_layers import PACKAGE

LONGEST = 15
"""Lines of code that may be equal in two places; without comments, docstrings and imports."""


def lines_of(path: Path) -> list[tuple[int, str]]:
    """The lines of code with their numbers, as their tokens, so that spacing and comments do not matter."""
    found: dict[int, list[str]] = defaultdict(list)
    begins = True
    for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
        if token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT):
            begins = True
        elif token.type not in (tokenize.COMMENT, tokenize.NL, tokenize.ENCODING, tokenize.ENDMARKER):
            if not (begins and token.type == tokenize.STRING):
                found[token.start[0]].append(token.string)
            begins = False
    return [
        (number, " ".join(tokens))
        for number, tokens in sorted(found.items())
        if tokens[0] not in ("import", "from") and len(tokens) > 1
    ]


def clones(root: Path, longest: int = LONGEST) -> list[str]:
    """Pairs of places that share more than so many lines in a row."""
    seen: dict[tuple[str, ...], tuple[Path, int]] = {}
    found = []
    for path in sorted(root.rglob("*.py")):
        lines = lines_of(path)
        skip = 0
        for at in range(len(lines) - longest):
            run = tuple(text for _, text in lines[at : at + longest + 1])
            if run in seen and at >= skip:
                other, line = seen[run]
                place = f"{path.relative_to(root)}:{lines[at][0]}"
                found.append(f"{place} is {other.relative_to(root)}:{line} again")
                skip = at + longest + 1
            seen.setdefault(run, (path, lines[at][0]))
    return found


def test_nothing_is_written_twice() -> None:
    assert clones(PACKAGE) == []


def test_a_copy_is_found(tmp_path: Path) -> None:
    body = "".join(f"    x{i} = {i} + 1\n" for i in range(20))
    (tmp_path / "a.py").write_text(f"def f():\n{body}")
    (tmp_path / "b.py").write_text(f"import os\n\n\ndef g():\n    # the same\n{body.replace(' + ', '+')}")
    assert clones(tmp_path) == ["b.py:6 is a.py:2 again"]
    assert clones(tmp_path, 20) == []
