"""Who the ranks are, which of them are on one computer, and the memory all have at the same addresses."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import secrets
import sys
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from megatile.core.errors import MegatileError
from megatile.runtime.errors import LaunchError, MissingTorchError, named
from megatile.runtime.shared.world import Heap, native, unnamed

HOST_VARIABLE = "MEGATILE_HOST"
"""Ranks for which it differs treat each other as being on other computers."""
_PLACES = (0x2A0000000000, 0x150000000000, 0x620000000000, 0x3A0000000000, 0x2A00000000, 0x1500000000)
_ARGUMENTS = {
    "pages_allow": "lli", "pages_begin": "ppllii", "pages_place": "pli", "pages_remove": "pl",
    "pages_collectives": "pplll",
}  # fmt: skip
_TOKEN = 16
SILENT_SECONDS = 3.0
"""After how long without a sign a rank counts as lost."""
GONE_SECONDS = 2.0
"""How long a rank that comes waits until it looks whether the others were started."""


def started() -> bool:
    """Whether this process is one of several ranks that torchrun, or something like it, started."""
    if os.environ.get("RANK", "").isdigit() and os.environ.get("WORLD_SIZE", "").isdigit():
        return int(os.environ["WORLD_SIZE"]) > 1
    dist = getattr(sys.modules.get("torch"), "distributed", None)
    return bool(
        dist is not None and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    )


_met: list[Any] = []


def _group(timeout: float) -> Any:
    """The process group of launches: gloo, over all ranks, who are to come within so many seconds."""
    if _met:
        return _met[0]
    if importlib.util.find_spec("torch") is None:
        raise MissingTorchError("ranks of torchrun need torch", advice="pip install 'megatile[torch]'")
    import torch.distributed as dist

    if not dist.is_initialized():
        try:
            if all(os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")):
                store, rank, size = all_here(timeout)
                dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
            else:
                dist.init_process_group("gloo")
        except LaunchError:
            raise
        except (ValueError, RuntimeError) as problem:
            raise LaunchError(
                f"the ranks did not find each other: {str(problem).splitlines()[0][:200]}",
                advice="start them with torchrun, which sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT",
            ) from None
    _met.append(dist.new_group(backend="gloo"))
    return _met[0]


def all_here(timeout: float) -> tuple[Any, int, int]:
    """The store of the ranks once all have come to it, this one's number, and how many they are."""
    import torch.distributed as dist

    rank, size, port = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    keeps = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    begun, store, missing = time.monotonic(), None, [0]
    while missing:
        try:
            if store is None:
                found = dist.TCPStore(
                    os.environ["MASTER_ADDR"], port, size, keeps, timedelta(seconds=5 if keeps else 1),
                    wait_for_workers=False, multi_tenant=True,
                )  # fmt: skip
                store = dist.PrefixStore(f"megatile {os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", found)
                store.set(str(rank), "here")
            missing = [r for r in range(size) if not store.check([str(r)])]
        except dist.DistError:
            if keeps:
                raise
        passed = time.monotonic() - begun
        gone = sorted(ended(os.getppid()).intersection(missing)) if passed > GONE_SECONDS else []
        if missing and (gone or passed > timeout):
            late = gone or missing
            how = "ended before it came" if gone else f"did not come within {timeout:g} s"
            raise LaunchError(f"{named('rank', late)} {how} to this launch", units=tuple(late),
                              advice="all ranks call mt.launch; look at the output of that one")  # fmt: skip
        if missing:
            time.sleep(0.02)
    assert store is not None
    store.set_timeout(timedelta(minutes=30))
    return store, rank, size


def ended(parent: int) -> set[int]:
    """The ranks that torchrun started here, as children of ``parent``, and that are no longer."""
    try:
        first = int(os.environ["RANK"]) - int(os.environ["LOCAL_RANK"])
        ranks = set(range(first, first + int(os.environ["LOCAL_WORLD_SIZE"])))
        for task in Path(f"/proc/{parent}/task").iterdir():
            for child in (task / "children").read_text().split():
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    values = dict(
                        v.split(b"=", 1)
                        for v in Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
                        if b"=" in v
                    )
                    ranks.discard(int(values.get(b"RANK", b"-1")))
        return ranks
    except (KeyError, ValueError, OSError):
        return set()


@cache
def talk_group() -> Any:
    """The group of what ranks tell each other while they work: there is a message every moment."""
    import torch.distributed as dist

    return dist.new_group(backend="gloo", timeout=timedelta(seconds=SILENT_SECONDS + 1))


_over: list[str] = []
"""Why there can be no further launches."""
no_more = _over.append


