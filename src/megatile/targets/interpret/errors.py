"""What the interpreter refuses, one class per check."""

from __future__ import annotations

from megatile.core.errors import MegatileError


class RunError(MegatileError, RuntimeError):
    """A program that went wrong while running."""


class DataRaceError(RunError):
    """Two units touch the same element, one writes, and nothing orders them."""


class UninitialisedReadError(RunError):
    """An element is read that was never written."""


class DeadlockError(RunError):
    """Units wait and nothing can proceed, or a collective is not reached by all."""


class OutOfBoundsError(RunError):
    """An element outside a tensor or tile."""


class RemoteAccessError(RunError):
    """A unit touches memory of another device as if it were its own."""


class ReplicaMismatchError(RunError):
    """Copies that must agree do not."""


class PartialError(RunError):
    """Terms of a sum are read as if they were the sum."""


class DependenceError(RunError):
    """Iterations of T.Parallel that depend on each other."""


class StaleSignalError(RunError):
    """A wait met by a signal of an earlier launch."""


class DeviceAssertionError(RunError):
    """T.device_assert failed."""


class ArgumentError(RunError):
    """Arrays that do not fit the program's parameters."""
