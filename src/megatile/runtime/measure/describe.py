"""Measured figures as a machine file that extends the shipped one of this computer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from megatile.hda import HDA
from megatile.hda.document import parse_document
from megatile.hda.probe import probed
from megatile.runtime.measure.figures import Figure


def described(name: str, figures: Sequence[Figure]) -> str:
    """The machine file: what the operating system says as parameters, what was measured with its source."""
    parts: dict[str, Any] = {}
    others = []
    for figure in figures:
        if "." in figure.name:
            _place(parts, figure)
        else:
            others.append(f"# {figure.name}: {figure.shown}, {figure.source}")
    lines = [
        "# This computer as 'megatile measure' found it. The rest is as in the shipped machine 'cpu'.",
        *others,
        yaml.safe_dump(
            {"name": name, "extends": "cpu", "description": "this computer, measured"}, sort_keys=False
        ),
        yaml.safe_dump({"parameters": probed("cpu")}, default_flow_style=None, width=120, sort_keys=False),
        yaml.safe_dump(parts, default_flow_style=False, sort_keys=False, width=160, allow_unicode=True),
    ]
    return "\n".join(lines)


def _place(parts: dict[str, Any], figure: Figure) -> None:
    """``memory.ram.bandwidth`` into the member ``ram`` of ``memory``, with its source."""
    section, *path = figure.name.split(".")
    members = parts.setdefault(section, {} if section == "control" else [])
    if section == "control":
        members = members.setdefault(path.pop(0), [])
    name, key, *dtype = path
    member = next((m for m in members if m["name"] == name), None)
    if member is None:
        members.append(member := {"name": name})
    source = member.pop("source", {})
    if dtype:
        member.setdefault(key, {})[dtype[0]] = figure.text
        said = source.get(key, "measured: ")
        source[key] = f"{said}{', ' * (key in source)}{dtype[0]} ± {100 * figure.error:.1f} % ({figure.how})"
    else:
        member[key], source[key] = figure.text, figure.source
    member["source"] = source


def machine_of(text: str) -> HDA:
    return HDA.from_document(parse_document(text), {})
