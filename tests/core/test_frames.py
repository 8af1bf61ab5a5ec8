"""``core/frames.py``: where in the user's own files a call comes from, and the lines of those files."""

import pytest

import megatile.language as T
from megatile.language.tile.errors import ProgramError


def test_operations_outside_a_kernel() -> None:
    with pytest.raises(ProgramError, match=r"a tile operation outside a kernel.*@T.program"):
        T.alloc((4,), "f32")
