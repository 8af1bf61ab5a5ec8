"""What can go wrong on real processes."""

from __future__ import annotations

from typing import Any

from megatile.core.errors import MegatileError


class LaunchError(MegatileError, RuntimeError):
    """A launch that failed. ``units`` are the units at fault, where they are known."""

    def __init__(self, message: str, *, units: tuple[int, ...] = (), **options: Any):
        super().__init__(message, **options)
        self.units = units


class PeerError(MegatileError, RuntimeError):
    """Another rank died, or did not arrive within the timeout. ``ranks`` are those at fault, where known."""

    def __init__(self, message: str, *, ranks: tuple[int, ...] = (), advice: str | None = None):
        super().__init__(message, advice=advice)
        self.ranks = ranks


class MissingTorchError(MegatileError, ImportError):
    """torch is not installed."""


class NoTorchRuleError(LaunchError):
    """A command that has no meaning on separate processes, or an operation without a torch rule."""


def check_timeout(timeout: object) -> None:
    """Seconds, more than none."""
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout > 0:
        raise LaunchError(f"timeout={timeout!r}", advice="give seconds, more than 0")
