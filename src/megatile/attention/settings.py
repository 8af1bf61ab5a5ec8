"""Environment variables of attention, listed and checked in one place.

| variable | values |
|---|---|
| MEGATILE_ATTENTION_CHECK | 0: do not compare arguments between ranks, nor insist on a known layout |
| MEGATILE_ATTENTION_DEBUG | 1: compare checksums of keys in every call, refuse ambiguous layouts |
| MEGATILE_ATTENTION_TRANSPORT | how exchanges are sent, the same on every rank |
| MEGATILE_ATTENTION_MERGE | how results are merged |
| MEGATILE_ATTENTION_TIMEOUT | seconds to wait for other ranks (``runtime`` reads it) |
"""

from __future__ import annotations

import os

from megatile.attention.errors import AttentionError
from megatile.core.errors import did_you_mean
from megatile.runtime.rank_liveness import TIMEOUT_VARIABLE, timeout_from_environment

PREFIX = "MEGATILE_ATTENTION_"
VALUES: dict[str, tuple[str, ...]] = {
    "CHECK": ("0", "1"),
    "DEBUG": ("0", "1"),
    "TRANSPORT": ("point_to_point", "all_to_all_single", "all_to_all"),
    "MERGE": ("fused", "torch"),
}


def setting(name: str, default: str = "") -> str:
    """Return the value of a variable, one of those that it may have."""
    value = os.environ.get(PREFIX + name, "") or default
    if value and value not in VALUES[name]:
        raise AttentionError(
            f"{PREFIX}{name} is one of {', '.join(VALUES[name])}, got '{value}'",
            advice=did_you_mean(value, VALUES[name]),
        )
    return value


def problem_of_settings() -> str | None:
    """Return what is wrong with the variables of this process, or None."""
    known = [*(PREFIX + name for name in VALUES), TIMEOUT_VARIABLE]
    for name in os.environ:
        if name.startswith(PREFIX) and name not in known:
            return f"there is no environment variable {name} ({did_you_mean(name, known)})"
    try:
        for name in VALUES:
            setting(name)
    except AttentionError as error:
        return str(error)
    seconds = os.environ.get(TIMEOUT_VARIABLE)
    if seconds and timeout_from_environment() is None:
        return f"{TIMEOUT_VARIABLE} is a number of seconds, got '{seconds}'"
    return None
