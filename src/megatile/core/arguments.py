"""Name missing and unknown arguments of public functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from megatile.core.errors import MegatileError, did_you_mean

P = ParamSpec("P")
R = TypeVar("R")


class MissingArgument(MegatileError, TypeError):
    """An argument that a function cannot do without."""


class UnknownArgument(MegatileError, TypeError):
    """A keyword argument that a function does not have."""


def known_keywords(function: Callable[P, R]) -> Callable[P, R]:
    """Refuse a keyword that ``function`` does not have with the nearest one that it has."""
    names = tuple(inspect.signature(function).parameters)

    @wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in names:
                raise UnknownArgument(
                    f"{function.__name__} has no argument '{name}'",
                    advice=did_you_mean(name, names, what="arguments"),
                )
        return function(*args, **kwargs)

    return checked


def no_none(function: Callable[P, R]) -> Callable[P, R]:
    """None is one clear error for each argument that has no default and is not declared to allow it."""
    parameters = inspect.signature(function).parameters.values()
    needed = {p.name: p for p in parameters if p.default is p.empty and "None" not in str(p.annotation)}
    names = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), None)

    @wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        given = [(names[at] if at < len(names) else rest, value) for at, value in enumerate(args)]
        for name, value in [*given, *kwargs.items()]:
            if value is None and name in needed:
                raise MissingArgument(
                    f"{function.__name__} needs '{name}', not None",
                    advice=f"its arguments are {', '.join(map(str, needed.values()))}",
                )
        return function(*args, **kwargs)

    return checked
