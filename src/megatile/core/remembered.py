"""Methods that are asked the same again and again: their object keeps the answers."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

Method = TypeVar("Method", bound=Callable[..., Any])


def remembered(method: Method) -> Method:
    """A method whose answer follows from its (positional, hashable) arguments and never changes."""
    answers = f"_{method.__name__.strip('_')}_answers"

    @wraps(method)
    def known(self: Any, *asked: Any) -> Any:
        kept = self.__dict__.get(answers)
        if kept is None:
            kept = self.__dict__[answers] = {}
        if asked not in kept:
            kept[asked] = method(self, *asked)
        return kept[asked]

    return known  # type: ignore[return-value]
