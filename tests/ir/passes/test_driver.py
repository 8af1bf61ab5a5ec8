"""Passes of users: where they run, what is seen of them, and what is refused."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import megatile as mt
import megatile.language as T
from megatile.core.expr import Const
from megatile.ir import nodes as n
from megatile.ir.passes.driver import PassError, rewrite_nodes
from megatile.ir.program import Program
from megatile.ir.verify import VerificationError


@T.program
def fill(Y: T.Tensor((8,), "f32")):
    with T.Kernel(block=2) as b:
        for i in T.Parallel(4):
            Y[b * 4 + i] = 1.0


@dataclass(frozen=True)
class Twos:
    """``x[i] = 1.0`` → ``x[i] = 2.0``."""

    name: str = "twos"
    after: str = "remove_jumps"

    def apply(self, program: Program) -> Program:
        def change(node: n.Node) -> n.Node:
            return replace(node, value=Const(2.0, "float")) if isinstance(node, n.Store) else node

        return replace(program, body=rewrite_nodes(program.body, change))


@dataclass(frozen=True)
class Broken:
    name: str = "broken"
    gives: Any = None

    def apply(self, program: Program) -> Any:
        return self.gives if self.gives is not None else replace(program, body=(n.Fence(), *_unknown()))


def _unknown() -> tuple[n.Node, ...]:
    return (n.Fill(n.whole("Z", (4,))),)


def test_a_pass_of_a_user_is_a_step_and_changes_the_plan() -> None:
    lowered = mt.lower(fill, passes=[Twos()])
    names = [step.name for step in lowered.steps]
    assert names[names.index("twos") - 1] == "remove_jumps"
    assert "= 2.0" in str(lowered.steps[names.index("twos")])
    np.testing.assert_array_equal(mt.execute(lowered, np.zeros(8, "f4"))["Y"], np.full(8, 2.0))


def test_without_an_after_it_follows_resolve_views() -> None:
    @dataclass(frozen=True)
    class Nothing:
        name: str = "nothing"

        def apply(self, program: Program) -> Program:
            return program

    names = [step.name for step in mt.lower(fill, passes=[Nothing()]).steps]
    assert names[names.index("nothing") - 1] == "resolve_views"


@pytest.mark.parametrize(
    ("passes", "said"),
    [
        ([3], "3 is not a pass"),
        (Twos(), "is not a list of passes"),
        ([Twos], "is not a pass"),
        ([Twos(), Twos()], "there is already a pass 'twos'"),
        ([Twos(after="resolve")], "'twos' should run after 'resolve', which is not a pass"),
        ([Broken(gives="text")], "pass 'broken' returns str, not a Program"),
    ],
)
def test_what_is_not_a_pass(passes: Any, said: str) -> None:
    with pytest.raises(PassError, match=said):
        mt.lower(fill, passes=passes)


def test_a_pass_that_breaks_the_program_is_named() -> None:
    with pytest.raises(VerificationError, match="after pass 'broken': 'Z' is used before it is defined"):
        mt.lower(fill, passes=[Broken()])
