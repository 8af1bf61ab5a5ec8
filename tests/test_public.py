"""The public names: None given to any function is one clear error; every name is documented."""

from __future__ import annotations

import ast
import builtins
import inspect
import pydoc
import re
import typing
from collections import abc
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import megatile as mt
import megatile.language as T
from megatile.core.errors import MegatileError

ATTENTION = {"hamilton_attention", "shard_sequence", "unshard_sequence", "torch_estimate"}
"""What needs torch."""
FUNCTIONS = [
    name
    for name in mt.__all__
    if name in ATTENTION
    or (inspect.isfunction(getattr(mt, name)) and inspect.signature(getattr(mt, name)).parameters)
]
NEEDS_NOTHING = {"faults", "measure"}


@pytest.mark.parametrize("name", [n for n in FUNCTIONS if n not in NEEDS_NOTHING] + ["HDA", "Session"])
def test_none_is_one_clear_error(name: str) -> None:
    if name in ATTENTION:
        pytest.importorskip("torch", reason="needs torch")
    thing = getattr(mt, name)
    kinds = inspect.signature(thing).parameters.values()
    positional = [None for p in kinds if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    positional += [None for p in kinds if p.kind is p.VAR_POSITIONAL]
    named = {p.name: None for p in kinds if p.default is p.empty and p.kind is p.KEYWORD_ONLY}
    with pytest.raises(MegatileError) as caught:
        thing(*positional, **named)
    assert len(str(caught.value)) > 20


PACKAGES = [
    *("attention", "collectives", "compat", "cost", "hda", "language", "lowering", "parallel", "plan"),
    *("report", "runtime", "sim", "targets", "timing", "trace", "tuning"),
]
ALLOW_NONE = {"as_timing", "write"}
"""Functions of packages for which None is an answer."""


@pytest.mark.parametrize("folder", PACKAGES)
def test_none_is_one_clear_error_for_functions_of_packages(folder: str) -> None:
    module = import_module(f"megatile.{folder}")
    if folder == "attention":
        pytest.importorskip("torch", reason="needs torch")
    for name in getattr(module, "__all__", ()):
        thing = getattr(module, name)
        if not inspect.isfunction(thing) or name in ALLOW_NONE:
            continue
        needed = [p for p in inspect.signature(thing).parameters.values() if p.default is p.empty]
        positional = [None for p in needed if p.kind in (p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL)]
        named = {p.name: None for p in needed if p.kind is p.KEYWORD_ONLY}
        if positional or named:
            with pytest.raises(MegatileError) as caught:
                thing(*positional, **named)
            assert len(str(caught.value)) > 20, name


@pytest.mark.parametrize("folder", ["collectives", "tuning", "language"])
def test_every_name_of_a_folder_is_there(folder: str) -> None:
    module = import_module(f"megatile.{folder}")
    assert {name for name in module.__all__ if getattr(module, name, None) is None} == set()


def test_a_database_of_none_is_one_clear_error() -> None:
    with pytest.raises(MegatileError, match="a database is a file, not NoneType"):
        mt.Database(None)  # type: ignore[arg-type]


def test_a_collective_says_how_many_bytes() -> None:
    with pytest.raises(MegatileError, match="all_reduce needs a size in bytes"):
        mt.collective("all_reduce", machine="dgx-h100")
    assert mt.collective("barrier", machine="dgx-h100").units == 8
    assert mt.collective("all_reduce", machine="dgx-h100", nbytes=0).units == 8


def test_a_price_names_its_machine_as_its_neighbours_do() -> None:
    plan = mt.collective("all_reduce", machine="dgx-h100", nbytes=1024, algorithm="ring")
    assert mt.price(plan, machine="dgx-h100") == mt.price(plan, "dgx-h100")


def test_a_run_prints_one_line() -> None:
    @T.program
    def twice(A: T.Tensor((8,), "f32")):
        with T.Kernel(block=1, threads=8):
            x = T.alloc((8,), "f32", level="l1")
            T.copy(x, A[0])
            for i in T.Parallel(8):
                x[i] = x[i] * 2
            T.copy(A[0], x)

    shown = repr(mt.run(twice, np.ones(8, "f4")))
    assert "twice" in shown
    assert "\n" not in shown
    assert len(shown) < 110


def test_everything_public_is_documented() -> None:
    skipped = {"__version__"} | (set() if find_spec("torch") else {*ATTENTION, "TorchEstimate"})
    undocumented = [n for n in mt.__all__ if n not in skipped and not inspect.getdoc(getattr(mt, n))]
    assert undocumented == []


def test_no_function_hides_a_folder() -> None:
    """``import megatile.folder.file as name`` finds the folder."""
    folders = {path.parent.name for path in Path(mt.__file__).parent.glob("*/__init__.py")}
    assert not folders & {name for name in mt.__all__ if not inspect.ismodule(getattr(mt, name, None))}


def test_a_function_hides_the_file_of_its_name() -> None:
    import_module("megatile.report.summary")
    assert inspect.isfunction(import_module("megatile.report").summary)
    assert pydoc.plain(pydoc.render_doc(mt.tune)).splitlines()[2].startswith("tune(factory")


ALIASES = {
    *("Array", "Choice", "Executor", "Listener", "Objective", "Path"),
    *("Ranks", "Started", "Table", "TextIO", "Timeable"),
}
"""Words of annotations that name no class of megatile."""
OF_ATTENTION = {"Layout", "Profile", "Schedule", "Tensor"}
"""Types of the attention functions, which are public in ``megatile.attention``."""


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_type_of_a_public_function_is_public(name: str) -> None:
    if name in ATTENTION:
        pytest.importorskip("torch", reason="needs torch")
    signature = inspect.signature(getattr(mt, name))
    annotations = [p.annotation for p in signature.parameters.values()] + [signature.return_annotation]
    words = {word for annotation in annotations for word in re.findall(r"\b[A-Z]\w*", str(annotation))}
    words -= {*dir(typing), *dir(abc), *dir(builtins)} | (OF_ATTENTION if name in ATTENTION else set())
    assert words - set(mt.__all__) - ALIASES == set()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_public_functions_name_their_options(name: str) -> None:
    if name in ATTENTION:
        pytest.importorskip("torch", reason="needs torch")
    open_ended = [
        p.name for p in inspect.signature(getattr(mt, name)).parameters.values() if p.kind is p.VAR_KEYWORD
    ]
    named_by_the_user = {
        "machine": "overrides",
        "host": "overrides",
        "predict_kernel": "extents",
        "run": "named",
    }
    assert open_ended == ([named_by_the_user[name]] if name in named_by_the_user else [])


def test_type_checkers_see_the_public_names() -> None:
    tree = ast.parse(Path(mt.__file__).read_text(encoding="utf-8"))
    guarded = next(node for node in tree.body if isinstance(node, ast.If))
    imported = [alias for node in guarded.body for alias in node.names]  # type: ignore[attr-defined]
    assert {alias.name for alias in imported} == {alias.asname for alias in imported} == set(mt.__all__)


def test_the_language_shows_its_words_only() -> None:
    assert set(dir(T)) == {*T.__all__, "autotune"}
    assert {"program", "gemm", "float16", "autotune"} <= set(dir(T))
    assert all(getattr(T, word) is not None for word in dir(T))
