"""Computations of a process that run beside its messages."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor

import torch

MAX_COMPUTATIONS_AHEAD = 32
"""Computations that may wait their turn: what they hold must fit in memory."""


class OverlappedCompute:
    """Compute beside communication: commands of one unit that run in order on a thread of their own.

    The thread that follows the stream hands computations over and goes on to its messages. Before it sends a
    tile, or overwrites one, it waits for the computations that wrote it, or that still read it.
    """

    def __init__(self) -> None:
        threads = torch.get_num_threads()
        self._thread = ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(threads,))
        self._running: deque[Future[None]] = deque()
        self._wrote: dict[str, Future[None]] = {}
        self._touched: dict[str, Future[None]] = {}

    def start(self, work: Callable[[], None], reads: Iterable[str], writes: Iterable[str]) -> None:
        """Let ``work`` follow all that was started before."""
        if len(self._running) >= MAX_COMPUTATIONS_AHEAD:
            self._running.popleft().result()
        future = self._thread.submit(work)
        self._running.append(future)
        for tile in writes:
            self._wrote[tile] = self._touched[tile] = future
        for tile in reads:
            self._touched[tile] = future

    def written(self, tile: str) -> None:
        """Wait until nothing writes the tile any more."""
        if tile in self._wrote:
            self._wrote.pop(tile).result()

    def untouched(self, *tiles: str) -> None:
        """Wait until nothing reads or writes the tiles any more."""
        for tile in tiles:
            if tile in self._touched:
                self._touched.pop(tile).result()

    def finish(self) -> None:
        """Wait for everything; an error of a computation is raised here, or earlier."""
        while self._running:
            self._running.popleft().result()

    def close(self) -> None:
        self._thread.shutdown(wait=True)
