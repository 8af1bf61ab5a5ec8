"""Names of memories and scales: texts for GPUs are written with the usual ones, whatever a machine file calls
them."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

from megatile.core.errors import MegatileError
from megatile.hda import HDA, machine as find_machine
from megatile.hda.model import STANDARD_SCALES
from megatile.ir import nodes as n
from megatile.ir.launch import LaunchScale
from megatile.ir.passes.driver import rewrite_nodes
from megatile.ir.program import Program

USUAL = {"l0": "registers", "l2": "hbm", "l1": "shared"}
"""By alias; where one memory has several aliases, the last of these."""
SCALE_FIELDS = frozenset({"scale", "within", "dispatch", "host", "device_scale"})
"""Fields of Programs that hold the name of a scale."""


def with_usual_memories(program: Program, machine: str | HDA | None = None) -> Program:
    """The Program with ``registers``, ``shared`` and ``hbm`` as levels of its tiles:
    ``alloc(…, level="pad")`` → ``level="shared"``. It stays as it is if its machine is not known."""
    try:
        hda = _machine_of(program, machine)
        names = {hda.memory(alias).name: name for alias, name in USUAL.items()}
    except MegatileError:
        return program

    def renamed(node: n.Node) -> n.Node:
        if not isinstance(node, n.Alloc) or names.get(node.level, node.level) == node.level:
            return node
        return replace(node, level=names[node.level])

    body = rewrite_nodes(program.body, renamed)
    return program if body is program.body else replace(program, body=body)


def with_usual_scales(program: Program, machine: str | HDA | None = None) -> Program:
    """The Program with ``device``, ``cluster``, ``warpgroup`` … as scales: ``scale("gpu")`` →
    ``scale("device")``. It stays as it is if its machine is not known, or names them so."""
    try:
        hda = _machine_of(program, machine)
        usual = {hda.scale(name).name: name for name in STANDARD_SCALES}
    except MegatileError:
        return program
    names = {name: word for name, word in usual.items() if name != word}
    return _renamed(program, names) if names else program


def _machine_of(program: Program, machine: str | HDA | None) -> HDA:
    hda = machine if isinstance(machine, HDA) else find_machine(machine or program.machine)
    return hda if hda.name == program.machine else find_machine(program.machine)


def _renamed(value: Any, names: dict[str, str]) -> Any:
    """Return a part of a Program with other names of scales; itself where it has none of them."""
    if isinstance(value, tuple):
        parts = tuple(_renamed(one, names) for one in value)
        return value if all(a is b for a, b in zip(parts, value, strict=True)) else parts
    if not is_dataclass(value) or isinstance(value, type):
        return value
    new = {}
    for field in fields(value):
        if field.name in ("span", "choice"):
            continue
        old = getattr(value, field.name)
        if field.name in SCALE_FIELDS and isinstance(old, str):
            changed: Any = names.get(old, old)
        elif field.name == "name" and isinstance(value, LaunchScale):
            changed = names.get(old, old)
        elif field.name == "home" and old is not None:
            changed = (old[0], names.get(old[1], old[1]))
        else:
            changed = _renamed(old, names)
        if changed is not old:
            new[field.name] = changed
    return replace(value, **new) if new else value
