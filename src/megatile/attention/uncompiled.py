"""Functions that torch.compile calls instead of looking into them: they talk to other processes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

Given = ParamSpec("Given")
Answer = TypeVar("Answer")


def uncompiled(function: Callable[Given, Answer]) -> Callable[Given, Answer]:
    """``torch.compiler.disable``, without loading the compiler (seconds) where nothing is compiled."""
    disabled: list[Callable[Given, Answer]] = []

    @wraps(function)
    def called(*args: Given.args, **kwargs: Given.kwargs) -> Answer:
        if "torch._dynamo" not in sys.modules:
            return function(*args, **kwargs)
        if not disabled:
            disabled.append(torch.compiler.disable(function))
        return disabled[0](*args, **kwargs)

    return called
