"""Passes that need the machine: texts before and after."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.lowering.test_examples import EXAMPLES, programs_of

import megatile as mt
from megatile.ir import nodes as n
from megatile.ir.parser import parse
from megatile.ir.passes.driver import rewrite_nodes
from megatile.ir.program import Program


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
