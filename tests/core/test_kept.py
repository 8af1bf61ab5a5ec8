"""Code that is kept between runs: whose it may be, code of no use, a full disk."""

from __future__ import annotations

import os
import resource
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from megatile.core import kept
from megatile.targets.common.errors import CompileError
from megatile.targets.common.toolchain import Making

ANSWER = "int answer(void) { return %d; }"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(kept.CACHE, str(tmp_path / "cache"))
    kept._warn.cache_clear()
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
    assert kept.write(folder / "x", b"data")
    assert (folder.stat().st_mode & 0o777, (folder / "x").stat().st_mode & 0o777) == (0o700, 0o600)
    assert kept.read(folder / "x") == b"data"


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
@pytest.mark.parametrize("what", ["folder", "file"])
def test_what_others_may_write_is_not_read(folder: Path, mode: int, what: str) -> None:
    kept.write(folder / "x", b"data")
    (folder if what == "folder" else folder / "x").chmod(mode)
    with pytest.warns(
        RuntimeWarning, match=r"the cache '.*' is not used: others may write to it \(try: chmod"
    ):
        assert kept.read(folder / "x") is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert kept.read(folder / "x") is None, "said once"
        assert kept.write(folder / "y", b"data") is (what == "file")


def test_what_belongs_to_somebody_else_is_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept.write(folder / "x", b"data")
    mine = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    with pytest.warns(RuntimeWarning, match=r"it belongs to another user \(try: set MEGATILE_CACHE"):
        assert kept.read(folder / "x") is None


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
        assert not kept.write(folder / "x", bytes(100))
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
        kept.write(making.path, code or kept.read(other.path) or b"")
        again = Making(ANSWER % made)
        assert again.was_kept
        assert again.load("answer").answer() == made
        assert Making(ANSWER % made).load("answer").answer() == made
