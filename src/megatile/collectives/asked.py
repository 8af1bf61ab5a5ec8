"""What a user asks of ``collective`` and ``predict``: read, and refused where it makes no sense."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from megatile.collectives.algorithms import find_algorithm
from megatile.collectives.job import CollectiveError
from megatile.core.errors import did_you_mean
from megatile.core.quantities import quantity, whole
from megatile.hda import HDA, machine as find_machine
from megatile.timing.library import PATHS

FIELDS = ("reduction", "root", "peer", "in_place", "memory", "slot_memory")
"""Arguments that describe the job, besides sizes and ranks."""


def read_bytes(nbytes: Any) -> int:
    """A size in bytes: a whole number, or text such as ``1 MiB``."""
    found = round(quantity(nbytes, "bytes").value) if isinstance(nbytes, str) else whole(nbytes)
    if found is None or found < 0:
        raise CollectiveError(f"{nbytes!r} is not a size in bytes", advice="use a whole number, or '1 MiB'")
    return found


def read_machine(machine: HDA | str) -> HDA:
    if not isinstance(machine, (HDA, str)):
        raise CollectiveError(
            f"a {type(machine).__name__} is not a machine", advice="give a name such as 'dgx-h100', or an HDA"
        )
    return find_machine(machine) if isinstance(machine, str) else machine


def check_fields(machine: HDA, fields: Mapping[str, Any]) -> None:
    """Arguments that describe the job."""
    for name in fields:
        if name not in FIELDS:
            advice = did_you_mean(name, FIELDS, what="arguments")
            raise CollectiveError(f"a collective has no argument '{name}'", advice=advice)
    for name in ("memory", "slot_memory"):
        if fields.get(name) is not None:
            machine.memory(fields[name])


def check_choice(algorithm: Any, path: str | None, settings: Any, among: Any, table: Any) -> None:
    """Arguments that say how, not what."""
    if not isinstance(algorithm, str):
        raise CollectiveError(f"{algorithm!r} is not an algorithm", advice="use 'auto', 'ring', …")
    if path is not None and path not in PATHS:
        raise CollectiveError(
            f"there is no path '{path}'", advice=did_you_mean(str(path), PATHS, what="paths")
        )
    if settings and (algorithm == "auto" or not isinstance(settings, Mapping)):
        raise CollectiveError(
            "settings are the options of one algorithm",
            advice='name it: algorithm="ring", settings={"chunks": 4}',
        )
    if among is not None and (isinstance(among, str) or not isinstance(among, Sequence) or not among):
        raise CollectiveError(
            f"{among!r} does not say which algorithms", advice='give a list such as ["ring", "tree"]'
        )
    for name in among or ():
        find_algorithm(name)
    if table is not None and not isinstance(table, (dict, str, Path)):
        raise CollectiveError(
            f"a {type(table).__name__} is not a table of choices", advice="give a dict, or a file's name"
        )
