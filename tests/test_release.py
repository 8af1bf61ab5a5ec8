"""The files of a release agree: version, changelog, citation, workflows and templates."""

from __future__ import annotations

import re
from pathlib import Path

import megatile as mt

ROOT = Path(__file__).parent.parent
KINDS = ["Added", "Changed", "Fixed", "Removed"]


def test_the_changelog_has_the_release_that_the_version_leads_to() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    releases = re.findall(r"^## \[([\d.]+)\] - (Unreleased|\d{4}-\d\d-\d\d)$", text, re.MULTILINE)
    assert len(releases) == len(re.findall(r"^## ", text, re.MULTILINE)) >= 2
    newest, date = releases[0]
    assert newest == mt.__version__.partition(".dev")[0]
    assert (date == "Unreleased") == (".dev" in mt.__version__)
    assert [at for _, at in releases[1:]] == sorted((at for _, at in releases[1:]), reverse=True)
    for release in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        kinds = re.findall(r"^### (.*)$", release, re.MULTILINE)
        assert kinds == [kind for kind in KINDS if kind in kinds]


def test_changes_are_one_line_each() -> None:
    lines = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line.startswith((" ", "* "))] == []
    assert [line for line in lines if line.startswith("- ") and len(line) > 160] == []
