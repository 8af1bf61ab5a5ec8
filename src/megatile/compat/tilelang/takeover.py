"""``import tilelang`` answered by megatile while a file of TileLang kernels runs.

The modules below answer the imports that TileLang programs make; torch's GPU is the CPU meanwhile.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from megatile.compat.tilelang import cpu_torch
from megatile.compat.tilelang.cpu_torch import Comparisons

_ROOTS = ("tilelang", "tvm", "tvm_ffi", "tilescale", "pynvshmem")


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds ``tilelang`` (and the little of ``tvm`` that its programs name) in megatile."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if not _answered(name):
            return None
        if name not in modules():
            _MODULES[name] = _module(name, {})
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> ModuleType:
        return modules()[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        """The modules are complete."""


@contextmanager
def installed() -> Iterator[Comparisons]:
    """Answer ``import tilelang`` while the block runs; torch and ``sys.modules`` are restored after it."""
    with cpu_torch.on_cpu() as comparisons:
        before = {name: sys.modules.pop(name) for name in list(sys.modules) if _answered(name)}
        finder = Finder()
        sys.meta_path.insert(0, finder)
        try:
            yield comparisons
        finally:
            sys.meta_path.remove(finder)
            for name in [name for name in sys.modules if _answered(name)]:
                del sys.modules[name]
            sys.modules.update(before)


def _answered(name: str) -> bool:
    return name.split(".")[0] in _ROOTS


_MODULES: dict[str, ModuleType] = {}


def modules() -> dict[str, ModuleType]:
    """The modules by their dotted names; made at the first import."""
    if not _MODULES:
        from megatile.compat.tilelang.modules import CONTENTS

        for name, contents in CONTENTS.items():
            _MODULES[name] = _module(name, contents)
        for name, module in _MODULES.items():
            parent, _, child = name.rpartition(".")
            if parent:
                setattr(_MODULES[parent], child, module)
    return _MODULES


class _Module(ModuleType):
    """A module whose functions stay when a module of their name is imported: ``tilelang.jit`` is both."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not isinstance(value, ModuleType) or isinstance(vars(self).get(name, value), ModuleType):
            super().__setattr__(name, value)


def _module(name: str, contents: Any) -> ModuleType:
    module = _Module(name)
    module.__path__ = []
    module.__file__ = f"<megatile as {name}>"
    if isinstance(contents, ModuleType):
        names = getattr(contents, "__all__", None) or [n for n in vars(contents) if not n.startswith("__")]
        contents = {n: getattr(contents, n) for n in names} | {
            "__getattr__": getattr(contents, "__getattr__", None)
        }
    for key, value in contents.items():
        if value is not None and key not in ("__builtins__", "__doc__", "__cached__"):
            setattr(module, key, value)
    if "__getattr__" not in vars(module):
        module.__getattr__ = lambda word: _missing(name, word)  # type: ignore[method-assign]
    return module


def _missing(module: str, word: str) -> Any:
    from megatile.compat.tilelang.kernel import NoCounterpartError
    from megatile.compat.tilelang.modules import Missing

    if word.startswith("__"):
        raise NoCounterpartError(
            f"{module}.{word} has no counterpart in megatile", advice="use the names of the module"
        )

    return Missing(f"{module}.{word}")
