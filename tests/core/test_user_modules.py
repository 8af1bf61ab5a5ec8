"""``core/user_modules.py``: a user's Python file as a module that can import what lies beside it."""

import sys
from pathlib import Path

import pytest

from megatile.core.errors import MegatileError
from megatile.core.user_modules import user_module

KERNEL = """
from __future__ import annotations
from dataclasses import dataclass
from sizes_of_mine import ROWS

@dataclass
class Tile:
    rows: int = ROWS
"""


def test_a_file_has_dataclasses_and_what_lies_beside_it_and_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "sizes_of_mine.py").write_text("ROWS = 64")
    (tmp_path / "kernel_of_mine.py").write_text(KERNEL)
    path, known = list(sys.path), set(sys.modules)
    with user_module(tmp_path / "kernel_of_mine.py") as module:
        assert module.Tile().rows == 64
        assert {"kernel_of_mine", "sizes_of_mine"} <= sys.modules.keys()
    assert sys.path == path
    assert not {"kernel_of_mine", "sizes_of_mine"} & (sys.modules.keys() - known)


def test_a_file_named_like_a_module_in_use_does_not_replace_it(tmp_path: Path) -> None:
    import json

    (tmp_path / "json.py").write_text("dumps = None")
    with user_module(tmp_path / "json.py") as module:
        assert module.dumps is None
        assert sys.modules["json"] is json


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = (", r"mine.py:1: '\(' was never closed"),
        ("x = 1\ny = x / 0", "mine.py:2: ZeroDivisionError: division"),
    ],
)
def test_an_exception_of_the_file_names_its_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(MegatileError, match=message), user_module(tmp_path / "mine.py"):
        pass
    assert "mine" not in sys.modules
