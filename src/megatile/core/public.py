"""Public names that are loaded when first used; a folder above may add to a module below.

A module says what it has, and asks for the rest:

    __getattr__ = PublicNames(__name__, {"make_schedule": "megatile.attention.schedules"})

``megatile`` itself, which lies outside the stack of folders, names the modules that add to others
(:func:`extend`): other people's names and formats stay in ``compat``, and nothing below imports it.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from importlib import import_module
from sys import modules
from types import ModuleType
from typing import Any

_ADDED: dict[str, list[str]] = {}


def extend(module: str, extension: str) -> None:
    """Let the module ``extension`` add to ``module``: to a public one, its ``NAMES`` (name → module)."""
    if extension not in _ADDED.setdefault(module, []):
        _ADDED[module].append(extension)


def extensions(module: str) -> Iterator[Any]:
    """Return the modules that add to ``module``, each loaded when it is its turn."""
    return map(import_module, _ADDED.get(module, ()))


def extension(module: str) -> Any:
    """Return the one module that adds to ``module``."""
    return next(extensions(module))


class PublicNames:
    """A module's ``__getattr__``: ``places`` says which module has which name."""

    def __init__(self, module: str, places: Mapping[str, str]):
        self.module, self._own = module, places
        modules[module].__class__ = _module_class(places)

    def places(self) -> dict[str, str]:
        """Return all names, with those that others add."""
        added = [extension.NAMES for extension in extensions(self.module)]
        return {name: place for names in (*added, self._own) for name, place in names.items()}

    def __call__(self, name: str) -> Any:
        if name == "__all__":
            return sorted(self.places())
        place = self._own.get(name) or (None if name.startswith("__") else self.places().get(name))
        if place is None:
            said = f"module '{self.module}' has no attribute '{name}'"
            raise AttributeError(said, name=name, obj=modules[self.module])
        value = getattr(import_module(place), name)
        setattr(modules[self.module], name, value)
        return value


def _module_class(names: Container[str]) -> type[ModuleType]:
    """Return a class of modules whose public ``names`` hide folders and files of the same name.

    ``report.summary`` is the function also after something has imported the file ``report/summary.py``, which
    the import system would put in its place.
    """

    class Package(ModuleType):
        def __setattr__(self, name: str, value: Any) -> None:
            if name not in names or getattr(value, "__name__", "") != f"{self.__name__}.{name}":
                super().__setattr__(name, value)

    return Package
