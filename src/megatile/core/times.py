"""The time of a result, in the units that people ask for, and its text in a notebook."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING


class Shown:
    """A result whose text is what a notebook shows of it."""

    def _repr_html_(self) -> str:
        return f"<pre>{escape(repr(self))}</pre>"


class HasTime(Shown):
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
