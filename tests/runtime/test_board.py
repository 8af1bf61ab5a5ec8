"""``runtime/board.py``: what ranks on one computer show each other."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from megatile.runtime import board as module
from megatile.runtime.board import BITS, Board, make_board


def two_boards() -> tuple[Board, Board]:
    """Those of two ranks, here in one process."""
    files = [module._own_file() for _ in range(2)]
    for path, _ in files:
        Path(path).unlink()
    own = [file for _, file in files]
    return Board(0, own), Board(1, [os.dup(file) for file in own])


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_ranks_see_whether_all_show_the_same_number_also_after_the_count_begins_anew() -> None:
    here, there = two_boards()
    here._count = there._count = 2**16 - 5
    for turn in range(12):
        mine, theirs = turn, turn if turn % 3 else turn + 1
        shown = here.show(mine)
        assert not shown.same()
        with pytest.raises(RuntimeError, match="timed out"):
            shown.wait(timedelta(milliseconds=2))
        answer = there.show(theirs)
        for one in (answer, shown):
            one.wait()
            assert one.same() == (mine == theirs)


def test_a_rank_may_be_one_number_ahead() -> None:
    here, there = two_boards()
    first, theirs = here.show(7), there.show(7)
    theirs.wait()
    assert theirs.same()
    there.show(2**BITS - 1)
    first.wait()
    assert first.same()


def test_a_rank_that_comes_later_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Board, "ended", lambda *_: False)  # both lock their files in this process
    here, there = two_boards()
    shown = here.show(3)
    late = threading.Timer(0.1, lambda: there.show(3))
    late.start()
    shown.wait(timedelta(seconds=20))
    assert shown.same()
    late.join()


def in_processes(ranks: int, change: dict[int, dict[str, Any]] | None = None, work: Any = None) -> list[str]:
    """What each of the ranks finds, each in a fork: ``no board`` or what ``work`` returns."""
    down, up = [os.pipe() for _ in range(ranks)], os.pipe()
    children = []
    for rank in range(ranks):
        child = os.fork()
        if not child:
            os._exit(_rank(rank, ranks, down, up[1], (change or {}).get(rank, {}), work))
        children.append(child)
    os.close(up[1])
    found = [""] * ranks
    with os.fdopen(up[0]) as answers:
        waiting: list[str] = []
        for line in answers:
            kind, rank, said = line.rstrip("\n").split(" ", 2)
            if kind == "found":
                found[int(rank)] = said
                continue
            waiting.append(f"{rank} {said}")
            if len(waiting) == ranks:
                for _, sink in down:
                    os.write(sink, ("\n".join(waiting) + "\n").encode())
                waiting = []
    for child in children:
        os.waitpid(child, 0)
    for pipe in (end for ends in down for end in ends):
        os.close(pipe)
    return found


def _rank(rank: int, ranks: int, down: Any, sink: int, change: dict[str, Any], work: Any) -> int:
    with os.fdopen(down[rank][0]) as source:

        def exchange(record: dict[str, Any]) -> list[dict[str, Any]]:
            said = {**record, **{name: value for name, value in change.items() if name in record}}
            os.write(sink, f"said {rank} {json.dumps(said)}\n".encode())
            lines = [source.readline().split(" ", 1) for _ in range(ranks)]
            by_rank = {int(number): json.loads(text) for number, text in lines}
            return [by_rank[number] for number in range(ranks)]

        board = make_board(rank, ranks, exchange)
        said = "no board" if board is None else work(board, rank) if work else "board"
        os.write(sink, f"found {rank} {said}\n".encode())
    return 0


def _boards_on_disk() -> set[Path]:
    return set(Path("/dev/shm").glob("megatile-board-*"))


def test_processes_share_a_board_and_leave_no_file() -> None:
    def work(board: Board, rank: int) -> str:
        numbers = []
        for turn in range(50):
            shown = board.show(turn if turn % 5 else turn + rank)
            shown.wait(timedelta(seconds=20))
            numbers.append(shown.same())
        return str(numbers.count(True))

    before = _boards_on_disk()
    assert in_processes(3, work=work) == ["40"] * 3
    assert _boards_on_disk() <= before


@pytest.mark.parametrize(
    "change", [{"computer": "another"}, {"board": "/nowhere/board"}, {"board": None}, {"open": False}]
)
def test_all_ranks_do_without_where_one_cannot(change: dict[str, Any]) -> None:
    before, files = _boards_on_disk(), open_files()
    assert in_processes(3, {1: change}) == ["no board"] * 3
    assert _boards_on_disk() <= before
    assert open_files() == files


def test_a_rank_that_has_ended_is_noticed() -> None:
    def work(board: Board, rank: int) -> str:
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        begin = time.monotonic()
        try:
            board.show(1).wait(timedelta(seconds=60))
        except RuntimeError as error:
            return f"{error} {time.monotonic() - begin < 5}"
        return "waited"

    assert in_processes(2, work=work) == ["a rank has ended True", ""]


def test_one_rank_threads_and_many_ranks_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(_: dict[str, Any]) -> list[dict[str, Any]]:
        raise AssertionError

    assert make_board(0, 1, never) is None
    assert make_board(0, module.MAX_RANKS + 1, never) is None
    before, files = _boards_on_disk(), open_files()
    assert make_board(0, 2, lambda record: [record, record]) is None
    monkeypatch.setattr(module, "fcntl", None)
    assert make_board(0, 2, lambda record: [record, record]) is None
    assert (_boards_on_disk() - before, open_files()) == (set(), files)


def test_a_rank_may_end_as_soon_as_it_has_shown_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = two_boards()

    def ends(*_: object) -> bool:
        there.show(4)
        return True

    monkeypatch.setattr(Board, "ended", ends)
    shown = here.show(4)
    shown.wait(timedelta(seconds=20))
    assert shown.same()


def test_a_board_closes_its_files() -> None:
    before = open_files()
    here, there = two_boards()
    assert open_files() > before
    del here, there
    assert open_files() == before
