"""``targets/compile.py``: what ``mt.compile`` and ``mt.export`` refuse before they write code."""

import pytest

import megatile as mt
import megatile.language as T
from megatile.targets.common.errors import CompileError


@T.program
def double(x: T.Tensor((64,), "f32")):
    with T.Kernel(block=2, threads=32) as b, T.Scale("block"):
        for i in T.Parallel(32):
            x[b * 32 + i] = x[b * 32 + i] * 2.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "cudo"}, "there is no target 'cudo'.*did you mean 'cuda'"),
        ({"threads": 0}, "threads=0.*a whole number from 1 to 1024"),
        ({"threads": 1.5}, "threads=1.5"),
        ({"options": "-O1"}, r"options='-O1'.*give a tuple: options=\('-O1',\)"),
    ],
)
def test_wrong_options_of_compile(options: dict[str, object], message: str) -> None:
    with pytest.raises(CompileError, match=message):
        mt.compile(double, **options)  # type: ignore[arg-type]


def test_wrong_options_of_export() -> None:
    with pytest.raises(
        CompileError, match="programs cannot be written as 'tilelan'.*did you mean 'tilelang'"
    ):
        mt.export(double, "tilelan")
    with pytest.raises(CompileError, match="'double' is not a tile program"):
        mt.export("double", "c")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("to", "word"), [("c", "void"), ("cuda", "__global__"), ("tilelang", "@T.prim_func")]
)
def test_every_language_writes_a_program_and_its_built_form(to: str, word: str) -> None:
    text = mt.export(double, to, machine="hgx-a100")
    assert word in text
    assert mt.export(double.build("hgx-a100"), to) == text
