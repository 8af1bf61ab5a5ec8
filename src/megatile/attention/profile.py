"""Time of the parts of a run: wall clock on CPUs, events of the current stream on GPUs."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch


class Profile:
    """Seconds by kind of work. Communication counts what starting and awaiting it took."""

    def __init__(self, device: torch.device):
        self._gpu = device.type == "cuda"
        self._seconds: dict[str, float] = defaultdict(float)
        self._events: list[tuple[str, Any, Any]] = []

    @contextmanager
    def span(self, kind: str) -> Iterator[None]:
        """Count the time inside as ``kind``."""
        if self._gpu:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            yield
            end.record()
            self._events.append((kind, begin, end))
        else:
            start = time.perf_counter()
            yield
            self._seconds[kind] += time.perf_counter() - start

    def seconds(self, kind: str) -> float:
        """Return all time counted as ``kind``; waits for the GPU."""
        if self._events:
            torch.cuda.synchronize()
            for name, begin, end in self._events:
                self._seconds[name] += begin.elapsed_time(end) / 1000
            self._events.clear()
        return self._seconds[kind]


def span(profile: Profile | None, kind: str) -> AbstractContextManager[None]:
    """Count the time inside where there is a profile."""
    return _NOTHING if profile is None else profile.span(kind)


_NOTHING = nullcontext()
