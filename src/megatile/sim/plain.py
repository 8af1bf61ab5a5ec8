"""The engine as plain Python: what runs is the functions of `engine/` without records.

That takes a tenth of a second to find out, so their bytecode is kept on disk like the machine code.
"""

from __future__ import annotations

import ast
import marshal
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import numpy as np

from megatile.core.cached import cache_directory, cache_key, cached, read_cached, write_cached
from megatile.core.version import __version__
from megatile.sim import desugar
from megatile.sim.state import State

_HERE = Path(__file__).parent
_MEANING = ("instructions.py", "state.py", "rows.py", "arena.py", "desugar.py")
"""Modules that decide what the functions of the engine mean, besides their own."""


@cached()
def _sources() -> list[tuple[str, str]]:
    """The modules of the engine: path and text of each."""
    return [(str(path), path.read_text(encoding="utf-8")) for path in sorted(_HERE.glob("engine/*.py"))]


def key(*parts: str) -> str:
    """A name for what is made of the engine's functions, and of other parts."""
    texts = [text for _, text in _sources()] + [
        (_HERE / name).read_text(encoding="utf-8") for name in _MEANING
    ]
    return cache_key(*texts, *parts, __version__)


def functions() -> list[tuple[str, ast.FunctionDef]]:
    """The functions of the engine without records, each with the path of its module."""
    return desugar.functions(_sources())


@cached()
def engine() -> Any:
    """The functions of the engine; each takes the memory of an `Arena` first."""
    path = cache_directory() / f"engine-{key(sys.version)}.bytecode"
    data = read_cached(path)
    if data is None:
        found = [compile(ast.Module([node], []), file, "exec") for file, node in functions()]
        write_cached(path, marshal.dumps(found))
    else:
        found = marshal.loads(data)
    module = ModuleType("megatile.sim.engine without rows")
    module.__dict__.update(load_float=_load_float, jit=_same, inlined=_same, apart=_same)
    for code in found:
        assert isinstance(code, CodeType)
        exec(code, module.__dict__)
    module.__dict__["call_python"] = lambda s: answer(int(s[State.owner]))
    return module


ANSWERING: dict[int, Callable[[], int]] = {}
"""By the number of a simulation that runs, what answers its questions."""


def answer(owner: int) -> int:
    """Answer what the engine asks for a simulation."""
    return ANSWERING[owner]()


def _same(function: Any) -> Any:
    return function


def _load_float(s: Any, at: int) -> Any:
    """A number of the arena that is a float."""
    return s[at : at + 1].view(np.float64)[0]
