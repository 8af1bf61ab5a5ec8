"""``core/registry.py``: a table of named things that others may add to, with advice when a name is
missing."""

from __future__ import annotations

import pytest

from megatile.core.errors import MegatileError, Place
from megatile.core.registry import Registry, UnknownNameError


def test_registries():
    things: Registry[int] = Registry("things")
    things.register("one")(1)
    assert (things["one"], list(things), len(things), "one" in things) == (1, ["one"], 1, True)
    with pytest.raises(MegatileError, match="'one' is already among the things"):
        things.add("one", 2)
    with pytest.raises(UnknownNameError, match=r"f.py:3: 'ane' is not among the things.*did you mean 'one'"):
        things.find("ane", Place("f.py", 3))
