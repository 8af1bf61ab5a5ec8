"""The end of building: a Program from its draft, checked."""

from __future__ import annotations

from dataclasses import replace

from megatile.ir import nodes as n
from megatile.ir.passes.driver import rewrite_nodes
from megatile.ir.passes.lint import find_mistakes, find_warnings
from megatile.ir.program import Param, Program
from megatile.ir.verify import verify
from megatile.language.capacity import checked_memory, shallow_pipelines
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
    launch = with_slots(draft.launch, draft.instance, checked_memory(draft.machine, program))
    findings = [*find_warnings(program), *shallow_pipelines(draft.machine, program)]
    warnings = tuple(_sentence(*finding) for finding in findings)
    return replace(program, launch=launch, warnings=warnings)


def _mark(node: n.Node, flags: set[str]) -> n.Node:
    return replace(node, flag=True) if isinstance(node, n.Alloc) and node.name in flags else node


def _sentence(message: str, span: n.Span | None, advice: str) -> str:
    where = f"{span.file}:{span.line}: " if span else ""
    return f"{where}{message} (try: {advice})"
