"""The thread that answers for a waiting process: only while it waits, and gone before the interpreter is."""

from __future__ import annotations

import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: there is nothing to watch")

from tests.patience import patience, wait_until  # noqa: E402

from megatile.runtime.rank_liveness import WATCH_SECONDS, GroupWait, Limit, Roll, Verdict, Watcher  # noqa: E402

PROGRAM = """
import time

import torch.distributed as dist

from megatile.runtime import rank_liveness


class Slow:
    def __init__(self, group):
        self.keys = ["a"]

    def answer(self):
        store, until = dist.HashStore(), time.monotonic() + 1.0
        while time.monotonic() < until:
            store.check(self.keys)  # gives the interpreter up and takes it again, all the time
        raise RuntimeError


rank_liveness.Roll = Slow
with rank_liveness.WATCHER.during(rank_liveness.GroupWait(None, rank_liveness.Limit(0.0, None))):
    time.sleep(3 * rank_liveness.WATCH_SECONDS)
print("end", flush=True)
"""


def test_a_process_that_waited_ends_well():
    """A thread inside the store while Python ends would abort the process."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.stdout == "end\n"
    assert done.returncode == 0, done.stderr


RANKS = 4


@pytest.fixture
def ranks(monkeypatch):
    """The roll of each of four ranks of a group, over one store."""
    store = torch.distributed.HashStore()
    monkeypatch.setattr(torch.distributed.distributed_c10d, "_get_default_store", lambda: store)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda group: group.rank)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda group: RANKS)
    return [Roll(member(rank)) for rank in range(RANKS)]


def member(rank):
    return SimpleNamespace(group_name="g", rank=rank)


def waits(rank, seconds=1000.0):
    return GroupWait(member(rank), Limit(time.monotonic(), seconds))


def test_a_rank_that_waits_is_not_taken_for_dead(ranks):
    """Somebody calls the roll: this rank answers while it waits, and only then."""
    watcher = Watcher()
    with watcher.during(waits(3)):
        time.sleep(3 * WATCH_SECONDS)
    assert ranks[0].answered(3) == 0  # nobody asks
    first = ranks[0].call()
    time.sleep(3 * WATCH_SECONDS)
    assert ranks[0].missing(first) == [1, 2, 3]  # it does not wait
    with watcher.during(waits(3)):
        assert wait_until(lambda: ranks[0].missing(first) == [1, 2], 20)
    second = ranks[0].call()
    assert ranks[0].missing(second) == [1, 2, 3]  # an answer to an earlier call says nothing


def test_the_roll_is_called_before_a_wait_ends(ranks):
    watcher, wait = Watcher(), waits(2, seconds=patience(3.0))
    ranks[1].noticed()
    with watcher.during(wait):
        assert wait_until(lambda: wait.verdict is not None, 20)
        assert wait.limit.left() > 0
        wait.failed = True
        assert ranks[1].named() == Verdict([0, 3], late=True)
        assert ranks[1].uninformed(wait.verdict) == []


def test_nobody_is_at_fault_if_the_wait_ends_well_after_all(ranks):
    watcher, wait = Watcher(), waits(2, seconds=1.0)
    with watcher.during(wait):
        assert wait_until(lambda: wait.verdict, 20)
    assert ranks[1].named() is None


def test_who_names_first_is_believed(ranks):
    first = Verdict([3], late=True)
    assert ranks[0].name(first) == first
    assert ranks[1].name(Verdict([0, 3], late=False)) == first


def test_time_of_grace_is_a_part_of_the_timeout():
    assert Limit(0.0, 1800.0).grace == 3.0
    assert Limit(0.0, 3.0).grace == 1.0
    assert Limit(0.0, None).grace == 3.0
