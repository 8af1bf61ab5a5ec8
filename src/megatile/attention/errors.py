"""Errors of sequence-parallel attention. Raised on every rank, or naming the rank at fault."""

from __future__ import annotations

from megatile.core.errors import MegatileError


class AttentionError(MegatileError, ValueError):
    """Arguments that cannot work: shapes, dtypes, masks or groups."""
