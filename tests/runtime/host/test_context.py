"""``runtime/host/context.py``: ``with mt.host(machine="ahbm") as torch:``."""

from __future__ import annotations

import megatile as mt
from megatile.runtime.host.context import RuntimeContext


def test_the_active_context_is_held_weakly(torch) -> None:
    with mt.host("ahbm", data=False) as inner:
        assert RuntimeContext.active() is inner
    assert RuntimeContext.active() is None
