"""``MEGATILE_AS_TILELANG=1 python their_example.py``: ``import tilelang`` gives megatile's TileLang spelling.

The modules below answer the imports that TileLang programs make; torch's GPU is the CPU from then on.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from types import ModuleType
from typing import Any

_ROOTS = ("tilelang", "tvm", "tilescale")


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds ``tilelang`` (and the little of ``tvm`` that its programs name) in megatile."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.split(".")[0] in _ROOTS and name in modules():
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> ModuleType:
        return modules()[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        """The modules are complete."""


def install() -> None:
    """Answer ``import tilelang`` from now on."""
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, Finder())


_MODULES: dict[str, ModuleType] = {}


def modules() -> dict[str, ModuleType]:
    """The modules by their dotted names; made at the first import."""
    if not _MODULES:
        from megatile.compat.tilelang import cpu_torch
        from megatile.compat.tilelang.modules import CONTENTS

        for name, contents in CONTENTS.items():
            _MODULES[name] = _module(name, contents)
        for name, module in _MODULES.items():
            parent, _, child = name.rpartition(".")
            if parent:
                setattr(_MODULES[parent], child, module)
        cpu_torch.install()
    return _MODULES


def _module(name: str, contents: Any) -> ModuleType:
    module = ModuleType(name)
    module.__path__ = []
    module.__file__ = f"<megatile as {name}>"
    if isinstance(contents, ModuleType):
        names = getattr(contents, "__all__", None) or [n for n in vars(contents) if not n.startswith("__")]
        contents = {n: getattr(contents, n) for n in names} | {"__getattr__": getattr(contents, "__getattr__", None)}
    for key, value in contents.items():
        if value is not None and key not in ("__builtins__", "__doc__", "__cached__"):
            setattr(module, key, value)
    if "__getattr__" not in vars(module):
        module.__getattr__ = lambda word: _missing(name, word)  # type: ignore[method-assign]
    return module


def _missing(module: str, word: str) -> Any:
    raise AttributeError(f"{module}.{word} is not in megatile's TileLang spelling")
