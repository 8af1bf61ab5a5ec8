"""``MEGATILE_AS_TILELANG=1 python their_example.py``: ``import tilelang`` gives megatile's TileLang spelling.

The modules below answer the imports that TileLang programs make; torch's GPU is the CPU from then on.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any

from megatile.core.errors import MegatileError
from megatile.language.tile.errors import ProgramError

_ROOTS = ("tilelang", "tvm", "tilescale", "pynvshmem")


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds ``tilelang`` (and the little of ``tvm`` that its programs name) in megatile."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.split(".")[0] not in _ROOTS:
            return None
        if name not in modules():
            _MODULES[name] = _module(name, {})
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> ModuleType:
        return modules()[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        """The modules are complete."""


def install() -> None:
    """Answer ``import tilelang`` from now on."""
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, Finder())


STARTUP = Path(__file__).with_name("megatile_as_tilelang.pth")
"""The line that makes Python look at the variable when it starts; it is installed with the package."""


def write_startup_file(folder: str | None = None) -> Path:
    """Make ``MEGATILE_AS_TILELANG=1`` work where the package runs from its sources."""
    path = Path(folder or sysconfig.get_path("purelib"), STARTUP.name)
    try:
        path.write_bytes(STARTUP.read_bytes())
    except OSError as error:
        raise MegatileError(
            f"'{path}' cannot be written: {error.strerror}",
            advice="python -m megatile.tilelang FILE.py works too",
        ) from None
    return path


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
        cpu_torch.install_cuda_python()
    return _MODULES


def _module(name: str, contents: Any) -> ModuleType:
    module = ModuleType(name)
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


class Missing:
    """A name of TileLang that megatile has not; it may be imported, and complains when it is used."""

    def __init__(self, name: str):
        self.name = name

    def __getattr__(self, word: str) -> Missing:
        if word.startswith("__"):
            raise AttributeError(word)
        return Missing(f"{self.name}.{word}")

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise ProgramError(
            f"{self.name} has no counterpart in megatile", advice="docs/tilelang.md lists what there is"
        )

    def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
        return (object,)

    def __or__(self, other: Any) -> Any:
        return self

    __ror__ = __or__


def _missing(module: str, word: str) -> Any:
    if word.startswith("__"):
        raise AttributeError(f"{module}.{word}")
    return Missing(f"{module}.{word}")
