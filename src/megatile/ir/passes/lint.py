"""Mistakes that show in the text of a Program. Filled by rules; each yields (message, span, advice)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from megatile.ir.nodes import Span
from megatile.ir.program import Program

Finding = tuple[str, "Span | None", str]
Rule = Callable[[Program], Iterator[Finding]]
MISTAKES: list[Rule] = []
WARNINGS: list[Rule] = []


def find_mistakes(program: Program) -> Iterator[Finding]:
    for rule in MISTAKES:
        yield from rule(program)


def find_warnings(program: Program) -> Iterator[Finding]:
    for rule in WARNINGS:
        yield from rule(program)
