"""The diffs of CONTRIBUTING.md fit the files they are for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
DIFFS = re.findall(r"^```diff\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
FILES = [part for diff in DIFFS for part in re.split(r"^(?=--- )", diff, flags=re.MULTILINE) if part]


@pytest.mark.parametrize("part", FILES, ids=lambda part: part.splitlines()[1].removeprefix("+++ b/"))
def test_a_diff_fits_its_file(part: str) -> None:
    """What it takes away and leaves is there; one that has been applied has its new lines there."""
    before, after, rest = part.split("\n", 2)
    for hunk in re.split(r"^@@.*\n", rest, flags=re.MULTILINE)[1:]:
        lines = hunk.splitlines()
        old, new = ("\n".join(x[1:] for x in lines if x[:1] in (" ", mark)) for mark in "-+")
        if before == "--- /dev/null":
            compile(new, after, "exec")
            continue
        text = (ROOT / after.removeprefix("+++ b/")).read_text(encoding="utf-8")
        assert old
        assert old in text or new in text


def test_there_is_a_diff_for_each_kind_of_change() -> None:
    assert len(DIFFS) == 3
    assert all(diff.count("+++ ") <= 3 for diff in DIFFS)
