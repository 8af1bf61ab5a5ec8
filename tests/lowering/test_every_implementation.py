"""Under every implementation of copies that applies, the executed Plan gives what the interpreter gives."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.language.tile.random_programs import random_program
from tests.lowering import odd_size_programs, test_every_program_kind
from tests.lowering.test_examples import same

import megatile as mt
import megatile.language as T
from megatile.core.errors import MegatileError
from megatile.cost.implementations import CANDIDATES
from megatile.ir import nodes as n
from megatile.lowering import commands
from megatile.lowering.errors import LoweringError

NAMES = [name for name, one in CANDIDATES["Copy"].items() if one.body is None]
CASES: dict[str, Any] = {f"random_{seed}": seed for seed in range(10)}
CASES |= {kind.__name__: kind for kind in test_every_program_kind.KINDS}
CASES |= {
    f.__name__: f
    for f in (
        odd_size_programs.cannon3,
        odd_size_programs.stencil_cores,
        odd_size_programs.odd_gemm,
        odd_size_programs.cluster_mc,
    )
}


def round_the_nodes() -> tuple[Any, list[Any]]:
    @T.program
    def kernel(X: T.Tensor((24, 6), "f32"), Y: T.Tensor((24, 6), "f32")):
        with T.Kernel(node=2, device=3, block=1, threads=32), T.Scale("device") as (r, n):
            x, y = T.view(X, layout=T.FullRow), T.view(Y, layout=T.FullRow)
            b = T.alloc((4, 6), "f32", level="l2")
            T.copy(b, x, dst=(r + 1) % n)
            T.barrier()
            T.copy(y, b)

    return kernel, [np.arange(144, dtype="f4").reshape(24, 6), np.zeros((24, 6), "f4")]


CASES["round_the_nodes"] = round_the_nodes


def case_of(what: Any) -> tuple[Any, list[Any]]:
    if isinstance(what, int):
        made = random_program(what)
        return made.program, made.arrays()
    return what()


def with_copies_by(name: str, body: tuple[n.Node, ...]) -> tuple[n.Node, ...]:
    changed: list[n.Node] = []
    for node in body:
        inner: dict[str, Any] = {word: with_copies_by(name, part) for word, part in n.bodies(node)}
        changed.append(replace(node, **inner, **({"impl": name} if isinstance(node, n.Copy) else {})))
    return tuple(changed)


@pytest.fixture
def where_it_applies(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """``impl=`` is for those copies that it can do; gives the names that were taken."""
    usual, taken = commands.choose, []

    def choose(request: Any, wanted: str | None = None) -> Any:
        try:
            found = usual(request, wanted)
        except MegatileError:
            return usual(request)
        taken.append(wanted or "")
        return found

    monkeypatch.setattr(commands, "choose", choose)
    return taken


@pytest.mark.parametrize("name", NAMES)
def test_every_implementation(name: str, where_it_applies: list[str]) -> None:
    times = 0
    machine = "a100-cluster" if name == "dma" else "h100-cluster"  # which has a TMA in its place
    for what, make in CASES.items():
        prog, arrays = case_of(make)
        wanted = [a.copy() for a in arrays]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            where_it_applies.clear()
            program = prog.build(mt.machine(machine))
            try:
                lowered = mt.lower(replace(program, body=with_copies_by(name, program.body)), machine=machine)
            except LoweringError:
                continue
            if name not in where_it_applies:
                continue
            mt.run(prog, *wanted, machine=machine, checks=False, output=lambda text: None)
            got = mt.execute(lowered, *arrays)
        for param, old, after in zip(lowered.program.params, arrays, wanted, strict=True):
            assert same(np.asarray(got.get(param.name, old)), after), f"{what}: {param.name} by {name}"
        times += 1
    assert times >= {"nic": 1, "dsmem": 2, "copy_engine": 4}.get(name, 5)
