"""What is made once and kept between runs: compiled code, in a directory of the user's."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

CACHE = "MEGATILE_CACHE"
"""The environment variable that names the directory for what is kept between runs."""
_DIGEST = 32


def directory() -> Path:
    given = os.environ.get(CACHE)
    if given:
        return Path(given)
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(home) / "megatile"


def key(*parts: str) -> str:
    """A name for what was made of these parts."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


def read(path: Path) -> bytes | None:
    """What was kept, if it is whole: a digest stands behind it."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    return data[:-_DIGEST] if hashlib.sha256(data[:-_DIGEST]).digest() == data[-_DIGEST:] else None


def write(path: Path, data: bytes) -> bool:
    """Keep something, if possible; whoever reads at the same time finds all of it or nothing."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(data + hashlib.sha256(data).digest())
        os.replace(name, path)
    except OSError:
        return False
    return True
