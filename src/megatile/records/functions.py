"""Functions over tables as plain Python: what runs is their syntax trees without records.

That takes a tenth of a second to find out, so their bytecode is kept on disk like the machine code.
"""

from __future__ import annotations

import ast
import marshal
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import numpy as np

from megatile.core.cached import cache_directory, cache_key, read_cached, write_cached
from megatile.core.version import __version__
from megatile.records import desugar
from megatile.records.arena import ArenaLayout


class Functions:
    """The functions of a folder's modules that are marked with a decorator.

    ``names`` are the constants and records that they name, and ``meaning`` the files that say what these are;
    ``by_hand`` translates functions to LLVM that are not arithmetic on integers. A function calls Python by
    ``call_python(s)``, which returns what ``answering`` has under the number in the state's ``owner``.
    """

    def __init__(
        self,
        folder: Path,
        names: Mapping[str, Any],
        layout: ArenaLayout,
        meaning: Iterable[Path],
        by_hand: Mapping[str, Callable[[Any], None]],
    ) -> None:
        self.folder, self.names, self.layout = folder, names, layout
        self.meaning = [*meaning, *Path(__file__).parent.glob("*.py")]
        self.by_hand = by_hand
        self.answering: dict[int, Callable[[], int]] = {}

    @cached_property
    def sources(self) -> list[tuple[str, str]]:
        """The modules, and what they all may call (`marks`): path and text of each."""
        paths = [*sorted(self.folder.glob("*.py")), Path(__file__).with_name("marks.py")]
        return [(str(path), path.read_text(encoding="utf-8")) for path in paths]

    def key(self, *parts: str) -> str:
        """Return a name for what is made of the functions, and of other parts."""
        texts = [text for _, text in self.sources]
        texts += [path.read_text(encoding="utf-8") for path in sorted(self.meaning)]
        return cache_key(*texts, *parts, __version__)

    def nodes(self) -> list[tuple[str, ast.FunctionDef]]:
        """Return the functions without records, each with the path of its module."""
        return desugar.functions(self.sources, desugar.Names(self.names, self.layout))

    def answer(self, owner: int) -> int:
        """Answer what a function asks."""
        return self.answering[owner]()

    @cached_property
    def plain(self) -> Any:
        """The functions as a module; each takes the memory of an arena first."""
        path = cache_directory() / f"{self.folder.name}-{self.key(sys.version)}.bytecode"
        data = read_cached(path)
        if data is None:
            found = [compile(ast.Module([node], []), file, "exec") for file, node in self.nodes()]
            write_cached(path, marshal.dumps(found))
        else:
            found = marshal.loads(data)
        module = ModuleType(f"{self.folder.name} without rows")
        module.__dict__.update(load_float=_load_float, jit=_same, inlined=_same, apart=_same)
        for code in found:
            assert isinstance(code, CodeType)
            exec(code, module.__dict__)
        owner = self.layout.state.fields["owner"].at
        module.__dict__["call_python"] = lambda s: self.answer(int(s[owner]))
        return module


def _same(function: Any) -> Any:
    return function


def _load_float(s: Any, at: int) -> Any:
    """Return a number of the arena that is a float."""
    return s[at : at + 1].view(np.float64)[0]
