"""A board: numbers that ranks on one computer show each other in memory, without a message.

Every rank has a file of one page, which the others map. It writes a number there together with how many it
has shown before; the others wait until they see that many. Each rank keeps its file locked, and the system
frees the lock when the process ends: so those that wait learn of it. The names are removed as soon as all
ranks have mapped the files.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any
from weakref import finalize

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

MAX_RANKS = 64
"""Ranks that keep a board: each has a file of every other open."""
BITS = 48
"""Of a number; the other 16 of a word count what was shown."""
_SPINS = 60
"""Looks at a rank's word before a process sleeps between them."""
_SLEEP, _LONG_SLEEP = 30e-6, 1e-3
_LOOK_AFTER = 0.05
"""Seconds between two looks whether a rank that is awaited still runs."""
Exchange = Callable[[dict[str, Any]], Sequence[dict[str, Any]]]


class Board:
    """What the ranks of a group show. ``files``: by rank, open; the own one is locked."""

    def __init__(self, rank: int, files: list[int]):
        self.rank, self._files = rank, files
        maps = [mmap.mmap(file, mmap.PAGESIZE) for file in files]
        self._words = [memoryview(page).cast("Q") for page in maps]
        self._count = 0
        finalize(self, _close, files)

    def show(self, number: int) -> Shown:
        """Show a number of at most 48 bits; the others have to show as many numbers as this rank does."""
        self._count += 1
        count, slot = self._count & 0xFFFF, self._count & 1
        word = count << BITS | number
        self._words[self.rank][slot] = word
        return Shown(self, word, slot)

    def word(self, rank: int, slot: int) -> int:
        # A rank is at most one number ahead: it goes on when it has seen this one's. So two slots suffice.
        return self._words[rank][slot]

    @property
    def ranks(self) -> range:
        return range(len(self._words))

    def ended(self, rank: int) -> bool:
        """Return whether a rank's process has ended."""
        file = self._files[rank]
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        fcntl.lockf(file, fcntl.LOCK_UN)
        return True


class Shown:
    """A number that this rank shows; ``wait`` until all others show theirs. Like torch's ``Work``."""

    def __init__(self, board: Board, word: int, slot: int):
        self._board, self._word, self._slot = board, word, slot

    def same(self) -> bool:
        """Return whether all show the same number now; those not seen yet do not."""
        word, slot = self._board.word, self._slot
        return all(word(rank, slot) == self._word for rank in self._board.ranks)

    def wait(self, timeout: timedelta | None = None) -> None:
        end = float("inf") if timeout is None else time.monotonic() + timeout.total_seconds()
        for rank in self._board.ranks:
            self._wait_for(rank, end)

    def _wait_for(self, rank: int, end: float) -> None:
        looks, next_look = 0, time.monotonic() + _LOOK_AFTER
        while not self._has_shown(rank):
            looks += 1
            if looks < _SPINS:
                os.sched_yield()
                continue
            time.sleep(_SLEEP if looks < 10 * _SPINS else _LONG_SLEEP)
            now = time.monotonic()
            if now > end:
                raise RuntimeError("timed out: a rank did not show its number")
            if now > next_look:
                next_look = now + _LOOK_AFTER
                if self._board.ended(rank) and not self._has_shown(rank):
                    raise RuntimeError("a rank has ended")

    def _has_shown(self, rank: int) -> bool:
        return self._board.word(rank, self._slot) >> BITS == self._word >> BITS


def make_board(rank: int, ranks: int, exchange: Exchange) -> Board | None:
    """Return the board of a group, or None on all ranks if they do not share the memory of one computer.

    ``exchange`` sends a record to all ranks and returns theirs; all ranks have to call this together.
    """
    if not 1 < ranks <= MAX_RANKS:
        return None
    path, own = _own_file()
    try:
        records = exchange({"computer": _computer(), "process": os.getpid(), "board": path})
        files = _opened(rank, own, records)
        agreed = all(record["open"] for record in exchange({"open": files is not None}))
    finally:
        if path is not None:
            Path(path).unlink(missing_ok=True)
    if files is None or not agreed:
        _close(files or ([] if own is None else [own]))
        return None
    return Board(rank, files)


def _own_file() -> tuple[str | None, int | None]:
    """The path and descriptor of a new, locked file of one page of zeros; None where there can be none."""
    if fcntl is None or not hasattr(os, "sched_yield"):
        return None, None
    folder = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    try:
        file, path = tempfile.mkstemp(prefix="megatile-board-", dir=folder)
    except OSError:
        return None, None
    try:
        os.posix_fallocate(file, 0, mmap.PAGESIZE)  # a full disk is noticed here, not when it is written to
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        Path(path).unlink(missing_ok=True)
        return None, None
    return path, file


def _opened(rank: int, own: int | None, records: Sequence[dict[str, Any]]) -> list[int] | None:
    """The files of all ranks; None if one of them cannot be opened here."""
    if own is None or any(record["computer"] != records[rank]["computer"] for record in records):
        return None
    if len({record["process"] for record in records}) < len(records):
        return None  # locks are a process's: of threads that are ranks nobody would learn that one has ended
    files: list[int] = []
    for peer, record in enumerate(records):
        try:
            files.append(own if peer == rank else os.open(record["board"], os.O_RDWR | os.O_CLOEXEC))
        except (OSError, TypeError):
            _close([file for file in files if file != own])
            return None
    return files


def _computer() -> str | None:
    """What tells one computer, and one start of it, from others."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return os.uname().nodename if hasattr(os, "uname") else None


def _close(files: Sequence[int]) -> None:
    for file in files:
        with contextlib.suppress(OSError):
            os.close(file)
