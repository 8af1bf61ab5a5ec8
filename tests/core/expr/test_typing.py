"""``core/expr/typing.py``: typed expressions."""

import pytest

from megatile.core.errors import MegatileError
from megatile.core.expr import Const, Symbol
from megatile.core.expr.typing import apply, promote, result_type


@pytest.mark.parametrize(
    ("left", "right", "result"),
    [
        ("f16", "int", "f16"),
        ("f16", "float", "f16"),
        ("i32", "float", "f32"),
        ("i32", "f16", "f16"),
        ("bf16", "f16", "f32"),
        ("f16", "f32", "f32"),
        ("i8", "u8", "i32"),
        ("i8", "i32", "i32"),
        ("bool", "f32", "f32"),
        ("int", "float", "float"),
        ("bool", "int", "int"),
    ],
)
def test_promotion(left: str, right: str, result: str) -> None:
    assert promote(left, right) == promote(right, left) == result


def test_result_types() -> None:
    assert result_type("<", ("f32", "f32")) == "bool"
    assert result_type("exp", ("i32",)) == "f32"
    assert result_type("exp", ("f16",)) == "f16"
    assert result_type("/", ("int", "int")) == "float"
    assert result_type("select", ("bool", "f16", "float")) == "f16"


def test_bitwise_operators_need_whole_numbers() -> None:
    with pytest.raises(MegatileError, match=r"'<<' needs whole numbers, not f32, int.*T.cast"):
        apply("<<", Symbol("x", "f32"), Const(1))
