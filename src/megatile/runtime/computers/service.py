"""What the ranks tell each other while they work: pages, barriers, who has finished, who is gone.

Rank 0 keeps the book: for every page, the computers that have it, the one that keeps it, and whether that
one alone has it, to write. A rank that wants more tells rank 0; others give it up, and who keeps it sends it.
Messages go over torch.distributed. One thread for each peer receives and never sends, one thread sends.
"""

from __future__ import annotations

import contextlib
import os
import queue
import struct
import threading
import time
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from megatile.runtime.computers.ranks import SILENT_SECONDS, Ranks, library, no_more, talk_group
from megatile.runtime.errors import LaunchError, named

PING_SECONDS = 0.3
HOLD_SECONDS, PATIENCE_SECONDS = 0.001, 0.1
"""How long a computer keeps what it was given, and how long it is waited for until it uses it."""
MOST, TEXT = 1 << 20, 1024
NOTHING, READING, WRITING = range(3)


class Kind(IntEnum):
    PING, WANT, GIVE_UP, SEND, GRANT, ALLOW, DONE, ARRIVED, GO, FINISHED, ENDED, FAILED, BYE = range(13)


class Gone(Exception):
    """A rank is lost: what was under way is left."""


class Book:
    """Who has which page; kept by rank 0."""

    def __init__(self, pages: int, hosts: int):
        self.keeper = np.zeros(pages, np.int64)
        self.having = np.full(pages, (1 << hosts) - 1, np.uint64)
        self.alone = np.zeros(pages, bool)

    def alike(self, first: int, count: int) -> int:
        """How many pages from the first on are in the same state."""
        part = slice(first, first + count)
        same = np.ones(len(self.keeper[part]), bool)
        for column in (self.keeper, self.having, self.alone):
            same &= column[part] == column[first]
        return len(same) if same.all() else int(np.argmin(same))


