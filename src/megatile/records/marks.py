"""Marks of what becomes machine code, and what machine code does otherwise than Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from megatile.records.rows import Row

F = TypeVar("F", bound=Callable[..., object])


def jit(function: F) -> F:
    """Marks what is translated: integers and rows, ``s`` is the arena."""
    return function


def inlined(function: F) -> F:
    """Marks what becomes part of its callers."""
    return function


def apart(function: F) -> F:
    """Marks what does not, however often that would seem worth while."""
    return function


@apart
def call_python(s: Row) -> int:
    """Call the function that answers `asked`: as machine code, by the pointer ``callback``."""
    return 0


@inlined
def prefetch(s: Row, row: Row, field: int) -> int:
    """Say that a field will be needed soon: as machine code, this brings it nearer to the processor."""
    return 0
