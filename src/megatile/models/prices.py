"""Times of a step's operators by the kernel rules of ``timing/``, cached per machine and library."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from megatile.core.cached import cached_in_owner
from megatile.hda import HDA
from megatile.models.operators import Operator
from megatile.timing.formulas import KernelTime
from megatile.timing.library_commands import kernel_time

MAX_CACHED = 200_000
"""Times kept per machine and library; then the cache begins anew."""


class Prices:
    """The times of kernels of one library on one machine, in microseconds."""

    def __init__(self, hda: HDA, library: str):
        self.hda, self.library = hda, library
        self._known: dict[Any, float] = {}

    def time_us(self, operator: Operator) -> float:
        """Return the microseconds of one execution of an operator, in whole picoseconds."""
        key = operator[3:7]
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= MAX_CACHED:
                self._known.clear()
            found = self._known[key] = max(1, round(self.explain(operator).time_us * 1e6)) / 1e6
        return found

    @cached_property
    def memory_bandwidth(self) -> float:
        """Bytes per second that a device's memory reaches."""
        level = self.hda.level(self.hda.scale("device").level).name
        return max(m.effective_bandwidth for m in self.hda.memories if m.level == level and not m.cache)

    def explain(self, operator: Operator) -> KernelTime:
        """Return the time with its origin and error bar."""
        o = operator
        return kernel_time(self.hda, self.library, o.kernel, o.dtype, o.kv_dtype, dict(o.extents))


@cached_in_owner
def prices(hda: HDA, library: str) -> Prices:
    """Return the prices of a library's kernels on a machine, the same object every time."""
    return Prices(hda, library)
