"""What files that test replay share."""

from __future__ import annotations


def double(x, tl):
    tl.store(x, tl.load(x, shape=(4,), dtype="f16") * 2.0)