class Service:
    """The threads of one rank, for one launch."""

    def __init__(self, ranks: Ranks, page: int, shared: tuple[int, int], lose: Callable[[int], None]):
        """``shared``: the first and the last page that all must see at last; ``lose`` hears who is gone."""
        self.ranks, self.rank, self.size, self.page, self.shared = ranks, ranks.rank, ranks.size, page, shared
        self.group, self.hosts = talk_group(), ranks.hosts
        self.leaders = [self.hosts.index(h) for h in range(max(self.hosts) + 1)]
        self.mine = [r for r in range(self.size) if self.hosts[r] == self.hosts[self.rank]]
        self.bytes = torch.frombuffer(ranks.heap.map, dtype=torch.uint8)
        self.lose_memory = lose
        self.inbox: queue.SimpleQueue[tuple[int, list[int], bytes]] = queue.SimpleQueue()
        self.answers: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
        """That something was done; and the pages for which rank 0 waits itself."""
        self.go, self.ended, self.reported = threading.Event(), threading.Event(), threading.Event()
        self.seconds, self.text, self.dead, self.losing = 0.0, "", False, threading.Lock()
        self.lost: int | None = None
        self.wakes, self.woken = 0, 0.0
        self.arrived, self.finished = 0, dict[int, float]()
        self.book = Book(-(-ranks.heap.nbytes // page), len(self.leaders))
        self.seen = dict.fromkeys(self._peers(self.rank), time.monotonic())
        self.suspects: dict[int, float] = {}
        self.stir = threading.Event()
        self.pings = {p: threading.Thread(target=self._ping, args=(p,), daemon=True) for p in self.seen}
        self.asks, self.answer = os.pipe(), os.pipe()
        self.threads = [threading.Thread(target=self._receive, args=(p,), daemon=True) for p in self.seen]
        self.threads += [threading.Thread(target=t, daemon=True) for t in (self._serve, self._watch)]
        self.threads += self.pings.values()
        self.over = threading.Event()

    def _peers(self, rank: int) -> list[int]:
        """Whom a rank talks to: rank 0 and the first of its computer; those first ones also to each other."""

        def talks(a: int, b: int) -> bool:
            if 0 in (a, b) or (a in self.leaders and b in self.leaders):
                return True
            return self.hosts[a] == self.hosts[b] and (a in self.leaders or b in self.leaders)

        return [r for r in range(self.size) if r != rank and talks(rank, r)]

    # --- from the program's thread ----------------------------------------------------------------

    def start(self, timeout: float) -> None:
        self.timeout, self.until = timeout, time.monotonic() + timeout
        self.seen = dict.fromkeys(self.seen, time.monotonic())
        if self.ranks.apart:
            self.threads.append(threading.Thread(target=self._faults, daemon=True))
        for thread in self.threads:
            thread.start()

    def barrier(self) -> int:
        self.go.clear()
        if self.lost is None:  # who is lost from here on, sets it again
            self._put(Kind.ARRIVED)
            self.go.wait()
        return -1 if self.lost is not None else 0

    def finish(self, seconds: float) -> float:
        """All have done their work, and see all results; the seconds of the slowest."""
        self._put(Kind.FINISHED, int(seconds * 1e9))
        self.ended.wait()
        self.check()
        return self.seconds

    def fail(self, problem: BaseException) -> None:
        """Tell the others what went wrong here."""
        if self.lost is None:
            self._put(Kind.FAILED, payload=str(problem).encode())
            self.reported.wait(2.0)

    def check(self, certainly: bool = False) -> None:
        """Raise who is lost, if somebody is; ``certainly``: it was seen in the memory, and word will come."""
        if certainly:
            self.ended.wait(2.0)
        if self.lost is not None:
            self.reported.wait(2.0)
            raise LaunchError(self.text, units=(self.lost,), advice="look at the output of that rank")

    def close(self) -> None:
        """End the threads; after a loss, with the connections."""
        self.over.set()
        self.stir.set()
        if self.lost is not None:
            no_more(self.text)
        self._put(Kind.BYE)
        os.close(self.asks[1])
        until = time.monotonic() + 5.0
        for thread in self.threads:
            thread.join(max(0.0, until - time.monotonic()))
        for handle in (self.asks[0], *self.answer):
            os.close(handle)
        del self.bytes

    def _put(self, kind: Kind, *values: int, payload: bytes = b"") -> None:
        self.inbox.put((self.rank, [kind, *values], payload))

    # --- threads ----------------------------------------------------------------------------------

    def _faults(self) -> None:
        while ask := os.read(self.asks[0], 40):
            self._put(Kind.WANT, *struct.unpack("5q", ask))

    def _receive(self, peer: int) -> None:
        header = torch.empty(8, dtype=torch.int64)
        with contextlib.suppress(RuntimeError, ValueError):
            while True:
                dist.recv(header, peer, group=self.group)
                message, payload = header.tolist(), b""
                kind, length = Kind(message[0]), message[7]
                self.seen[peer] = time.monotonic()
                if length and kind is Kind.GRANT:
                    at = message[1] * self.page
                    dist.recv(self.bytes[at : at + length], peer, group=self.group, tag=kind)
                elif length:
                    words = torch.empty(TEXT, dtype=torch.uint8)
                    dist.recv(words, peer, group=self.group, tag=kind)
                    payload = bytes(words.numpy()).rstrip(b"\0")
                if kind is Kind.DONE or (kind is Kind.GRANT and self.rank == 0):
                    self.answers.put(message)
                elif kind is Kind.BYE:
                    return
                elif kind is Kind.FAILED and self.rank:
                    self._lose(message[1], payload.decode(), bool(message[2]))
                elif kind is not Kind.PING:
                    self.inbox.put((peer, message, payload))
        if not self.over.is_set():
            self.suspects.setdefault(peer, time.monotonic())

    def _serve(self) -> None:
        try:
            while True:
                sender, message, payload = self.inbox.get()
                if message[0] == Kind.BYE:
                    if self.lost is None:
                        for peer in self.seen:
                            self._send(peer, Kind.BYE)
                    return
                if self.lost is None:
                    self._handle(sender, message, payload)
        except (RuntimeError, Gone):
            pass  # the watch names who is gone

    def _ping(self, peer: int) -> None:
        """Lets a peer know that this rank is there; and, from rank 0, who is not."""
        with contextlib.suppress(RuntimeError, ValueError):
            while not self.over.is_set() and self.lost is None:
                self._message(peer, [Kind.PING, *[0] * 7])
                self.stir.wait(PING_SECONDS)
            if self.lost is not None and self.rank == 0:
                values = [self.lost, int(self.dead), 0, 0, 0, 0]
                self._message(peer, [Kind.FAILED, *values, 1], _bytes(self.text.encode()))
            if self.lost is not None and not (self.dead and self.lost == peer):
                self._message(peer, [Kind.BYE, *[0] * 7])

    def _watch(self) -> None:
        """Says who is gone: who closed its connection, or was silent for too long."""
        now = time.monotonic()
        while not self.over.wait(PING_SECONDS / 3 if self.suspects else PING_SECONDS):
            before, now = now, time.monotonic()
            if now - before > SILENT_SECONDS / 2:  # it stood still itself: what it did not hear says nothing
                self.seen = dict.fromkeys(self.seen, now)
            certain = [p for p, t in self.suspects.items() if 0 in (p, self.rank) or now - t > 1.0]
            silent = [p for p, t in self.seen.items() if 0 in (p, self.rank) and now - t > SILENT_SECONDS]
            if self.lost is None and certain:
                self._lose(certain[0], f"rank {certain[0]} ended or lost its connection")
            elif self.lost is None and silent:
                self._lose(silent[0], f"rank {silent[0]} was not heard for {SILENT_SECONDS:g} s")
            elif self.lost is None and self.rank == 0 and now > self.until:
                late = [r for r in range(self.size) if r not in self.finished] or [0]
                some = f"{named('rank', late)} still at work"
                self._lose(late[0], f"the work did not finish within {self.timeout:g} s: {some}", False)

    def _lose(self, rank: int, text: str, dead: bool = True) -> None:
        """Nothing can go on, because of a rank: it is dead, or it says what went wrong."""
        with self.losing:
            if self.lost is not None:
                return
            self.text, self.dead, self.lost = text, dead, rank
        self.lose_memory(rank)
        with contextlib.suppress(OSError):
            os.write(self.answer[1], struct.pack("q", 1))
        self.go.set()
        self.ended.set()
        self.stir.set()
        if self.rank == 0:
            until = time.monotonic() + 1.5
            for peer, thread in self.pings.items():
                if not (dead and peer == rank) and thread is not threading.current_thread():
                    thread.join(max(0.0, until - time.monotonic()))
        self.reported.set()

    # --- messages ---------------------------------------------------------------------------------

    def _send(self, peer: int, kind: Kind, *values: int, payload: Any = None) -> None:
        """To another rank, or at once to this one."""
        length = 0 if payload is None else len(payload)
        message = [kind, *values, *[0] * (6 - len(values)), length]
        if peer == self.rank:
            self._handle(peer, message, b"")
            return
        self._message(peer, message, payload)

    def _message(self, peer: int, message: list[int], payload: Any = None) -> None:
        dist.send(torch.tensor(message), peer, group=self.group)
        if payload is not None:
            dist.send(payload, peer, group=self.group, tag=message[0])

    def _handle(self, sender: int, message: list[int], payload: bytes) -> None:
        kind = Kind(message[0])
        if self.rank and sender == self.rank and kind in _TO_ZERO:
            words = _bytes(payload) if payload else None
            self._send(0, kind, *message[1:6], payload=words)
        else:
            _HANDLERS[kind](self, sender, message[1:] + [0] * 7, payload)

    def _awaited(self, count: int) -> None:
        while count:
            try:
                message = self.answers.get(timeout=0.2)
            except queue.Empty:
                if self.lost is not None:
                    raise Gone from None
            else:
                if message[0] == Kind.DONE:
                    count -= 1
                else:
                    self._handle(self.rank, message, b"")

    def _allow(self, first: int, count: int, access: int, wake: int = -1) -> None:
        """Every rank of this computer may do so with the pages from now on; one of them waited for it."""
        others = [r for r in self.mine if r != self.rank]
        for rank in others:
            self._send(rank, Kind.ALLOW, first, count, access, int(rank == wake))
        self._change(first, count, access, self.rank == wake)
        self._awaited(len(others))

    def _change(self, first: int, count: int, access: int, wake: int) -> None:
        if access != WRITING:
            self._used()
        library().mt_pages_allow(first, count, access)
        if wake:
            self.wakes, self.woken = self.wakes + 1, time.monotonic()
            os.write(self.answer[1], struct.pack("q", count))

    def _used(self) -> None:
        """Before pages are given up: whoever waited here gets to use what it got, or there is no progress."""
        until = time.monotonic() + PATIENCE_SECONDS
        while library().mt_pages_resumed() < self.wakes and time.monotonic() < until:
            time.sleep(0.0002)
            self.woken = time.monotonic()
        time.sleep(max(0.0, self.woken + HOLD_SECONDS - time.monotonic()))

    def _on_allow(self, sender: int, values: list[int], payload: bytes) -> None:
        self._change(*values[:4])
        self._send(sender, Kind.DONE)

    def _on_give_up(self, sender: int, values: list[int], payload: bytes) -> None:
        self._allow(values[0], values[1], NOTHING)
        self._send(sender, Kind.DONE)

    def _on_send(self, sender: int, values: list[int], payload: bytes) -> None:
        """Give pages to another computer, and keep the right to read them, or none."""
        first, count, access, rank, changes, quiet = values[:6]
        if changes:
            self._allow(first, count, READING if access == READING else NOTHING)
        to = self.leaders[self.hosts[rank]]
        begin, end = first * self.page, min((first + count) * self.page, len(self.bytes))
        self._send(to, Kind.GRANT, first, count, access, rank, quiet, payload=self.bytes[begin:end])

    def _on_grant(self, sender: int, values: list[int], payload: bytes) -> None:
        first, count, access, rank, quiet = values[:5]
        self._allow(first, count, access, -1 if quiet else rank)
        self._send(0, Kind.DONE)

    def _on_done(self, sender: int, values: list[int], payload: bytes) -> None:
        self.answers.put([Kind.DONE])

    # --- what rank 0 does -------------------------------------------------------------------------

    def _on_want(self, sender: int, values: list[int], payload: bytes) -> None:
        first, count, write, other, wrote = values[:5]
        if other >= 0:
            self._serve_pages(other, 1, bool(wrote), sender, quiet=True)
            count = other - first if first < other < first + count else count
        self._serve_pages(first, count, bool(write), sender)

    def _serve_pages(self, first: int, count: int, write: bool, rank: int, quiet: bool = False) -> int:
        """A rank wants to read or write pages; how many it got. ``quiet``: it does not wait for them."""
        book, host = self.book, self.hosts[rank]
        count = book.alike(first, min(count, max(1, MOST // self.page)))
        part = slice(first, first + count)
        having, keeper = int(book.having[first]), int(book.keeper[first])
        has, alone = bool(having >> host & 1), bool(book.alone[first])
        to = self.leaders[host]
        access = WRITING if write else READING
        if has and (alone or not write):
            self._send(to, Kind.GRANT, first, count, WRITING if alone else READING, rank, int(quiet))
            self._awaited(1)
            return count
        if write:
            losing = [h for h in range(len(self.leaders)) if having >> h & 1 and h != host]
            losing = [h for h in losing if has or h != keeper]
            for other in losing:
                self._send(self.leaders[other], Kind.GIVE_UP, first, count)
            self._awaited(len(losing))
        if has:
            self._send(to, Kind.GRANT, first, count, access, rank, int(quiet))
        else:
            changes = int(write or alone)
            self._send(self.leaders[keeper], Kind.SEND, first, count, access, rank, changes, int(quiet))
        self._awaited(1)
        book.alone[part] = write
        book.having[part] = 1 << host if write else having | 1 << host
        if write:
            book.keeper[part] = host
        return count

    def _on_arrived(self, sender: int, values: list[int], payload: bytes) -> None:
        self.arrived += 1
        if self.arrived == self.size:
            self.arrived = 0
            for rank in range(self.size):
                self._send(rank, Kind.GO)

    def _on_go(self, sender: int, values: list[int], payload: bytes) -> None:
        self.go.set()

    def _on_finished(self, sender: int, values: list[int], payload: bytes) -> None:
        self.finished[sender] = values[0] / 1e9
        if len(self.finished) < self.size:
            return
        for to in self.leaders if self.ranks.apart else ():
            for first, count in self._missing(self.hosts[to]):
                at = first
                while at < first + count:
                    at += self._serve_pages(at, first + count - at, False, to, quiet=True)
        for rank in range(self.size):
            self._send(rank, Kind.ENDED, int(max(self.finished.values()) * 1e9))

    def _missing(self, host: int) -> Iterator[tuple[int, int]]:
        """The runs of pages with arguments that a computer does not have."""
        first, last = self.shared
        lacks = (self.book.having[first : last + 1] >> np.uint64(host) & np.uint64(1)) == 0
        edges = np.flatnonzero(np.diff(np.concatenate([[False], lacks, [False]]).astype(np.int8)))
        for begin, end in edges.reshape(-1, 2).tolist():
            yield first + begin, end - begin

    def _on_ended(self, sender: int, values: list[int], payload: bytes) -> None:
        self.seconds = values[0] / 1e9
        self.ended.set()

    def _on_failed(self, sender: int, values: list[int], payload: bytes) -> None:
        self._lose(sender, f"rank {sender}: {payload.decode()}", False)


def _bytes(text: bytes) -> torch.Tensor:
    """A text as a message of fixed length."""
    return torch.frombuffer(bytearray(text[:TEXT].ljust(TEXT, b"\0")), dtype=torch.uint8)


_TO_ZERO = (Kind.WANT, Kind.ARRIVED, Kind.FINISHED, Kind.FAILED)
_HANDLERS: dict[Kind, Callable[[Service, int, list[int], bytes], None]] = {
    Kind.WANT: Service._on_want, Kind.GIVE_UP: Service._on_give_up, Kind.SEND: Service._on_send,
    Kind.GRANT: Service._on_grant, Kind.ALLOW: Service._on_allow, Kind.DONE: Service._on_done,
    Kind.ARRIVED: Service._on_arrived, Kind.GO: Service._on_go, Kind.FINISHED: Service._on_finished,
    Kind.ENDED: Service._on_ended, Kind.FAILED: Service._on_failed,
}  # fmt: skip
