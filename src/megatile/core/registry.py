"""A table of named things that others may add to, with advice when a name is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from megatile.core.errors import MegatileError, Place, did_you_mean

T = TypeVar("T")


class UnknownNameError(MegatileError, KeyError):
    """A name that is not in a registry."""

    __str__ = MegatileError.__str__


class Registry(Mapping[str, T], Generic[T]):
    """Names to things; registering a name twice is an error.

    >>> shapes: Registry[int] = Registry("shapes")
    >>> shapes.add("square", 4)
    4
    >>> shapes["square"]
    4
    """

    def __init__(self, what: str):
        self.what = what
        self._things: dict[str, T] = {}

    def add(self, name: str, thing: T) -> T:
        if name in self._things:
            raise MegatileError(f"'{name}' is already among the {self.what}")
        self._things[name] = thing
        return thing

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator form of ``add``."""
        return lambda thing: self.add(name, thing)

    def find(self, name: str, place: Place | None = None) -> T:
        """Return the entry of that name; the error for an unknown name says where it was used and lists the
        known ones."""
        try:
            return self._things[name]
        except KeyError:
            advice = did_you_mean(name, self._things, what=self.what)
            message = f"'{name}' is not among the {self.what}"
            raise UnknownNameError(message, place=place, advice=advice) from None

    def __getitem__(self, name: str) -> T:
        return self.find(name)

    def get(self, name: str, default: Any = None) -> Any:
        """Without looking for similar names where there is none."""
        return self._things.get(name, default)

    def __contains__(self, name: object) -> bool:
        return name in self._things

    def __iter__(self) -> Iterator[str]:
        return iter(self._things)

    def __len__(self) -> int:
        return len(self._things)
