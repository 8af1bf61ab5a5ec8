"""The ranks that torchrun, or something like it, has started: who they are, on which hosts, what they agree
on before a launch, and how it ends on all of them."""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib.util
import json
import os
import socket
import sys
import time
import zlib
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

from megatile.core.errors import MegatileError
from megatile.runtime.errors import LATE_SECONDS, LaunchError, MissingTorchError, PeerError, named

HOST_VARIABLE = "MEGATILE_HOST"
"""Ranks for which it differs treat each other as being on other hosts."""
GONE_SECONDS = 2.0
"""How long a rank that comes waits until it looks whether the others were started."""


def started() -> bool:
    """Return whether this process is one of several ranks that torchrun, or something like it, started."""
    if os.environ.get("RANK", "").isdigit() and os.environ.get("WORLD_SIZE", "").isdigit():
        return int(os.environ["WORLD_SIZE"]) > 1
    dist = getattr(sys.modules.get("torch"), "distributed", None)
    return bool(
        dist is not None and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    )


class Launches:
    """The launches of this process: their process group (gloo, over all ranks), their number, and why there
    can be no further ones."""

    def __init__(self) -> None:
        self.group: Any = None
        self.count = 0
        self.over = ""

    def join(self, timeout: float) -> Any:
        """Return the process group, made when all ranks have come, within so many seconds."""
        if importlib.util.find_spec("torch") is None:
            raise MissingTorchError("ranks of torchrun need torch", advice="pip install 'megatile[torch]'")
        import torch.distributed as dist

        if not dist.is_initialized():
            self.group = None
            _initialise(timeout)
            atexit.register(_end)  # a group that is left to the end of Python may abort the process
        if self.group is None:
            gc.collect()  # an error may hold the last group in a circle, and ranks that wait for this one
            self.group = dist.new_group(backend="gloo")
        self.count += 1
        return self.group

    def leave(self) -> None:
        """Close the connections of the group: ranks that wait for this one are woken. The next launch makes
        another."""
        import torch.distributed as dist

        if self.group is not None:
            with contextlib.suppress(ValueError):  # the user has destroyed all groups
                dist.destroy_process_group(self.group)
            self.group = None


LAUNCHES = Launches()


def _end() -> None:
    """Close the connections that were made here."""
    import torch.distributed as dist

    LAUNCHES.leave()
    if dist.is_initialized():
        dist.destroy_process_group()


def _initialise(timeout: float) -> None:
    import torch.distributed as dist

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


def all_here(timeout: float) -> tuple[Any, int, int]:
    """Return the store of the ranks once all have come to it, this one's number, and how many they are."""
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
    """Return the ranks that torchrun started here, as children of ``parent``, and that are no longer."""
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


class Meeting:
    """The ranks at one launch. A mistake of one is one error on all."""

    def __init__(self, timeout: float) -> None:
        if LAUNCHES.over:
            raise LaunchError(
                f"no launch is possible any more: {LAUNCHES.over}", advice="start all ranks again"
            )
        group = LAUNCHES.join(timeout)
        import torch.distributed as dist

        from megatile.runtime.agreement import Members

        self.members, self.timeout = Members(group, LaunchError), timeout
        self.group, self.rank, self.size = group, self.members.rank, self.members.size
        default = dist.distributed_c10d._get_default_store()
        self.store = dist.PrefixStore(f"megatile launch {LAUNCHES.count}", default)
        with self.ending_together():
            records = self._agree({"pid": os.getpid(), "host": _host()})
        self.pids = [record["pid"] for record in records]
        self.one_host = len({record["host"] for record in records}) == 1

    def same(self, problem: MegatileError | None, code: str, arrays: Sequence[Any]) -> bool:
        """Raise on all ranks what is wrong on one; return whether all have equal values in their arrays."""
        sums = [zlib.crc32(np.ascontiguousarray(a).tobytes()) for a in arrays]
        record = {"code": zlib.crc32(code.encode()), "sums": zlib.crc32(repr(sums).encode())}
        records = self._agree(record, problem)
        if len({record["code"] for record in records}) > 1:
            raise LaunchError(
                "the ranks do not have the same code: their programs, machines or processors differ",
                advice="give all ranks the same program, and use hosts with equal processors",
            )
        return len({record["sums"] for record in records}) == 1

    def _agree(self, record: dict[str, Any], problem: BaseException | None = None) -> list[dict[str, Any]]:
        import torch

        said = None if problem is None else str(problem)
        return self.members.agree(record, said, torch.device("cpu"), ())

    def broadcast(self, arrays: Sequence[np.ndarray], root: int = 0) -> None:
        """Give all ranks the root's arrays, in place."""
        import torch
        import torch.distributed as dist

        from megatile.runtime.failures import wait_for
        from megatile.runtime.rank_liveness import Limit

        limit = Limit(time.monotonic(), self.timeout + LATE_SECONDS, "timeout=")
        for array in arrays:
            whole = np.ascontiguousarray(array)
            if whole.size:
                flat = torch.from_numpy(whole.reshape(-1).view(np.uint8))
                work = dist.broadcast(flat, root, group=self.group, async_op=True)
                wait_for(work, self.group, None, f"receiving what rank {root} has", limit)
            if whole is not array:
                array[...] = whole

    @contextlib.contextmanager
    def ending_together(self) -> Iterator[None]:
        """An error of one rank in the block ends it on all: those that wait are woken, and all name it."""
        try:
            yield
        except PeerError as problem:
            raise self._ended(problem) from None
        except BaseException as problem:
            self._tell(problem)
            LAUNCHES.leave()
            raise

    def _tell(self, problem: BaseException) -> None:
        """Leave word of what went wrong here; who does so first is right."""
        import torch.distributed as dist

        from megatile.runtime.rank_liveness import Roll, Verdict

        text = str(problem) if isinstance(problem, MegatileError) else f"{type(problem).__name__}: {problem}"
        with contextlib.suppress(RuntimeError, dist.DistError):
            self.store.compare_set("failed", "", json.dumps([self.rank, text]))
            Roll(self.group).name(Verdict([self.rank], late=False))

    def _ended(self, problem: PeerError) -> LaunchError:
        """Return the error that another rank told of, or that of ranks that are lost."""
        import torch.distributed as dist

        from megatile.runtime.rank_liveness import Roll, Verdict

        found = None
        with contextlib.suppress(RuntimeError, dist.DistError):
            if self.store.check(["failed"]):
                found = json.loads(self.store.get("failed"))
            elif problem.ranks:
                Roll(self.group).name(Verdict(list(problem.ranks), late=False))
        LAUNCHES.leave()
        if found is not None:
            return LaunchError(f"rank {found[0]}: {found[1]}", units=(found[0],))
        LAUNCHES.over = str(problem).split(" (try:")[0]
        return LaunchError(str(problem), units=problem.ranks)


def _host() -> str:
    """Return what tells hosts apart: their names, and when they were started."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return os.environ.get(HOST_VARIABLE) or f"{socket.gethostname()} {boot}"
    return os.environ.get(HOST_VARIABLE) or socket.gethostname()
