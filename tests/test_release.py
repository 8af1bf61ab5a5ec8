"""The files of a release agree: version, changelog, citation, workflows and templates."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

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


FILES = sorted((ROOT / ".github").rglob("*.yml")) + [ROOT / "CITATION.cff", ROOT / "mkdocs.yml"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_yaml_files_parse(file: Path) -> None:
    assert isinstance(read(file), dict)


def read(file: Path) -> Any:
    return yaml.safe_load(file.read_text(encoding="utf-8"))


def test_the_citation_is_of_this_version() -> None:
    citation = read(ROOT / "CITATION.cff")
    assert citation["version"] == mt.__version__
    assert {"cff-version", "message", "title", "authors"} <= set(citation)


def test_the_workflow_tests_every_python_that_is_declared() -> None:
    workflow = read(ROOT / ".github" / "workflows" / "test.yml")
    job = workflow["jobs"]["test"]
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert job["strategy"]["matrix"]["python"] == re.findall(r"Python :: (3\.\d+)", project)
    assert [step["run"] for step in job["steps"] if "run" in step] == ["make test PYTHON=python"]
    used = [step["uses"] for step in job["steps"] if "uses" in step]
    assert used
    assert all(action.startswith("actions/") for action in used)  # GitHub's own


@pytest.mark.parametrize(
    "file", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")), ids=lambda f: f.stem
)
def test_issue_forms_have_what_github_needs(file: Path) -> None:
    form = read(file)
    if file.name == "config.yml":
        assert all({"name", "url", "about"} == set(link) for link in form["contact_links"])
        return
    assert {"name", "description", "body"} <= set(form)
    assert all("type" in part and "label" in part["attributes"] for part in form["body"])
    assert len({part["id"] for part in form["body"]}) == len(form["body"])
