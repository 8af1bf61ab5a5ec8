"""Errors of kernels."""

from __future__ import annotations

from megatile.core.errors import MegatileError


class ProgramError(MegatileError, ValueError):
    """A kernel that has no meaning; found while building."""


class ProgramWarning(UserWarning):
    """A kernel that has a meaning, though hardly the intended one."""
