"""What cannot be compiled."""

from __future__ import annotations

from megatile.core.errors import MegatileError


class CompileError(MegatileError, ValueError):
    """A program, or a part of one, that this target cannot compile; or no compiler."""
