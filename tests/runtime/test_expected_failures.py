"""How long ranks wait, and what they tell each other about a failure, line by line (`tests.expected`)."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from tests.expected import digest, line, tried

Check = Callable[[str, dict[str, Any]], None]


class Store:
    """The parts of a torch store that the roll uses."""

    def __init__(self, *_: Any) -> None:
        self.held: dict[str, str] = {}

    def add(self, key: str, amount: int) -> int:
        self.held[key] = str(int(self.held.get(key, "0")) + amount)
        return int(self.held[key])

    def set(self, key: str, value: str) -> None:
        self.held[key] = value

    def get(self, key: str) -> str:
        return self.held[key]

    def check(self, keys: list[str]) -> bool:
        return all(key in self.held for key in keys)

    def compare_set(self, key: str, before: str, after: str) -> str:
        if self.held.get(key, "") == before:
            self.held[key] = after
        return self.held[key]

    def delete_key(self, key: str) -> None:
        self.held.pop(key, None)


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A group of five ranks with one store; ``me`` may be set."""
    pytest.importorskip("torch")
    from megatile.runtime import failures, rank_liveness

    store, made = Store(), SimpleNamespace(group_name="g", me=0)
    dist = SimpleNamespace(
        distributed_c10d=SimpleNamespace(_get_default_store=lambda: store), PrefixStore=lambda *_: store,
        get_rank=lambda group=None: made.me, get_world_size=lambda group=None: 5, DistError=ValueError,
        get_global_rank=lambda group, rank: 10 + rank, ProcessGroup=object,
    )  # fmt: skip
    made.store, made.now = store, 100.0
    clock = SimpleNamespace(
        monotonic=lambda: made.now, sleep=lambda seconds: setattr(made, "now", made.now + seconds)
    )
    for module in (failures, rank_liveness):
        monkeypatch.setattr(module, "dist", dist)
        monkeypatch.setattr(module, "time", clock)
    return made


def test_limits(group: Any, expected: Check) -> None:
    from datetime import timedelta

    from megatile.runtime.rank_liveness import Limit, _figures

    found: dict[str, Any] = {}
    for asked in (None, "3", "0.5", "100", "x", "-1", "0", "nan", ""):
        for groups in (None, timedelta(seconds=20), "none"):
            for backend in ("ProcessGroupGloo", "ProcessGroupNCCL"):
                name = f"{asked!r} {groups} {backend}"
                found[name] = tried(
                    lambda a=asked, g=groups, b=backend: line(figures=_figures.__wrapped__(a, g, b))
                )
    for seconds in (None, 0.9, 30.0, 3600.0):
        for bounded in (True, False):
            waits: list[Any] = []
            limit = Limit(90.0, seconds, "here", bounded)
            limit.wait(SimpleNamespace(wait=lambda *a, w=waits: w.append(a)))
            found[f"limit {seconds} {bounded}"] = line(
                grace=limit.grace, left=limit.left(), half=limit.left(0.5), end=limit.end, waits=waits,
                again=str(limit.again()), since=str(limit.again(50.0)),
            )  # fmt: skip
    expected("limits", found)


def test_the_roll(group: Any, expected: Check) -> None:
    from megatile.runtime.rank_liveness import DECIDE, GroupWait, Limit, Roll, Verdict

    found: dict[str, Any] = {}

    def at(step: str, **more: Any) -> None:
        found[f"{len(found):02} {step}"] = line(**more, store=dict(group.store.held))

    rolls = []
    for rank in range(5):
        group.me = rank
        rolls.append(Roll(group))
    rolls[1].answer()
    at("nobody has called")
    number = rolls[0].call()
    at("a call", number=number, missing=rolls[0].missing(number))
    rolls[1].answer()
    rolls[3].noticed()
    at("answers", missing=rolls[0].missing(number), answered=[rolls[0].answered(r) for r in range(5)])
    at("not named", named=str(rolls[2].named()))
    first = rolls[0].name(Verdict([2, 4], True))
    second = rolls[1].name(Verdict([3], False))
    at("named", first=str(first), second=str(second), uninformed=rolls[0].uninformed(first))
    at("read", named=str(rolls[3].named()), uninformed=rolls[0].uninformed(first))
    rolls[0].forget()
    at("forgotten", named=str(rolls[3].named()))
    group.store.held.clear()
    for rank in (0, 3):
        group.me = rank
        wait = GroupWait(group, Limit(100.0, 12.0))
        for now in (100.0, 100.0 + 12 - wait.limit.grace, 112 - DECIDE * wait.limit.grace, 111.9):
            group.now = now
            wait.poll()
            at(f"poll of {rank} at {now:g}", number=wait.number, verdict=str(wait.verdict), named=wait.named)
        wait.failed = True
        wait.poll()
        at(f"failed wait of {rank}", verdict=str(wait.verdict))
        group.now = 100.0
    expected("roll", found)


def test_explanations(group: Any, expected: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    from megatile.runtime import failures
    from megatile.runtime.rank_liveness import GroupWait, Limit, Verdict

    watcher = SimpleNamespace(waiting_for_store=0.0)
    monkeypatch.setattr(failures, "WATCHER", watcher)
    found: dict[str, Any] = {}
    errors = ("Timed out waiting 3000ms", "a timeout", "Connection closed by peer\nand more", "", "x" * 300)
    for text in errors:
        for me, peer in ((0, None), (1, 3), (2, 0)):
            for known in (None, Verdict([2], True), Verdict([1, 2], False), Verdict([], True)):
                group.store.held.clear()
                group.me, group.now, watcher.waiting_for_store = me, 100.0, 0.0
                for rank in (0, 2, 4):
                    group.store.set(f"alive/{rank}", "1000")
                wait = GroupWait(group, Limit(90.0, 12.0, "timeout="), verdict=known)
                said = failures.explained(RuntimeError(text), group, peer, "a message", wait)
                name = f"{text[:20]!r} {me} {peer} {known}"
                found[name] = line(
                    said=str(said), ranks=said.ranks, now=group.now, store=digest(group.store.held)
                )
    watcher.waiting_for_store = 100.0
    found["silent"] = str(failures.explained(RuntimeError("x"), group, None, "it", wait))
    watcher.waiting_for_store = 0.0
    monkeypatch.setattr(group.store, "set", lambda *_: (_ for _ in ()).throw(RuntimeError("gone")))
    for known in (None, Verdict([4], False)):
        wait = GroupWait(group, Limit(90.0, None, "timeout="), verdict=known)
        found[f"gone {known}"] = str(failures.explained(RuntimeError("closed"), group, 1, "it", wait))
    expected("explanations", found)
