"""Cached choices: a table per machine, in memory or in a file that JSON can read.

    predict("all_reduce", machine="dgx-h100", nbytes=1 << 20, table="choices.json")

A choice holds for the machine as it was described, and for the version of megatile that made it. What a file
says is checked before it is used: it names algorithms that are registered here, never code to import.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from megatile.collectives.algorithms import algorithms
from megatile.collectives.candidates import Candidate
from megatile.collectives.job import CollectiveError, Job
from megatile.core.errors import Place, did_you_mean
from megatile.core.files import parse_json, read_text, write_text
from megatile.core.version import __version__
from megatile.hda import HDA
from megatile.timing.transports import PROTOCOLS

Table = dict[str, Any] | str | Path
FORMAT = 2
"""Version of the file format."""
MAX_FILE_BYTES = 8 << 20
"""Bytes of a table that are read."""
_DIGITS = 12
"""So much of a machine's fingerprint stands in a key."""


class Choices:
    """The table for one question: ``find`` the choice, or ``keep`` one. Without a table both do nothing."""

    def __init__(self, table: Table | None, hda: HDA, job: Job, algorithm: str, **how: Any) -> None:
        self.key = choice_key(hda, job, algorithm, **how)
        self.machine = hda.name
        self.path = Path(table) if isinstance(table, (str, Path)) else None
        self.entries: dict[str, Any] | None = table if isinstance(table, dict) else None
        if self.path is not None:
            self.entries = self._of_this_machine(read_file(self.path))

    def _of_this_machine(self, entries: dict[str, Any]) -> dict[str, Any]:
        named = {key.split("/")[1] for key in entries if key.split("/")[0] == self.machine}
        if named and self.key.split("/")[1] not in named:
            warnings.warn(
                f"{self.path} has choices for another description of '{self.machine}': chosen anew",
                stacklevel=5,
            )
        return entries

    def find(self) -> Candidate | None:
        if self.entries is None or self.key not in self.entries:
            return None
        return read_entry(self.entries[self.key], Place(str(self.path or "table"), path=self.key))

    def keep(self, best: Candidate) -> None:
        if self.entries is None:
            return
        self.entries[self.key] = [best.algorithm, dict(best.options), best.protocol]
        if self.path is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # said when it was read
                others = read_file(self.path)  # what somebody else has added meanwhile
            write_file(self.path, {**others, self.key: self.entries[self.key]})


def choice_key(
    hda: HDA,
    job: Job,
    algorithm: str = "auto",
    *,
    among: Sequence[str] | None = None,
    launch: bool = True,
    protocol: str | None = None,
) -> str:
    """Return what a choice depends on: machine, ranks, operation, dtype, reduction, size, and what was
    allowed."""
    parts = (hda.name, hda.fingerprint()[:_DIGITS], job.scale, str(job.ranks), str(job.place))
    place = "in" if job.in_place else "out"
    allowed = "+".join(sorted(among)) if among is not None else "all"
    what = (job.operation, job.dtype, job.reduction, str(job.root), place, str(job.nbytes))
    return "/".join((*parts, *what, algorithm, allowed, protocol or "any", "launch" if launch else "graph"))


def read_entry(entry: Any, place: Place) -> Candidate:
    """Return the choice that an entry of a table says."""
    sound = isinstance(entry, (list, tuple)) and len(entry) == 3
    if not sound or not (isinstance(entry[0], str) and isinstance(entry[1], dict)):
        raise CollectiveError(
            f"{entry!r} is not a choice", place=place, advice="delete the table: it is made anew"
        )
    name, options, protocol = entry
    if name not in algorithms():
        advice = did_you_mean(name, algorithms(), what="algorithms")
        raise CollectiveError(f"there is no algorithm '{name}'", place=place, advice=advice)
    if protocol not in PROTOCOLS:
        advice = did_you_mean(str(protocol), PROTOCOLS)
        raise CollectiveError(f"there is no protocol {protocol!r}", place=place, advice=advice)
    return Candidate(name, tuple(sorted(options.items())), protocol)


def read_file(path: Path) -> dict[str, Any]:
    """Return the entries of a file; none if there is no such file yet, or another version wrote it."""
    place = Place(str(path))
    try:
        if not path.exists():
            return {}
        document = parse_json(read_text(path, MAX_FILE_BYTES, CollectiveError, "name another file"))
    except OSError as problem:
        raise CollectiveError(f"cannot read the table of choices: {problem.strerror}", place=place) from None
    except CollectiveError:
        raise
    except ValueError:
        raise CollectiveError(
            "not a table of choices (not JSON)", place=place, advice="name another file"
        ) from None
    entries = document.get("choices") if isinstance(document, dict) else None
    if not isinstance(entries, dict) or document.get("format") != FORMAT:
        raise CollectiveError("not a table of choices", place=place, advice="name another file")
    if document.get("version") != __version__:
        warnings.warn(
            f"{path} was made by megatile {document.get('version')}: its choices are made anew", stacklevel=6
        )
        return {}
    return entries


def write_file(path: Path, entries: dict[str, Any]) -> None:
    """Write all or nothing: readers find the old file or the new one."""
    document = {"format": FORMAT, "version": __version__, "choices": dict(sorted(entries.items()))}
    write_text(path, json.dumps(document, indent=1) + "\n", CollectiveError)
