"""Files of the user: read with a bound and only if regular, written whole or not at all."""

from __future__ import annotations

import gzip
import json
import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from itertools import count, islice
from pathlib import Path
from typing import Any, BinaryIO, cast

from megatile.core.errors import MegatileError, Place
from megatile.core.quantities import format_bytes

_BLOCK = 1 << 20
"""Bytes that are unpacked at a time."""
MAX_UNPACKED_RATIO = 100
"""A gzip file may unpack to so many times its size (traces do to 20 times), or to `SMALL_UNPACKED` bytes."""
SMALL_UNPACKED = 16 << 20
"""Bytes that any gzip file may unpack to."""
MAX_MARKS_UNCHECKED = 100_000
"""Marks (and characters) of a text that are never too many."""
_BYTES_PER_MARK = {"{": 12, "[": 6, ",": 3}
"""Files that we write have more bytes than these for each such mark, which takes up to 200 of memory."""
MAX_NAMES = 10_000
"""Of a folder, in which a name like that of a missing file is looked for."""
_numbers = count()


def exists(path: str | Path) -> bool:
    """Return whether there is such a file; a name that no file can have (300 letters, a NUL) has none."""
    try:
        return Path(path).is_file()
    except (OSError, ValueError):
        return False


def is_folder(path: str | Path) -> bool:
    """Return whether there is such a folder."""
    try:
        return Path(path).is_dir()
    except (OSError, ValueError):
        return False


def is_inside(path: str | Path, folder: str | Path) -> bool:
    """Return whether a path stays in a folder when all links are followed."""
    try:
        return Path(path).resolve().is_relative_to(Path(folder).resolve())
    except (OSError, ValueError, RuntimeError):  # no name of a file, a loop of links
        return False


def _nearby(path: Path) -> str:
    """Return advice for a file that does not exist: the file beside it whose name is nearest."""
    try:
        with os.scandir(path.parent) as entries:
            names = [entry.name for entry in islice(entries, MAX_NAMES)]
    except OSError:
        return f"there is no folder '{path.parent}'"
    near = get_close_matches(path.name, names, n=1, cutoff=0.8)
    return f"did you mean '{path.with_name(near[0])}'?" if near else "check the name and the folder"


def open_at_once(path: str | Path) -> BinaryIO:
    """Open a file to read; a pipe is not waited for."""
    number = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    try:
        return os.fdopen(number, "rb")
    except BaseException:
        os.close(number)  # of a folder, which `fdopen` refuses and leaves open
        raise


def read_file(
    path: str | Path,
    limit: int,
    error: type[MegatileError] = MegatileError,
    advice: str | None = None,
    *,
    unpack: bool = False,
) -> bytes:
    """Return the bytes of a regular file of at most ``limit`` bytes; with ``unpack``, those a gzip file
    holds.

    Devices, pipes and folders are refused before a byte is read, and memory grows only with what is there.
    """
    place = Place(str(path))
    try:
        with open_at_once(path) as raw:
            state = os.fstat(raw.fileno())
            if not stat.S_ISREG(state.st_mode):
                raise error("cannot be read: it is not a regular file", place=place, advice=advice)
            if state.st_size > limit:
                raise error(f"is larger than {format_bytes(limit)}", place=place, advice=advice)
            packed = unpack and raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            source = cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if packed else raw
            if packed:
                limit = min(limit, max(SMALL_UNPACKED, MAX_UNPACKED_RATIO * state.st_size))
            found = bytearray()
            while block := source.read(_BLOCK):
                found += block
                if len(found) > limit:
                    raise error(f"unpacks to more than {format_bytes(limit)}", place=place, advice=advice)
    except (EOFError, gzip.BadGzipFile, zlib.error) as problem:
        raise error(f"is a truncated or damaged gzip file ({problem})", place=place, advice=advice) from None
    except (OSError, ValueError) as problem:  # ValueError: a NUL in the name
        if isinstance(problem, MegatileError):
            raise
        reason = getattr(problem, "strerror", None) or str(problem)
        if isinstance(problem, FileNotFoundError) and advice is None:
            advice = _nearby(Path(path))
        raise error(f"cannot be read: {reason}", place=place, advice=advice) from None
    return bytes(found)


def read_text(
    path: str | Path,
    limit: int,
    error: type[MegatileError] = MegatileError,
    advice: str | None = None,
    *,
    unpack: bool = False,
) -> str:
    """Return the same as text."""
    try:
        return read_file(path, limit, error, advice, unpack=unpack).decode("utf-8")
    except UnicodeDecodeError as problem:
        message = f"is not a text file (byte {problem.start} is not UTF-8)"
        raise error(message, place=Place(str(path)), advice=advice) from None


def parse_json(text: str, max_objects: int | None = None, **options: Any) -> Any:
    """Return the value of a JSON text; a `ValueError` refuses one that would take far more memory."""
    if len(text) > MAX_MARKS_UNCHECKED:
        for mark, least in _BYTES_PER_MARK.items():
            if text.count(mark) > MAX_MARKS_UNCHECKED + len(text) // least:
                raise ValueError(f"too many empty values: {text.count(mark)} '{mark}' in {len(text)} bytes")
        if max_objects is not None and text.count("{") > max_objects:
            raise ValueError(f"more than {max_objects} objects")
    try:
        return json.loads(text, **options)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


@contextmanager
def whole_file(path: str | Path, error: type[MegatileError] = MegatileError) -> Iterator[BinaryIO]:
    """A file to write into: under its name stands the old one until the new one is complete.

    A name that ends in ``.gz`` is compressed. A full disk is one error, and nothing is left behind.
    """
    beside: Path | None = None
    try:
        target = Path(path).resolve()
        if target.exists() and not target.is_file():
            opened = target.open("wb")  # a device or pipe stays what it is; a folder is an error
        else:
            beside = target.with_name(f".megatile-{os.getpid()}-{next(_numbers)}.part")
            opened = beside.open("xb")
        with opened as raw:
            if target.suffix == ".gz":
                # Level 1 is five times faster than the default; no time stamp: equal content, equal files.
                with gzip.GzipFile(filename="", mode="wb", fileobj=raw, compresslevel=1, mtime=0) as packed:
                    yield cast(BinaryIO, packed)
            else:
                yield raw
        if beside is not None:
            os.replace(beside, target)
    except (OSError, ValueError) as problem:
        if isinstance(problem, MegatileError):
            raise
        reason = getattr(problem, "strerror", None) or str(problem)
        advice = "choose a writable folder with free space"
        raise error(f"cannot write '{path}': {reason}", advice=advice) from None
    finally:
        if beside is not None:
            with suppress(OSError):  # it has its name, or there is no such folder
                beside.unlink()


def write_text(path: str | Path, text: str, error: type[MegatileError] = MegatileError) -> Path:
    """Write a text as a whole."""
    with whole_file(path, error) as out:
        out.write(text.encode("utf-8"))
    return Path(path)
