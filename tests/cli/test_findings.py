"""Findings as SARIF and as lines of GitHub's logs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from megatile.cli.findings import Finding, github_line, sarif
from megatile.core.errors import MegatileError, Place

KERNEL = """
import numpy as np
import tilelang
import tilelang.language as T

@tilelang.jit
def copied(A):
    N = T.const("N")
    A: T.Tensor((N,), T.float32)
    B = T.empty((N,), T.float32)
    with T.Kernel(2, threads=32) as bx:
        s = T.alloc_shared((N,), T.float32)
        T.copy(A, s)
        T.copy(s, B)
    return B

print("the file's own words")
copied(np.arange(8, dtype="f4"))
"""


def test_signs_of_the_format_are_escaped() -> None:
    finding = Finding("error", "DataRaceError", "50% of\nit, so: far", "a,b:c.py", 3, 5)
    assert github_line(finding) == (
        "::error file=a%2Cb%3Ac.py,line=3,col=5,title=DataRaceError::50%25 of%0Ait, so: far"
    )


def test_files_are_uri_references_and_rules_are_described() -> None:
    """SARIF 2.1.0, 3.4.3 and 3.10.1; the texts of a rule are what GitHub requires."""
    found = [
        Finding("error", "B", "no", "a b/k #1.py", about="What B says."),
        Finding("warning", "A", "no", "/elsewhere/ä.py"),
    ]
    run = json.loads(sarif(found))["runs"][0]
    uris = [r["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for r in run["results"]]
    assert uris == ["a%20b/k%20%231.py", "file:///elsewhere/%C3%A4.py"]
    rules = run["tool"]["driver"]["rules"]
    assert [rules[r["ruleIndex"]]["id"] for r in run["results"]] == ["B", "A"]
    assert rules[1]["shortDescription"] == rules[1]["help"] == {"text": "What B says."}


def test_an_error_without_a_place_is_at_the_top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    inside, outside = tmp_path / "k" / "a.py", Path("/elsewhere/b.py")
    assert Finding.of(MegatileError("no"), inside).file == "k/a.py"
    found = Finding.of(MegatileError("no", place=Place(str(outside), 4), advice="yes"), inside)
    assert (found.file, found.line, found.message) == ("/elsewhere/b.py", 4, "no (try: yes)")
    assert json.loads(sarif([]))["runs"][0]["results"] == []


def test_a_race_in_a_file_is_a_result(megatile, tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "racy.py").write_text(KERNEL)
    done = megatile("check-kernel", "racy.py", "--format", "sarif")
    assert done.code == 1
    assert "the file's own words" not in done.out
    result = json.loads(done.out)["runs"][0]["results"][0]
    assert result["ruleId"] == "DataRaceError"
    place = result["locations"][0]["physicalLocation"]
    assert (place["artifactLocation"]["uri"], place["region"]["startLine"]) == ("racy.py", 14)
    line = megatile("check-kernel", "racy.py", "--format", "github").out
    assert line.startswith("::error file=racy.py,line=14,col=")
    (tmp_path / "right.py").write_text(KERNEL.replace("T.Kernel(2,", "T.Kernel(1,"))
    assert (
        json.loads(megatile("check-kernel", "right.py", "--format", "sarif").out)["runs"][0]["results"] == []
    )
    wrong = megatile("check-kernel", "racy.py", "--format", "sarf")
    assert (wrong.code, "did you mean 'sarif'" in wrong.err) == (1, True)


TRUNCATED = """
import numpy as np
import tilelang
import tilelang.language as T

@tilelang.jit
def copied(A):
    N = T.const("N")
    A: T.Tensor((N,), T.float32)
    B = T.empty((N,), T.float32)
    with T.Kernel(N // 32, threads=32) as bx:
        for i in T.Parallel(32):
            B[bx * 32 + i] = A[bx * 32 + i]
    return B

a = np.arange(40, dtype="f4")
assert (copied(a) == a).all(), "not equal"
"""


def test_warnings_stand_beside_the_error_of_a_file_that_fails(megatile, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cut.py").write_text(TRUNCATED)
    done = megatile("check-kernel", "cut.py", "--format", "github", "--as-is")
    assert done.code == 1
    lines = [line.partition(",col=")[0] for line in done.out.splitlines()]
    assert set(lines[:-1]) == {"::warning file=cut.py,line=13"}
    assert lines[-1] == "::error file=cut.py,line=17"
    (tmp_path / "cut.py").write_text("x = 1\n\ndef f(:\n")
    assert "line=3" in megatile("check-kernel", "cut.py", "--format", "github").out
