"""The machines that come with the package, by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from megatile.core.arguments import no_none
from megatile.core.cached import cached
from megatile.core.errors import MachineError, MegatileError, did_you_mean
from megatile.core.files import exists
from megatile.hda.document import read_document
from megatile.hda.hda import HDA
from megatile.hda.load import FOLDER, find, machine_names, other_form, resolve, schema_problems
from megatile.hda.model import KernelFigures
from megatile.hda.probe import probed

__all__ = ["assumed_kernel", "divided", "library", "machine", "machine_names", "problems"]


@no_none
def problems(path: str | Path, *, trust: bool = False) -> list[MegatileError]:
    """Return everything found wrong with a machine file; an empty list means it loads."""
    try:
        document = resolve(read_document(path), {}, trust)
        found: list[MegatileError] = [] if other_form(document.data) else list(schema_problems(document))
        if not found:
            HDA.from_yaml(path, trust=trust)
    except MegatileError as problem:
        return [problem]
    return found


@cached()
def _shipped(name: str, values: tuple[tuple[str, int | str], ...]) -> HDA:
    """Return a shipped machine as it is; machines never change, so one is enough."""
    given: dict[str, Any] = dict(values)
    return HDA.from_yaml(FOLDER / f"{name}.yaml", **given)


def machine(name_or_path: str | Path | HDA, *, trust: bool = False, **overrides: Any) -> HDA:
    """Return a machine by name or file, with parameters or single values set.

    ``trust`` lets a file extend files outside its folder.

    >>> machine("h100-cluster", nodes=4).count("gpu")
    32
    """
    if isinstance(name_or_path, HDA):
        return HDA.from_dict(name_or_path.to_dict(), **overrides) if overrides else name_or_path
    name = str(name_or_path)
    shipped = find(name)
    if shipped is not None:
        if overrides:
            return HDA.from_yaml(shipped, **{**probed(name), **overrides})
        return _shipped(name, tuple(probed(name).items()))
    path = Path(name)
    if path.suffix not in (".yaml", ".yml") and not exists(path):
        raise MachineError(
            f"there is no machine '{name}'", advice=did_you_mean(name, machine_names(), what="machines")
        )
    return HDA.from_yaml(path, trust=trust, **overrides)


@cached()
def assumed_kernel(name: str) -> KernelFigures:
    """Return the figures of a kernel for machines whose files have none (``hda/assumed.yaml``)."""
    found = HDA.from_yaml(FOLDER.parent / "assumed.yaml").kernel(name)
    assert found is not None, name
    return found


@cached()
def library(name: str) -> dict[str, Any]:
    """Return a library's own tables and measured host times (``hda/libraries``); not to be changed."""
    found: dict[str, Any] = read_document(FOLDER.parent / "libraries" / f"{name}.yaml").data
    return found


@cached()
@no_none
def divided(hda: HDA, devices: int) -> HDA:
    """Return the machine with that many devices, where their number is for a program to choose (``devices``
    is a parameter, as of ``cpu``): they share its cores. Other machines have the devices they have."""
    if devices <= hda.count("device") or "devices" not in hda.parameters:
        return hda
    groups: dict[str, Any] = {
        "hw_spec.pe_groups.host.num_units": devices,
        "hw_spec.pe_groups.socket.num_units": max(1, hda.count("block") // devices),
    }
    return machine(hda, **groups)
