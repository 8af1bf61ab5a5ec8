"""Passes that need the machine: texts before and after."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.lowering.test_examples import EXAMPLES, programs_of

import megatile as mt
import megatile.language as T
from megatile.ir import nodes as n
from megatile.ir.parser import parse
from megatile.ir.passes.driver import rewrite_nodes
from megatile.ir.program import Program


def text_after(lowered: Any, name: str) -> list[str]:
    """The statements after a pass, without indentation and comments; the text parses back."""
    step = next(step for step in lowered.steps if step.name == name)
    assert parse(str(step)) == step.program
    return [line.strip().partition("  # ")[0] for line in str(step).splitlines()]


@T.program
def pipelined(A: T.Tensor((64, 96), "f16"), B: T.Tensor((96, 64), "f16"), C: T.Tensor((64, 64), "f32")):
    with T.Kernel(block=1, threads=256):
        a = T.alloc((64, 32), "f16", level="l1")
        b = T.alloc((32, 64), "f16", level="l1")
        c = T.alloc((64, 64), "f32")
        T.clear(c)
        for k in T.Pipelined(3, num_stages=2):
            T.copy(a, A[0, k * 32])
            T.copy(b, B[k * 32, 0])
            T.gemm(a, b, c)
        with T.Scale("warpgroup"):
            T.copy(T.view(c, layout=T.Replica), T.view(c, layout=T.Replica))
        T.copy(C[0, 0], c)


def test_place_tiles() -> None:
    lines = text_after(mt.lower(pipelined), "place_tiles")
    assert lines[0].startswith('def pipelined(A: f16[64, 96] @ home("hbm", "device"), B: f16[96, 64] @ home(')
    assert 'a = alloc((64, 32), "f16", "shared", "block", versions=2)' in lines
    assert (
        'c = alloc((64, 64), "f32", "registers", "block", parts=(part("warpgroup", replica()),), slices=2)'
        in lines
    )
    assert 'for k in pipelined(0, 3, 1, stages=2, fresh=("a", "b")):' in lines


def test_choose_implementations() -> None:
    lowered = mt.lower(pipelined)
    lines = text_after(lowered, "choose_implementations")
    assert 'copy(a[0::64, 0::32], A[0::64, k * 32::32], impl="tma")' in lines
    assert 'gemm(a[0::64, 0::32], b[0::32, 0::64], c[0::64, 0::64], impl="tensor")' in lines
    why = next(line for line in str(lowered.steps[-1]).splitlines() if "gemm(a" in line)
    assert re.search(r"# cheapest: tensor [\d.]+ \w+, vector [\d.]+ \w+$", why)


def test_what_the_user_asked_for_is_said() -> None:
    @T.program
    def in_bulk(A: T.Tensor((64, 64), "f32"), B: T.Tensor((64, 64), "f32")):
        with T.Kernel(block=1, threads=128):
            a = T.alloc((64, 64), "f32", level="l1")
            T.copy(a, A, impl="tma")
            T.copy(B, a)

    text = str(mt.lower(in_bulk).steps[-1])
    assert re.search(r'A\[0::64, 0::64\], impl="tma"\)  # asked for: lsu [\d.]+ ns, tma', text)


def test_choose_collectives() -> None:
    (path,) = (path for path in EXAMPLES if path.stem.startswith("24_"))
    ((prog, arrays, machine),) = programs_of(path)
    lines = text_after(mt.lower(prog, *arrays, machine=machine), "choose_collectives")
    whole = "(C.device[0::128, 0::128],)"
    assert f'collective("allreduce", "device", {whole}, {whole}, algorithm="ring", impl="nccl")' in lines
    mine = "(C_local.warpgroup[0::64, 0::64],)"
    assert f'collective("allreduce", "warpgroup", {mine}, {mine}, algorithm="shared")' in lines


def test_collectives_without_the_library() -> None:
    @T.program
    def p(Y: T.Tensor((4,), "f32")):
        with T.Kernel(device=2):
            y = T.view(Y, layout=T.Replica)
            o, lse = T.alloc((4,), "f32", level="l2"), T.alloc((4,), "f32", level="l2")
            T.copy(o, y)
            T.copy(lse, y)
            T.allreduce(o, lse, fn=T.lse_merge)
            T.allreduce(o, algorithm="ring")

    text = str(mt.lower(p).steps[-1])
    assert re.findall(r'algorithm="(\w+)"', text) == ["gets", "ring"]


def test_a_pass_may_undo_what_was_chosen() -> None:
    """What is not chosen when the Plan is written is chosen then."""

    @dataclass(frozen=True)
    class Forget:
        name: str = "forget"
        after: str = "synchronise"

        def apply(self, program: Program) -> Program:
            def change(node: n.Node) -> n.Node:
                if isinstance(node, n.Collective):
                    return replace(node, algorithm=None)
                return replace(node, impl=None, choice=None) if isinstance(node, n.Copy) else node

            return replace(program, body=rewrite_nodes(program.body, change))

    (path,) = (path for path in EXAMPLES if path.stem.startswith("24_"))
    ((prog, arrays, machine),) = programs_of(path)
    plain, forgot = (mt.lower(prog, *arrays, machine=machine, passes=p) for p in ((), [Forget()]))
    assert str(forgot.plan) == str(plain.plan)


def copied(first: str, second: str, third: str, in_loop: bool = False) -> Any:
    """Three regions of blocks, each of which adds one to a tensor."""

    @T.program
    def p(A: T.Tensor((64,), "f32"), B: T.Tensor((64,), "f32"), C: T.Tensor((64,), "f32")):
        tensors = {"A": A, "B": B, "C": C}
        with T.Kernel(block=2, threads=32):
            for name in (first, second):
                with T.Scale("block") as b:
                    x = tensors[name]
                    for i in T.Parallel(32):
                        x[b * 32 + i] = x[b * 32 + i] + 1.0
            for _ in T.serial(2 if in_loop else 1):
                with T.Scale("block") as b:
                    y = tensors[third]
                    for i in T.Parallel(32):
                        y[b * 32 + i] = y[b * 32 + i] + 1.0

    return p


@pytest.mark.parametrize(
    ("names", "in_loop", "said"),
    [
        ("AAA", True, ["phase=1", "phase=2, after=(1,)", "phase=3, after=(1, 2)"]),
        ("ABC", True, ["phase=1", "phase=2", "phase=3, after=(1, 2)"]),
    ],
)
def test_synchronise(names: str, in_loop: bool, said: list[str]) -> None:
    lowered = mt.lower(copied(*names, in_loop))
    lines = text_after(lowered, "synchronise")
    found = [re.sub(r'with scale\("block",? ?(.*)\):', r"\1", line) for line in lines if "scale(" in line]
    assert found == said
    arrays = [np.zeros(64, "f4") for _ in range(3)]
    wanted = [np.zeros(64, "f4") for _ in range(3)]
    mt.run(copied(*names, in_loop), *wanted)
    got = mt.execute(lowered, *arrays)
    for name, before, after in zip("ABC", arrays, wanted, strict=True):
        np.testing.assert_array_equal(got.get(name, before), after)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_step_of_the_examples_parses_back(path: Path, capsys: Any) -> None:
    for prog, arrays, machine in programs_of(path):
        lowered = mt.lower(prog, *arrays, machine=machine)
        for step in lowered.steps:
            assert parse(str(step)) == step.program, step.name
        last = str(lowered.steps[-1])
        assert not re.search(r"\b(view|anchor|along)\(", last)
        copies = [line for line in last.splitlines() if line.strip().startswith(("copy(", "gemm("))]
        assert all("impl=" in line for line in copies)
        collectives = [line for line in last.splitlines() if line.strip().startswith("collective(")]
        assert all("algorithm=" in line for line in collectives)