@cache
def library() -> ctypes.CDLL:
    """The handler of page faults, as machine code of this computer."""
    structs = files("megatile.targets.cpu").joinpath("collectives.h").read_text(encoding="utf-8")
    before = f"typedef unsigned long u64; struct failure;\n{structs}\n"
    made = native("megatile.runtime.computers", "pages.c", _ARGUMENTS, before=before)
    made.mt_pages_resumed.restype = ctypes.c_long
    return made


@dataclass
class Ranks:
    """All ranks, seen from one: ``hosts`` has the number of each rank's computer, from 0."""

    group: Any
    rank: int
    size: int
    hosts: list[int]
    heap: Heap
    base: int
    """Where the program finds the heap; Python uses its own addresses of it."""

    @property
    def apart(self) -> bool:
        return any(self.hosts)

    @property
    def leader(self) -> bool:
        """Whether it is the first rank of its computer."""
        return self.hosts.index(self.hosts[self.rank]) == self.rank

    def together(self) -> None:
        """Wait until all are here, without the memory."""
        from megatile.runtime.agreement import Members

        Members(self.group, LaunchError).agree({}, None, _cpu(), ())

    def close(self) -> None:
        library().mt_pages_remove(self.base, self.heap.nbytes)
        self.heap.close()


class Meeting:
    """The ranks agree on what they do: a mistake of one is one error on all."""

    def __init__(self, timeout: float) -> None:
        from megatile.runtime.agreement import Members

        if _over:
            raise LaunchError(f"no launch is possible any more: {_over[0]}", advice="start all ranks again")
        self.members = Members(_group(timeout), LaunchError)
        talk_group()
        self.rank, self.size = self.members.rank, self.members.size
        self.token = secrets.token_bytes(_TOKEN)
        self.handle = unnamed()
        os.write(self.handle, self.token)

    def same(self, problem: MegatileError | None, code: str, arrays: Sequence[Any]) -> bool:
        """Raise on all ranks what is wrong on one; whether all have the same values in their arrays."""
        sums = [zlib.crc32(np.ascontiguousarray(a).data.cast("B")) for a in arrays]
        self.records = self._agree(
            {
                "code": zlib.crc32(code.encode()),
                "sums": zlib.crc32(repr(sums).encode()),
                "pid": os.getpid(), "handle": self.handle, "token": self.token.hex(),
                "host": os.environ.get(HOST_VARIABLE, ""),
            },
            problem,
        )  # fmt: skip
        if len({record["code"] for record in self.records}) > 1:
            raise LaunchError(
                "the ranks do not have the same code: their programs, machines or processors differ",
                advice="give all ranks the same program, and use computers with equal vector units",
            )
        return len({record["sums"] for record in self.records}) == 1

    def _agree(self, record: dict[str, Any], problem: BaseException | None = None) -> list[dict[str, Any]]:
        return self.members.agree(record, None if problem is None else str(problem), _cpu(), ())

    def ranks(self, nbytes: int) -> Ranks:
        """Find those of the same computer, and make the memory: at one address, shared where it can be."""
        first, handle = self._first_of_host()
        firsts = [record["first"] for record in self._agree({"first": first})]
        order = sorted(set(firsts))
        heap, problem = None, None
        try:
            heap = Heap(nbytes, handle) if first == self.rank else None
        except LaunchError as error:
            problem = error
        self._agree({}, problem)
        heap = heap or Heap(nbytes, handle)
        base = self._placed(heap, handle)
        if handle != self.handle:
            os.close(handle)
        return Ranks(self.members.group, self.rank, self.size, [order.index(f) for f in firsts], heap, base)

    def _first_of_host(self) -> tuple[int, int]:
        """The first rank whose memory this one can open, and a handle of that memory."""
        mine = self.records[self.rank]
        for rank, record in enumerate(self.records[: self.rank]):
            if record["host"] != mine["host"]:
                continue
            try:
                handle = os.open(f"/proc/{record['pid']}/fd/{record['handle']}", os.O_RDWR)
            except OSError:
                continue
            if os.pread(handle, _TOKEN, 0).hex() == record["token"]:
                return rank, handle
            os.close(handle)
        return self.rank, self.handle

    def _placed(self, heap: Heap, handle: int) -> int:
        for at in _PLACES:
            fine = library().mt_pages_place(at, heap.nbytes, handle) == 0
            if all(record["fine"] for record in self._agree({"fine": fine})):
                return at
            if fine:
                library().mt_pages_remove(at, heap.nbytes)
        raise LaunchError("the ranks have no free address in common", advice="start all ranks again")

    def close(self) -> None:
        os.close(self.handle)


def _cpu() -> Any:
    import torch

    return torch.device("cpu")
