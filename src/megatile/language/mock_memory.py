"""The memory of a rank in a mock run."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any


class Memory:
    """Bytes by address: the tensors' ranges, which all ranks see, and pages of a rank's own for anything
    else.
    """

    PAGE = 4096

    def __init__(self, segments: list[tuple[int, Array]]):
        self.segments = segments
        self.pages: dict[tuple[str, int], Array] = {}

    def locate(self, address: int, nbytes: int) -> Array | None:
        for base, data in self.segments:
            if base <= address and address + nbytes <= base + len(data):
                return data[address - base : address - base + nbytes]
        return None

    def read(self, space: str, address: int, nbytes: int) -> Array:
        found = self.locate(address, nbytes) if space == "hbm" else None
        if found is not None:
            return found.copy()
        return np.asarray([self._byte(space, a) for a in range(address, address + nbytes)], dtype=np.uint8)

    def _byte(self, space: str, address: int) -> int:
        page = self.pages.get((space, address // self.PAGE))
        return 0 if page is None else int(page[address % self.PAGE])

    def write(self, space: str, address: int, data: Array) -> None:
        found = self.locate(address, len(data)) if space == "hbm" else None
        if found is not None:
            found[:] = data
            return
        for at, byte in enumerate(data):
            key = (space, (address + at) // self.PAGE)
            page = self.pages.setdefault(key, np.zeros(self.PAGE, dtype=np.uint8))
            page[(address + at) % self.PAGE] = byte
