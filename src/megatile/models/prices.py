"""Times of a step's operators by the kernel rules of ``timing/``, cached per machine and library."""

from __future__ import annotations

from typing import Any

from megatile.core.cached import cached_in_owner
from megatile.hda import HDA
from megatile.models.operators import Operator
from megatile.timing.database import predict_kernel
from megatile.timing.formulas import KernelTime

MAX_CACHED = 200_000
"""Times kept per machine and library; then the cache begins anew."""
_STORED = {"fp8": "f8e4m3", "fp8_block": "f8e4m3", "mxfp4": "f8e4m3", "fp4": "f8e4m3", "int4": "f8e4m3"}


class Prices:
    """The times of kernels of one library on one machine, in microseconds."""

    def __init__(self, hda: HDA, library: str):
        self.hda, self.library = hda, library
        self._known: dict[Any, float] = {}

    def time_us(self, operator: Operator) -> float:
        """Return the microseconds of one execution of an operator."""
        key = operator[3:]
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= MAX_CACHED:
                self._known.clear()
            found = self._known[key] = self.explain(operator).time_us
        return found

    def explain(self, operator: Operator) -> KernelTime:
        """Return the time with its origin and error bar."""
        extents: dict[str, Any] = dict(operator.extents)
        if operator.kernel == "elementwise":
            from megatile.timing.machine_timing import Origin

            us = 2.0 * extents["kernels"] + extents["bytes"] / 2.6e12 * 1e6
            return KernelTime(us, Origin("assumed", "2 us and bytes over hbm"))
        if operator.kernel == "mla":
            extents = {k: extents[k] for k in ("batch", "queries", "context", "heads")}
            decode = extents["queries"] == 1 and extents["context"] > 0
            extents |= {"kv_heads": 1, "head_dim": 288} if decode else {"kv_heads": 0, "head_dim": 160}
            return predict_kernel("attention", machine=self.hda, dtype="bf16", **extents)
        extents.pop("skew", None)
        kind = _STORED.get(operator.dtype, operator.dtype)
        return predict_kernel(operator.kernel, machine=self.hda, dtype=kind, **extents)


@cached_in_owner
def prices(hda: HDA, library: str) -> Prices:
    """Return the prices of a library's kernels on a machine, the same object every time."""
    return Prices(hda, library)
