"""What is made once and kept between runs: compiled code, in a directory of the user's."""

from __future__ import annotations

import hashlib
import os
import tempfile
import warnings
from functools import cache
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


def own(path: Path) -> bool:
    """Return whether a folder or file is the user's and nobody else may write to it; if not, warn once."""
    state = os.stat(path)
    if not hasattr(os, "geteuid") or (state.st_uid == os.geteuid() and not state.st_mode & 0o022):
        return True
    _warn(str(path), state.st_uid == os.geteuid())
    return False


@cache
def _warn(path: str, mine: bool) -> None:
    reason = "others may write to it" if mine else "it belongs to another user"
    advice = f"chmod go-w '{path}', or remove it" if mine else f"set {CACHE} to a folder of your own"
    warnings.warn(f"the cache '{path}' is not used: {reason} (try: {advice})", RuntimeWarning, stacklevel=4)


def read(path: Path) -> bytes | None:
    """What was kept, if it is whole (a digest stands behind it) and nobody else can have written it."""
    try:
        if not (own(path.parent) and own(path)):
            return None
        data = path.read_bytes()
    except OSError:
        return None
    return data[:-_DIGEST] if hashlib.sha256(data[:-_DIGEST]).digest() == data[-_DIGEST:] else None


def write(path: Path, data: bytes) -> bool:
    """Keep something, if possible; whoever reads at the same time finds all of it or nothing."""
    name = ""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not own(path.parent):
            return False
        handle, name = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(data + hashlib.sha256(data).digest())
        os.replace(name, path)
    except OSError:
        if name:
            Path(name).unlink(missing_ok=True)
        return False
    return True
