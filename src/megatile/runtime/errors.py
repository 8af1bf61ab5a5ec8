"""What can go wrong on real processes."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from megatile.core.errors import MegatileError

LATE_SECONDS = 5.0
"""How much longer ranks wait for others than these may take: who is late says so first."""


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


class OneSidedError(LaunchError):
    """A command in which only one rank takes part, and that therefore cannot run between hosts."""


def how_ended(code: int | None) -> str:
    if code == -signal.SIGSTOP:
        return "was stopped by a signal (SIGSTOP)"
    if code is not None and code < 0:
        return f"ended by signal {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def named(word: str, numbers: Sequence[int]) -> str:
    """Return ``unit 3``, ``units 1, 2``; of many the first."""
    shown = ", ".join(map(str, numbers[:8])) + (", …" if len(numbers) > 8 else "")
    return f"{word}{'s' if len(numbers) > 1 else ''} {shown}"


def failure(
    word: str, reports: Mapping[int, Any], dead: Sequence[int], death: Callable[[int], str], of: str = ""
) -> LaunchError:
    """Return the error that names who is at fault: those that died, else those that failed by themselves."""
    guilty = list(dead) or [n for n, report in reports.items() if report["own"]] or sorted(reports)
    first, *rest = guilty
    reason = death(first) if first in dead else reports[first]["text"]
    more = f" (also {named(word, rest)})" if rest else ""
    return LaunchError(f"{word} {first}{of}: {reason}{more}", units=tuple(guilty))


def check_timeout(timeout: object) -> None:
    """Check that a timeout is a positive number of seconds."""
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout > 0:
        raise LaunchError(f"timeout={timeout!r}", advice="give seconds, more than 0")
