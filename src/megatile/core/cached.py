"""Cached results: of functions by their arguments, with an object as long as it lives, and on disk.

@cached(most=256)                          a function of hashable arguments, its latest 256 results
@cached_in_owner                           a method, or a function of a machine or plan: results live in it
read_cached(cache_directory() / name)      bytes between runs, in a directory of the user's
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable, Hashable
from functools import _lru_cache_wrapper, lru_cache, wraps
from pathlib import Path
from typing import Any, TypeVar

CACHE_VARIABLE = "MEGATILE_CACHE"
"""The environment variable that names the directory of the cache on disk."""
_DIGEST_BYTES = 32
"""Bytes of the SHA-256 after a cached file's contents."""
_UNKNOWN = object()
"""What stands for a result that is not cached."""
Function = TypeVar("Function", bound=Callable[..., Any])
Result = TypeVar("Result")


def cached(most: int | None = None) -> Callable[[Callable[..., Result]], _lru_cache_wrapper[Result]]:
    """Cache the results of a function by its arguments: the latest ``most`` of them, or all."""
    return lru_cache(maxsize=most)


def cached_in_owner(function: Function, key: Callable[..., Hashable] | None = None) -> Function:
    """Cache the results of a function in its first argument, an object that does not change, by the others
    (positional), or by ``key`` of the others."""
    name = f"cached {function.__module__}.{function.__qualname__}"

    @wraps(function)
    def known(owner: Any, *others: Any) -> Any:
        results = owner.__dict__.get(name)
        if results is None:
            results = owner.__dict__[name] = {}
        asked = others if key is None else key(*others)
        found = results.get(asked, _UNKNOWN)
        if found is _UNKNOWN:
            found = results[asked] = function(owner, *others)
        return found

    known.key = name  # type: ignore[attr-defined]
    return known  # type: ignore[return-value]


# --- on disk --------------------------------------------------------------------------------------


def cache_directory() -> Path:
    given = os.environ.get(CACHE_VARIABLE)
    if given:
        return Path(given)
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(home) / "megatile"


def cache_key(*parts: str) -> str:
    """Return a name for what was made of these parts."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


def own(path: Path) -> bool:
    """Return whether a folder or file is the user's and nobody else may write to it; if not, warn once."""
    state = os.stat(path)
    if not hasattr(os, "geteuid") or (state.st_uid == os.geteuid() and not state.st_mode & 0o022):
        return True
    _warn(str(path), state.st_uid == os.geteuid())
    return False


@cached()
def _warn(path: str, mine: bool) -> None:
    reason = "others may write to it" if mine else "it belongs to another user"
    advice = f"chmod go-w '{path}', or remove it" if mine else f"set {CACHE_VARIABLE} to a folder of your own"
    warnings.warn(f"the cache '{path}' is not used: {reason} (try: {advice})", RuntimeWarning, stacklevel=4)


def read_cached(path: Path) -> bytes | None:
    """Return what was written, if it is whole (a digest follows it) and nobody else can have written it."""
    try:
        if not (own(path.parent) and own(path)):
            return None
        data = path.read_bytes()
    except OSError:
        return None
    return (
        data[:-_DIGEST_BYTES]
        if hashlib.sha256(data[:-_DIGEST_BYTES]).digest() == data[-_DIGEST_BYTES:]
        else None
    )


def write_cached(path: Path, data: bytes) -> bool:
    """Write to the cache and return whether that was possible; readers find all of it or nothing."""
    import tempfile

    temporary = None
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not own(path.parent):
            return False
        handle, name = tempfile.mkstemp(dir=path.parent)
        temporary = Path(name)
        with os.fdopen(handle, "wb") as file:
            file.write(data + hashlib.sha256(data).digest())
        os.replace(temporary, path)
        temporary = None
    except OSError:
        return False
    finally:  # whatever happened, Ctrl-C included
        if temporary is not None:
            temporary.unlink(missing_ok=True)
    return True
