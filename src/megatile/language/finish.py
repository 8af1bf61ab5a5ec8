"""The end of building: a Program from its draft, checked."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from typing import Any

from megatile.core.dtypes import itemsize
from megatile.core.quantities import format_bytes
from megatile.ir import nodes as n
from megatile.ir.layout import has_copies
from megatile.ir.passes.driver import rewrite_nodes
from megatile.ir.passes.lint import find_mistakes, find_warnings
from megatile.ir.program import Launch, Param, Program, placements
from megatile.ir.verify import verify
from megatile.language.draft import Draft
from megatile.language.errors import ProgramError
from megatile.language.launch import with_slots


def finish(draft: Draft, params: tuple[Param, ...]) -> Program:
    """The Program: flags marked, memory counted, structure and known mistakes checked."""
    if draft.launch is None:
        raise ProgramError(
            f"'{draft.name}' has no launch",
            advice="put its statements under 'with T.Kernel(...):' or an instance",
        )
    flags = {t.storage.name for t in draft.tiles.values() if t.storage.flag}
    body = rewrite_nodes(tuple(draft.bodies[0].nodes), lambda node: _mark(node, flags))
    program = Program(draft.name, params, draft.launch, body, draft.machine.name, tuple(draft.symbols))
    verify(program)
    for message, span, advice in find_mistakes(program):
        raise ProgramError(message, place=span.place() if span else None, advice=advice)
    launch = with_slots(draft.launch, draft.instance, _checked_memory(draft, program))
    warnings = tuple(_sentence(*w) for w in find_warnings(program))
    return replace(program, launch=launch, warnings=warnings)


def _mark(node: n.Node, flags: set[str]) -> n.Node:
    return replace(node, flag=True) if isinstance(node, n.Alloc) and node.name in flags else node


def _sentence(message: str, span: n.Span | None, advice: str) -> str:
    where = f"{span.file}:{span.line}: " if span else ""
    return f"{where}{message} (try: {advice})"


def _checked_memory(draft: Draft, program: Program) -> dict[str, int]:
    """Bytes that one dispatched instance uses of each layer; tiles of larger scales are checked here."""
    used: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    last: dict[tuple[str, str], n.Alloc] = {}
    copies = _copies(program)
    launch, dispatch = program.launch, program.launch.dispatch
    for node in n.walk(program.body):
        if not isinstance(node, n.Alloc):
            continue
        size = math.prod(node.shape) * itemsize(node.dtype) * copies.get(node.name, 1)
        home = node.scale
        if launch.depth(home) > launch.depth(dispatch):
            size *= launch.count(home, dispatch)
            home = dispatch
        used[home][node.level] += size
        last[home, node.level] = node
        _check_layer(draft, home, node, used[home][node.level], launch)
    return dict(used[dispatch])


def _copies(program: Program) -> dict[str, int]:
    scales = {node.name: node.scale for node in n.walk(program.body) if isinstance(node, n.Alloc)}
    result = {}
    for name, layouts in placements(program).items():
        spread = [s for s, layout in layouts.items() if has_copies(layout)]
        if name in scales and spread:
            result[name] = max(program.launch.count(s, scales[name]) for s in spread)
    return result


def _check_layer(draft: Draft, scale: str, node: n.Alloc, asked: int, launch: Launch) -> None:
    layer = draft.machine.memory(node.level)
    room = layer.available * max(_units_of_layer(draft.machine, layer, scale), 1)
    if asked > room:
        raise ProgramError(
            f"the tiles of one {scale} need {format_bytes(asked)} of '{layer.name}', "
            f"but there are {format_bytes(room)} (last: '{node.name}', {node.dtype}{list(node.shape)})",
            place=node.span.place() if node.span else None,
            advice="use smaller tiles, a smaller dtype, or another level",
        )


def _units_of_layer(machine: Any, layer: Any, scale: str) -> int:
    """Memories of a layer inside one hardware unit of a scale; 1 if the layer is larger than the unit."""
    inside, units = machine.level(layer.level).total, machine.count(scale)
    return int(inside // units) if inside >= units else 1
