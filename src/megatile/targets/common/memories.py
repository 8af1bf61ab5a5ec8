"""Names of memories: texts for GPUs are written with the usual ones, whatever a machine file calls them."""

from __future__ import annotations

from dataclasses import replace

from megatile.core.errors import MegatileError
from megatile.hda import HDA, machine as find_machine
from megatile.ir import nodes as n
from megatile.ir.passes.driver import rewrite_nodes
from megatile.ir.program import Program

USUAL = {"l0": "registers", "l2": "hbm", "l1": "shared"}
"""By alias; where one memory has several aliases, the last of these."""


def with_usual_memories(program: Program, machine: str | HDA | None = None) -> Program:
    """The Program with ``registers``, ``shared`` and ``hbm`` as levels of its tiles:
    ``alloc(…, level="pad")`` → ``level="shared"``. It stays as it is if its machine is not known."""
    try:
        hda = machine if isinstance(machine, HDA) else find_machine(machine or program.machine)
        hda = hda if hda.name == program.machine else find_machine(program.machine)
        names = {hda.memory(alias).name: name for alias, name in USUAL.items()}
    except MegatileError:
        return program

    def renamed(node: n.Node) -> n.Node:
        if not isinstance(node, n.Alloc) or names.get(node.level, node.level) == node.level:
            return node
        return replace(node, level=names[node.level])

    body = rewrite_nodes(program.body, renamed)
    return program if body is program.body else replace(program, body=body)
