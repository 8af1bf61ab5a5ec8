"""The time of a result, in the units that people ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING


class HasTime:
    """A result that has ``time_ps``; also ``time_ns`` and ``time_us``."""

    if TYPE_CHECKING:

        @property
        def time_ps(self) -> int: ...

    @property
    def time_ns(self) -> float:
        return self.time_ps / 1e3

    @property
    def time_us(self) -> float:
        return self.time_ps / 1e6
