"""What cannot be lowered, and why."""

from __future__ import annotations

from megatile.core.errors import MegatileError
from megatile.ir import nodes as n


class LoweringError(MegatileError, NotImplementedError):
    """A statement that has no form in a Plan (yet); ``mt.run`` still runs the program."""


def cannot(what: str, node: n.Node | None = None) -> LoweringError:
    place = node.place if node is not None else None
    return LoweringError(f"{what} cannot be lowered to a Plan yet", place=place, advice="mt.run runs it")
