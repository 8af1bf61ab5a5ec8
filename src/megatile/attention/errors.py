"""Errors of sequence-parallel attention. Raised on every rank, or naming the rank at fault."""

from __future__ import annotations

from megatile.core.errors import MegatileError


class AttentionError(MegatileError, ValueError):
    """Arguments that cannot work: shapes, dtypes, masks or groups."""


class PeerError(MegatileError, RuntimeError):
    """Another rank died, or did not arrive within the timeout."""

    def __init__(self, message: str, *, ranks: tuple[int, ...] = (), advice: str | None = None):
        super().__init__(message, advice=advice)
        self.ranks = ranks


class MissingTorchError(MegatileError, ImportError):
    """torch is not installed."""
