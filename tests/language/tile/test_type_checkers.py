"""mypy and pyright accept a user's kernel file, and find mistakes in its calls; without any plugin."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import megatile as mt

ROOT = Path(__file__).parents[3]
SHORT = """\
# mypy: disable-error-code="valid-type"
# pyright: reportInvalidTypeForm=false
import megatile.language as T

M = T.dynamic("M")


@T.program
def double(X: T.Tensor((M, 64), T.float16), Y: T.Tensor((M, 64), "f16")) -> None:
    with T.Kernel(block=T.ceildiv(M, 64), threads=128) as bx, T.Scale("block"):
        for i, j in T.Parallel(64, 64):
            Y[bx * 64 + i, j] = T.max(X[bx * 64 + i, j], 0.0) * 2.0
"""
ANNOTATED = """\
from typing import Annotated, Any

import numpy as np

import megatile as mt
import megatile.language as T

Square = Annotated[Any, T.Tensor((64, 64), T.float32)]


@T.program
def product(A: Square, B: Annotated[Any, T.Input((64, 64), "f32")], C: Square) -> None:
    with T.Kernel(block=1, threads=128):
        a = T.alloc((64, 64), "f32", level="l1")
        b = T.alloc_shared((64, 64), "float32")
        c = T.alloc((64, 64), T.float32, level="l0")
        T.clear(c)
        for k in T.Pipelined(1, num_stages=2):
            T.copy(a, A[0, k * 64])
            T.copy(b, B[k * 64, 0])
            T.gemm(a, b, c)
        T.copy(C[0, 0], c)


x = np.eye(64, dtype=np.float32)
ran: mt.RunResult = mt.run(product, x, x, x.copy(), machine="dgx-h100")
result: mt.Result = mt.simulate(product, x, x, x, machine="dgx-h100", record=False)
kernel: mt.CompiledKernel = mt.compile(product, target="cpu", threads=1)
best: mt.Tuned = mt.tune(lambda n: product, {"n": [1]}, machine="dgx-h100", progress=False)
swept: mt.Sweep = mt.sweep(product, {"gpus": [8]}, machine="dgx-h100", progress=False)
plan: mt.Plan = mt.collective("all_reduce", machine="dgx-h100", nbytes="1 MiB", algorithm="ring")
bounds: mt.Price = mt.price(plan, machine="dgx-h100")
lowered: mt.Lowered = mt.lower(product, machine="dgx-h100")
"""
MISTAKES = """\
import megatile as mt

plan = mt.collective("all_reduce", machine="dgx-h100", nbytes=1024)
mt.simulate(plan, machin="dgx-h100")  # wrong
mt.simulate(plan, machine=7)  # wrong
mt.tune(print, {"n": [1]}, machine="dgx-h100", worker=1)  # wrong
mt.collective("all_reduce", machine="dgx-h100", nbytes=1024, dtypes="f16")  # wrong
number: int = mt.price(plan, machine="dgx-h100")  # wrong
mt.compile(mt.lower)  # wrong
"""
WRONG = [n for n, line in enumerate(MISTAKES.splitlines(), 1) if line.endswith("# wrong")]


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    texts = {"short.py": SHORT, "annotated.py": ANNOTATED, "mistakes.py": MISTAKES}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    return [str(tmp_path / name) for name in texts]


def test_mypy_accepts_kernels_and_finds_mistakes(files: list[str]) -> None:
    # With the project's own settings, whose cache `make lint` has filled.
    run = subprocess.run(
        [sys.executable, "-m", "mypy", *files], cwd=ROOT, capture_output=True, text=True, check=False
    )
    found = {(m[1], int(m[2])) for m in re.finditer(r"(\w+)\.py:(\d+): error", run.stdout)}
    assert found == {("mistakes", line) for line in WRONG}, run.stdout + run.stderr


def test_pyright_accepts_kernels_and_finds_mistakes(files: list[str], tmp_path: Path) -> None:
    # This build of pyright brings all that it runs; the package `pyright` loads it when first called.
    if not find_spec("basedpyright"):
        pytest.skip("needs basedpyright")
    settings = {"typeCheckingMode": "standard", "include": files, "extraPaths": [str(ROOT / "src")]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "basedpyright", "-p", str(tmp_path), "--outputjson"]
    run = subprocess.run(
        [*command, "--pythonpath", sys.executable], capture_output=True, text=True, check=False
    )
    found = json.loads(run.stdout)["generalDiagnostics"]
    errors = {(Path(d["file"]).stem, d["range"]["start"]["line"] + 1) for d in found}
    assert errors == {("mistakes", line) for line in WRONG}, run.stdout


def test_kernels_with_both_kinds_of_annotations_run(files: list[str]) -> None:
    names: dict[str, object] = {}
    for file in files[:2]:
        text = Path(file).read_text().partition("\nx = ")[0]
        exec(compile(text, file, "exec"), names)
    x = np.ones((128, 64), "f2")
    y = np.zeros_like(x)
    mt.run(names["double"], x, y)  # type: ignore[arg-type]
    assert (y == 2).all()
    eye, c = np.eye(64, dtype="f4"), np.zeros((64, 64), "f4")
    mt.run(names["product"], 3 * eye, eye, c)  # type: ignore[arg-type]
    assert (c == 3 * eye).all()
