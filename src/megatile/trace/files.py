"""Opening trace files that nobody vouches for: gzip or plain, truncated or not text at all."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import Any

from megatile.trace.events import TraceError

MAX_BYTES = 4 << 30
"""Refuse files that unpack to more than this: a small gzip file can hide terabytes."""


def read_text(path: Path, limit: int = MAX_BYTES) -> str:
    """The text of a plain or gzipped file, or a `TraceError` that says what is wrong with it."""
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            data = gzip.GzipFile(fileobj=raw).read(limit + 1) if packed else raw.read(limit + 1)
    except FileNotFoundError:
        raise TraceError(f"there is no trace file '{path}'") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise TraceError(
            f"{path.name} is a truncated or damaged gzip file ({error})", advice="write the trace again"
        ) from None
    except OSError as error:
        raise TraceError(f"'{path}' cannot be read: {error.strerror or error}") from None
    if len(data) > limit:
        raise TraceError(f"{path.name} unpacks to more than {limit} bytes")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise TraceError(f"{path.name} is not a text file (byte {error.start})") from None


def table_of_names(file: str, table: str, names: Any) -> tuple[str, ...]:
    """A table of names out of a file's header, checked."""
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise TraceError(f"{file}: the header's '{table}' is not a list of names")
    return tuple(names)
