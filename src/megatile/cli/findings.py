"""What a check found, for other programs: SARIF (code scanning) and GitHub's lines in a log."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote
from warnings import WarningMessage

from megatile.core.errors import MegatileError, Place
from megatile.core.version import __version__

FORMATS = ("text", "sarif", "github")
SARIF = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


@dataclass(frozen=True)
class Finding:
    """An error or a warning, the rule that it breaks, and where."""

    level: str
    rule: str
    message: str
    file: str
    line: int = 1
    column: int = 1
    about: str = ""
    """What the rule says."""

    @classmethod
    def at(cls, place: Place | None, file: Path, level: str, rule: type, message: str) -> Finding:
        """Return a finding at a place, or at the top of the file that was checked."""
        about = (rule.__doc__ or rule.__name__).strip().split("\n")[0]
        if place is None or place.file is None:
            return cls(level, rule.__name__, message, _relative(str(file)), about=about)
        line, column = place.line or 1, place.column or 1
        return cls(level, rule.__name__, message, _relative(place.file), line, column, about)

    @classmethod
    def of(cls, error: MegatileError, file: Path) -> Finding:
        """Return the finding that an error is: its class is the rule."""
        message = error.message + (f" (try: {error.advice})" if error.advice else "")
        return cls.at(error.place, file, "error", type(error), message)

    @classmethod
    def remark(cls, remark: str, file: Path, rule: type) -> Finding:
        """Return the finding that a warning of a Program is."""
        return cls.at(getattr(remark, "place", None), file, "warning", rule, str(remark))

    @classmethod
    def warned(cls, noted: Iterable[WarningMessage], file: Path, rule: type) -> list[Finding]:
        """Return the findings among Python's warnings, each once."""
        messages = [one.message for one in noted if isinstance(one.message, Warning)]
        said = [one.args[0] for one in messages if isinstance(one, rule) and one.args]
        return [cls.remark(one, file, rule) for one in dict.fromkeys(said)]


def _relative(file: str) -> str:
    """Return the file as a checkout has it, where it lies in the current folder."""
    path = Path(file).resolve()
    here = Path.cwd()
    return (path.relative_to(here) if path.is_relative_to(here) else path).as_posix()


def written(findings: Sequence[Finding], form: str) -> str:
    """Return the findings as a text of one of `FORMATS`."""
    return sarif(findings) if form == "sarif" else "\n".join(map(github_line, findings))


def github_line(finding: Finding) -> str:
    """Return a workflow command of GitHub Actions, which shows the finding beside its line."""
    place = f"file={_escaped(finding.file, True)},line={finding.line},col={finding.column}"
    return f"::{finding.level} {place},title={finding.rule}::{_escaped(finding.message)}"


def _escaped(text: str, is_property: bool = False) -> str:
    pairs = [("%", "%25"), ("\r", "%0D"), ("\n", "%0A")] + (
        [(":", "%3A"), (",", "%2C")] if is_property else []
    )
    for sign, code in pairs:
        text = text.replace(sign, code)
    return text


def sarif(findings: Sequence[Finding]) -> str:
    """Return a SARIF 2.1.0 log with one run."""
    rules = {finding.rule: finding for finding in sorted(findings, key=lambda f: f.rule)}
    driver = {
        "name": "megatile",
        "version": __version__,
        "informationUri": "https://github.com/megatile/megatile",
        "rules": [_rule(rules[name]) for name in rules],
    }
    results = [_result(finding, list(rules).index(finding.rule)) for finding in findings]
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return json.dumps({"$schema": SARIF, "version": "2.1.0", "runs": [run]}, indent=2, ensure_ascii=False)


def _rule(finding: Finding) -> dict[str, Any]:
    """Return a rule with the three texts that GitHub's code scanning requires."""
    text = {"text": finding.about or finding.rule}
    return {"id": finding.rule, "shortDescription": text, "fullDescription": text, "help": text}


def _uri(file: str) -> str:
    """Return a file as a URI reference: relative as it is, absolute with the scheme ``file``."""
    return Path(file).as_uri() if Path(file).is_absolute() else quote(file)


def _result(finding: Finding, rule: int) -> dict[str, Any]:
    region = {"startLine": finding.line, "startColumn": finding.column}
    place = {"artifactLocation": {"uri": _uri(finding.file)}, "region": region}
    return {
        "ruleId": finding.rule,
        "ruleIndex": rule,
        "level": finding.level,
        "message": {"text": finding.message},
        "locations": [{"physicalLocation": place}],
    }
