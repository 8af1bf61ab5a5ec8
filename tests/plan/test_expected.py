"""Random plans, whole and with a word changed: texts, checks, outputs and errors, as they were before."""

from __future__ import annotations

import random
import re
import warnings
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
from tests.expected import chunks, digest, line, of_cases, plain, tried
from tests.plan.shared import EXCHANGE, HEAD, blocks_and_parts
from tests.plan.text_cases import GOLDEN, WHOLE
from tests.sim.random_cases import Case, random_case
from tests.sim.random_kernels import random_kernels
from tests.sim.random_levels import random_levels

from megatile.core.dtypes import numpy_dtype
from megatile.plan.check import check
from megatile.plan.counts import command_count
from megatile.plan.execute import execute
from megatile.plan.memory import aliases, blocks, check_memory
from megatile.plan.model import Plan, runs
from megatile.plan.residency import copies, part_places
from megatile.plan.structure import check_structure
from megatile.plan.symmetry import difference

CASES: dict[str, Any] = {
    **{f"plan {seed}": (random_case, seed) for seed in range(28)},
    **{f"levels {seed}": (random_levels, seed) for seed in range(14)},
    **{f"kernels {seed}": (random_kernels, seed) for seed in range(4)},
}


def data_of(case: Case) -> dict[str, Any]:
    values = np.random.default_rng(case.seed)
    given = {
        t.name: values.integers(0, 4, (case.plan.owners(t), *t.shape)).astype(numpy_dtype(t.dtype))
        for t in case.plan.tiles
        if t.role in ("input", "inout")
    }
    return given | (case.inputs or {})


def executed(case: Case, **options: Any) -> str:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = tried(lambda: execute(case.plan, data_of(case), **options))
    if isinstance(found, str):
        return found
    return digest(found, found.choices, found.order_dependent, [plain(str(w.message)) for w in said])


def answers(case: Case) -> str:
    plan, hda = case.plan, case.hda
    text = str(plan)
    assert Plan.from_text(text) == plan
    assert Plan.from_json(plan.to_json()) == plan
    where = copies(plan, hda)
    spread = [
        (t.name, part_places(plan, hda, t, np.arange(int(np.prod(t.block_grid)))))
        for t in plan.tiles
        if t.over is not None
    ]
    assume = {name: (v if isinstance(v, int) else v[0]) for name, v in (case.assume or {}).items()}
    seen = tried(lambda: check(plan, hda, assume=assume))
    return line(
        text=digest(text), json=digest(plan.to_json()), html=digest(plan._repr_html_()),
        commands=command_count(plan), control=command_count(plan, 3), differ=difference(plan), check=seen,
        out=executed(case), again=executed(case, races=False), places=digest(where, spread),
        blocks=digest([list(blocks(plan, level.name)) for level in plan.all_levels]), aliases=aliases(plan),
        fits=tried(lambda: check_memory(plan, hda)), spread=plan.spread_lines(), pace=plan.pace_lines(),
        part=digest(plan.part(range(0, plan.units, 2))), key=plan.digest,
    )  # fmt: skip


@pytest.mark.parametrize("names", chunks(CASES, 8), ids=lambda names: names[0])
def test_one_plan(names: list[str], expected: Any) -> None:
    expected("plans", of_cases(names, CASES, answers))


# --- texts with something wrong -----------------------------------------------------------------------------


@cache
def texts() -> dict[str, str]:
    """Texts of plans that together have every kind of statement."""
    found = {"ring": GOLDEN, "whole": WHOLE, "exchange": HEAD + EXCHANGE}
    found["blocks"] = str(blocks_and_parts(2))
    found |= {f"plan {seed}": str(random_case(seed).plan) for seed in (3, 12, 16, 25, 36, 43, 57, 58)}
    found |= {f"levels {seed}": str(random_levels(seed).plan) for seed in (0, 11, 18)}
    return found | {"kernels": str(random_kernels(2).plan)}


WORD = re.compile(r"\"[^\"]*\"|\d+|[a-zA-Z_]\w*|//|<<|<=|==|[-+*%<>&]")
NUMBERS = (
    "-1",
    "0",
    "1",
    "3",
    "7",
    "1 << 40",
    "unit",
    "unit * 2",
    "2 - unit",
    "None",
    "True",
    '"x"',
    "()",
    "1.5",
)
TEXTS = (
    "None",
    "0",
    '"tcm"',
    '"hbm"',
    '"core"',
    '"block"',
    '"inout"',
    '"x"',
    '"all_reduce"',
    '"vector"',
    '""',
)
OPERATORS = ("+", "-", "*", "//", "%", "<", "<=", "==", "<<")


def changed(text: str, seed: int) -> Iterator[str]:
    """A text with a word changed, a line twice or left out."""
    rng = random.Random(seed)
    lines = [re.sub(r"  #.*", "", one) for one in text.splitlines()]
    names = sorted(set(re.findall(r"(?<![\w\"])[a-zA-Z_]\w*(?!\")", "\n".join(lines))))
    for _ in range(26):
        at, way, other = rng.randrange(len(lines)), rng.random(), list(lines)
        words = list(WORD.finditer(lines[at]))
        if way < 0.08:
            del other[at]
        elif way < 0.14 or not words:
            other.insert(at, lines[at])
        else:
            word = rng.choice(words)
            old = word.group()
            kind = NUMBERS if old.isdigit() else TEXTS if old[0] == '"' else OPERATORS
            new = rng.choice(names if old.isidentifier() else kind)
            other[at] = lines[at][: word.start()] + new + lines[at][word.end() :]
        yield "\n".join(other) + "\n"


def judged(text: str) -> str:
    """What is said of a text: why it is no plan, why it is not sound, or what the check saw."""

    def read() -> str:
        plan = Plan.from_text(text)
        check_structure(plan)
        return line(text=digest(str(plan)), check=check(plan))

    return re.sub("(cannot read the text|is not an integer expression).*", r"\1", str(tried(read)))


@pytest.mark.parametrize("name", list(texts()))
def test_a_text_with_a_change(name: str, expected: Any) -> None:
    every = changed(texts()[name], len(name))
    expected("changed_texts", {f"{name} {number}": judged(text) for number, text in enumerate(every)})


def test_runs_of_units(expected: Any) -> None:
    numbers = [[], [3], [0, 1, 2], [5, 3, 1], [0, 2, 4, 5, 6, 9], [1, 2, 4, 8], range(2, 9, 3), range(0)]
    expected("runs", {str(of): runs(of) for of in numbers})
