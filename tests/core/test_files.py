"""Reading what the user names, bounded; writing it whole."""

from __future__ import annotations

import gzip
import os
import threading
import tracemalloc
from pathlib import Path

import pytest

from megatile.core.errors import MegatileError, QuantityError
from megatile.core.files import exists, is_folder, read_file, read_text, whole_file, write_text

LONG = "a" * 300


def test_a_regular_file_is_read_and_unpacked(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"hello")
    assert read_text(file, 5) == "hello"
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"hello"))
    assert read_file(tmp_path / "a.gz", 100, unpack=True) == b"hello"
    assert read_file(tmp_path / "a.gz", 100)[:2] == b"\x1f\x8b"


def test_too_large_is_refused_without_reading_it(tmp_path: Path) -> None:
    file = tmp_path / "sparse"
    with file.open("wb") as out:
        out.truncate(1 << 40)
    with pytest.raises(QuantityError, match="sparse: is larger than 1 MiB"):
        read_file(file, 1 << 20, QuantityError)


def test_memory_grows_with_use_not_with_the_limit(tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(b"x" * 1000)
    tracemalloc.start()
    read_file(tmp_path / "small", 1 << 40)
    (_, most), _ = tracemalloc.get_traced_memory(), tracemalloc.stop()
    assert most < 8 << 20


def test_a_file_that_unpacks_to_much_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bomb").write_bytes(gzip.compress(bytes(50 << 20)))
    with pytest.raises(MegatileError, match="unpacks to more than 1 MiB"):
        read_file(tmp_path / "bomb", 1 << 20, unpack=True)


def test_what_is_not_a_regular_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(MegatileError, match=r"cannot be read: (it is not a regular file|Is a directory)"):
            read_file(path, 100)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_what_is_refused_is_not_left_open(tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    with pytest.raises(MegatileError):
        read_file(tmp_path, 100)
    assert os.listdir("/proc/self/fd") == before


def test_a_file_is_no_folder_to_write_into(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    with pytest.raises(MegatileError, match="cannot write"):
        write_text(tmp_path / "a" / "b", "x")


@pytest.mark.parametrize("name", [LONG, "a\0b", "missing", "missing/x"])
def test_names_that_no_file_has(tmp_path: Path, name: str) -> None:
    assert not exists(tmp_path / name)
    assert not is_folder(tmp_path / name)
    with pytest.raises(MegatileError, match="cannot be read: "):
        read_file(tmp_path / name, 100)


def test_bytes_that_are_not_text(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"ab\xff")
    with pytest.raises(MegatileError, match="byte 2 is not UTF-8"):
        read_text(tmp_path / "b", 100)


def test_what_is_interrupted_leaves_the_old_file(tmp_path: Path) -> None:
    file = write_text(tmp_path / "a", "old")

    def interrupted() -> None:
        with whole_file(file) as out:
            out.write(b"new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("name", [LONG, "a\0b", "missing/x", "folder"])
def test_what_cannot_be_written(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(MegatileError, match="cannot write "):
        write_text(tmp_path / name, "x")
    assert list(tmp_path.iterdir()) == [tmp_path / "folder"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("name", ["full.json", "full.json.gz"])
def test_a_full_disk_is_one_sentence_and_a_device_stays_one(tmp_path: Path, name: str) -> None:
    (tmp_path / name).symlink_to("/dev/full")
    with pytest.raises(MegatileError, match=r"cannot write .*No space left on device"):
        write_text(tmp_path / name, "x" * 100)
    assert not Path("/dev/full").is_file()


def test_a_pipe_can_be_written_to(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    heard: list[str] = []
    listener = threading.Thread(target=lambda: heard.append((tmp_path / "pipe").read_text()))
    listener.start()
    write_text(tmp_path / "pipe", "hello")
    listener.join(10)
    assert heard == ["hello"]
