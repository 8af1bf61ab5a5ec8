"""Processes that share memory: collectives against NumPy, and what happens to those left when one is lost."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.patience import patience, wait_until

from megatile.runtime import shared
from megatile.runtime.errors import LaunchError


def test_a_rank_that_cannot_be_started_ends_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    pids: list[int] = []
    before, real = state(), os.fork

    def third() -> int:
        if len(pids) == 2:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        pids.append(real())
        return pids[-1]

    monkeypatch.setattr(os, "fork", third)
    with pytest.raises(LaunchError, match="rank 2 of 4 cannot be started"):
        shared.run(lambda w: w.barrier(), 4)
    assert not any(map(alive, pids))
    assert state()["fd"] == before["fd"]


def fails(world: shared.World, how: str, who: int, when: str = "middle") -> None:
    if when != "start":
        world.barrier()
    if world.rank == who:
        if how == "raise":
            raise ValueError("no good")
        if how == "exit":
            os._exit(3)
        if how == "memory":
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20),) * 2)
            np.zeros(1 << 28)
        os.kill(os.getpid(), signal.SIGKILL if how == "kill" else signal.SIGSTOP)
    x = world.symmetric(4096)
    while when != "end":
        world.all_reduce(x)


@pytest.mark.parametrize(
    ("how", "said"),
    [("raise", "rank 2: ValueError: no good"), ("exit", "rank 2: ended with exit code 3"),
     ("memory", "rank 2: .*MemoryError: Unable to allocate 2.00 GiB"),
     ("kill", "rank 2: ended by signal SIGKILL"), ("stop", "rank 2 was stopped")],
)  # fmt: skip
def test_a_lost_rank_is_named_soon(how: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the start, when others wait for it, and when they have ended."""
    monkeypatch.setattr("megatile.runtime.shared.forked.STOPPED_SECONDS", 0.5)
    for when in ("start", "middle", "end"):
        pids: list[int] = []
        begun = time.monotonic()
        with pytest.raises(LaunchError, match=said) as found:
            shared.run(fails, 4, args=(how, 2, when), started=pids.extend)
        assert time.monotonic() - begun < patience(5)
        assert found.value.units == (2,)
        assert not any(alive(pid) for pid in pids)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_work_that_never_ends_is_ended() -> None:
    with pytest.raises(LaunchError, match=r"did not finish within 0\.3 s: ranks 0, 1 still at work"):
        shared.run(lambda w: time.sleep(60), 2, timeout=0.3)


def state() -> dict[str, int]:
    """What this process holds, and memory in KiB."""
    said = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    held = {name: len(os.listdir(f"/proc/self/{name}")) for name in ("fd", "task")}
    heaps = Path("/proc/self/maps").read_text().count("memfd:megatile")
    return {**held, "heaps": heaps, "memory": int(said["VmRSS"].split()[0])}


def assert_no_more(before: dict[str, int], after: dict[str, int]) -> None:
    allowed = {**before, "memory": before["memory"] + 2048}
    assert {name: count for name, count in after.items() if count > allowed[name]} == {}, before


def many(world: shared.World, count: int) -> None:
    small, large, all_ = world.symmetric(4), world.symmetric(5000), world.symmetric((world.size, 4))
    for number in range(count + 50):
        if number == 50:
            before = state()
        world.all_reduce(small)
        world.all_reduce(large)
        world.all_gather(all_, small)
    assert_no_more(before, state())


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="no /proc here")
def test_runs_leave_nothing_behind() -> None:
    """``MEGATILE_LAUNCHES=10000`` does more of them."""
    count = int(os.environ.get("MEGATILE_LAUNCHES", "200"))
    shared.run(many, 2, args=(count,), timeout=patience(600))
    before = state()
    for _ in range(count // 20):
        shared.run(lambda w: w.barrier(), 2, heap="1 MiB")
    assert_no_more(before, state())


@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_ranks_end_with_the_process_that_began_them(by: signal.Signals) -> None:
    script = (
        "import sys, time\nfrom megatile.runtime import shared\n"
        "def told(pids):\n    print(*pids, flush=True)\n"
        "def work(w):\n    x = w.symmetric(4)\n    time.sleep(0.2 * w.rank)\n    time.sleep(60)\n"
        "shared.run(work, 3, started=told)\n"
    )
    environment: dict[str, Any] = {**os.environ, "PYTHONPATH": str(Path(shared.__file__).parents[3])}
    parent = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, text=True,
        # A shell may have told the tests to ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 3
    parent.send_signal(by)
    parent.wait(patience(3))
    assert wait_until(lambda: not any(map(alive, pids)), 3)
