"""Results cached in objects; code cached between runs: whose it may be, code of no use, a full disk."""

from __future__ import annotations

import gc
import os
import re
import resource
import tempfile
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import megatile as mt
from megatile.core.cached import CACHE_VARIABLE, _warn, cached_in_owner, read_cached, write_cached
from megatile.plan.memory import check_memory
from megatile.targets.common.errors import CompileError
from megatile.targets.common.toolchain import Making


class Owner:
    """Something that does not change."""


def test_results_live_in_their_owner() -> None:
    asked: list[tuple[Owner, int]] = []

    @cached_in_owner
    def twice(owner: Owner, number: int = 1) -> int:
        asked.append((owner, number))
        return 2 * number

    one, other = Owner(), Owner()
    assert [twice(one, 3), twice(one, 3), twice(other, 3), twice(one), twice(one)] == [6, 6, 6, 2, 2]
    assert asked == [(one, 3), (other, 3), (one, 1)]
    watched = weakref.ref(other)
    asked.clear()
    del other
    gc.collect()
    assert watched() is None


def test_a_key_tells_results_apart_and_need_not_keep_what_it_is_made_of() -> None:
    owner, machine = Owner(), Owner()
    calls = []

    def check(owner: Owner, machine: Owner) -> None:
        calls.append(1)

    check = cached_in_owner(check, key=weakref.ref)
    check(owner, machine)
    check(owner, machine)
    check(owner, Owner())
    assert len(calls) == 2
    watched = weakref.ref(machine)
    del machine
    gc.collect()
    assert watched() is None


def test_an_error_is_not_cached() -> None:
    answers = iter([ValueError("not yet"), 5])

    @cached_in_owner
    def ask(owner: Owner) -> int:
        found = next(answers)
        if isinstance(found, Exception):
            raise found
        return found

    owner = Owner()
    with pytest.raises(ValueError, match="not yet"):
        ask(owner)
    assert (ask(owner), ask(owner)) == (5, 5)


def test_a_plan_is_sent_without_what_was_found_out_about_it() -> None:
    plan = mt.collective("all_reduce", machine="dgx-h100", nbytes=1024, ranks=4, algorithm="ring")
    check_memory(plan, mt.machine("dgx-h100"))
    assert any(name.startswith("cached ") for name in vars(plan))
    assert not any(name.startswith("cached ") for name in plan.__getstate__())


def test_results_are_cached_by_one_mechanism() -> None:
    """`functools.cached_property` aside, which is a field of its object."""
    package = Path(mt.__file__).parent
    other = re.compile(r"lru_cache|from functools import .*\bcache\b|functools\.cache\b")
    files = (f for f in package.rglob("*.py") if f != package / "core" / "cached.py")
    assert [f.name for f in files if other.search(f.read_text(encoding="utf-8"))] == []


ANSWER = "int answer(void) { return %d; }"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    _warn.cache_clear()
    return tmp_path / "cache"


@contextmanager
def full_disk(nbytes: int = 10) -> Iterator[None]:
    """Files of this process and those it starts end after some bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_what_is_kept_is_the_users_alone(folder: Path) -> None:
    assert write_cached(folder / "x", b"data")
    assert (folder.stat().st_mode & 0o777, (folder / "x").stat().st_mode & 0o777) == (0o700, 0o600)
    assert read_cached(folder / "x") == b"data"


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
@pytest.mark.parametrize("what", ["folder", "file"])
def test_what_others_may_write_is_not_read(folder: Path, mode: int, what: str) -> None:
    write_cached(folder / "x", b"data")
    (folder if what == "folder" else folder / "x").chmod(mode)
    with pytest.warns(
        RuntimeWarning, match=r"the cache '.*' is not used: others may write to it \(try: chmod"
    ):
        assert read_cached(folder / "x") is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_cached(folder / "x") is None, "said once"
        assert write_cached(folder / "y", b"data") is (what == "file")


def test_what_belongs_to_somebody_else_is_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_cached(folder / "x", b"data")
    mine = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    with pytest.warns(RuntimeWarning, match=r"it belongs to another user \(try: set MEGATILE_CACHE"):
        assert read_cached(folder / "x") is None


def test_without_a_cache_code_is_compiled(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.warns(RuntimeWarning, match="is not used"):
        assert Making(ANSWER % 11).load("answer").answer() == 11
    assert list(folder.iterdir()) == []


def test_a_full_disk_leaves_nothing_behind(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.mkdir(mode=0o700)
    with full_disk():
        assert not write_cached(folder / "x", bytes(100))
    assert list(folder.iterdir()) == []
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    for nbytes in (10, 1000):  # not even the source, no library
        with full_disk(nbytes), pytest.raises(CompileError):
            Making(ANSWER % 12).load("answer")
        assert list((tmp_path / "tmp").iterdir()) == list(folder.iterdir()) == []


def test_kept_code_that_does_not_load_is_made_again(folder: Path) -> None:
    for made, code in ((13, b"no library"), (14, None)):
        making = Making(ANSWER % made)
        making.load("answer")
        other = Making("int other(void) { return 1; }")
        other.load("other")
        from megatile.targets.common import toolchain

        toolchain._LIBRARIES.clear()
        making.path.unlink()  # a new file, as another process would find it
        write_cached(making.path, code or read_cached(other.path) or b"")
        again = Making(ANSWER % made)
        assert again.was_cached
        assert again.load("answer").answer() == made
        assert Making(ANSWER % made).load("answer").answer() == made


def test_an_interrupted_write_leaves_no_temporary_file(tmp_path: Path, monkeypatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("megatile.core.cached.os.replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_cached(tmp_path / "x", b"data")
    assert list(tmp_path.iterdir()) == []
