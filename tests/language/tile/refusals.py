"""Kernels that are refused while building: a table of bodies, messages and lines."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest

import megatile.language as T
from megatile.core.errors import MegatileError

Body = Callable[..., Any]


class Refusals:
    """Bodies of kernels, each given two tensors of 16 by 16, registered with ``@refused(message, line)``."""

    def __init__(self) -> None:
        self.cases: list[Any] = []

    def __call__(self, message: str, line: str = "") -> Callable[[Body], Body]:
        def register(body: Body) -> Body:
            self.cases.append(pytest.param(body, message, line, id=body.__name__))
            return body

        return register


def check_refused(body: Body, message: str, line: str) -> None:
    """Building fails with the message, an advice, and a caret under the user's line."""
    body.__annotations__ = {"A": T.Tensor((16, 16), "f32"), "B": T.Tensor((16, 16), "f32")}
    program = T.program(body)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(MegatileError, match=f"(?s){message}") as caught:
            program.build()
    error = caught.value
    assert error.place is not None and error.place.file == body.__code__.co_filename
    assert error.advice or "assertion" in error.message
    text = str(error)
    assert "^" in text
    assert line in text, text
