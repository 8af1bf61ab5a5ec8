"""Random programs whose text in every language, and whose way through the interpreter, are known exactly.

python -m tests.targets.corpus random1 reach3     prints all that is known of them
"""

import re
import sys
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from tests.language.tile.random_programs import random_program
from tests.language.tile.random_reach import reaching_program

import megatile as mt
from megatile.core.errors import MegatileError
from megatile.ir.program import Program
from megatile.targets.cpu.generator import generate

MACHINE = "dgx-h100"


class Case(NamedTuple):
    """A program that is built, its arrays, and what NumPy makes of some of them."""

    program: Program
    arrays: list[Any]
    wanted: dict[int, Any]


def steady(text: str) -> str:
    """A text without the folders and line numbers of its program."""
    if ".py" in text:
        text = re.sub(r"[\w./~-]*/(\w+\.py)", r"\1", text)
        text = re.sub(r"\n +\^$", "", text, flags=re.MULTILINE)
    return re.sub(r"(\.py:|\blines? )\d+(, \d+)*", r"\1", text)


def rounded(text: str) -> str:
    """A text with four digits of each number: others may depend on the processor."""
    return re.sub(r"\d+\.\d{4,}(e[+-]?\d+)?", lambda found: f"{float(found[0]):.4g}", text)


def of_random(make: Callable[[int], Any], seed: int) -> Case:
    case = make(seed)
    return Case(case.program.build(MACHINE), case.arrays(), dict(enumerate(case.expected(), 4)))


CORPUS: dict[str, Callable[[], Case]] = {
    **{f"random{seed}": partial(of_random, random_program, seed) for seed in range(8)},
    **{
        f"device{seed}": partial(of_random, partial(random_program, one_device=True), seed)
        for seed in range(8)
    },
    **{f"reach{seed}": partial(of_random, reaching_program, seed) for seed in range(4)},
}


def built_case(name: str) -> Case:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return CORPUS[name]()


def text_of(write: Callable[[Program], str], case: Case) -> str:
    """A text, or why there is none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return steady(write(case.program))
        except MegatileError as error:
            return steady(f"{type(error).__name__}: {error.message} (try: {error.advice})")


def c(width: int, rows: int, *words: str) -> Callable[[Program], str]:
    def write(program: Program) -> str:
        made = generate(program, width, rows, frozenset(words))
        return f"{made.text}\n{made.collectives}\n{made.flops}"

    return write


RUNS: tuple[dict[str, Any], ...] = (
    {}, {"record": True}, {"schedule": "adversarial"}, {"checks": False},
    {"schedule": "random", "seed": 3, "strict_bounds": True},
)  # fmt: skip


def runs(case: Case) -> str:
    """Steps, warnings, lines printed and writes of runs in several orders; results are those of NumPy."""
    said = []
    for options in RUNS:
        arrays = [np.array(a) for a in case.arrays]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                run = mt.run(case.program, *arrays, output=lambda _: None, **options)
            except MegatileError as error:
                said.append(f"{type(error).__name__}: {error.message} (try: {error.advice})")
                continue
        writes = run.recorder.writes if run.recorder else []
        said += [f"{run.steps} steps", *run.printed, *(str(w.message) for w in caught), *map(str, writes)]
        for number, wanted in case.wanted.items():
            np.testing.assert_allclose(arrays[number], wanted, rtol=2e-3, atol=2e-3)
    return rounded(steady("\n".join(said)))


WAYS: dict[str, Callable[[Case], str]] = {
    "c": partial(text_of, c(8, 6)),
    "c of wide vectors": partial(text_of, c(16, 14, "bf16", "i8", "i16")),
    "cuda": partial(text_of, lambda program: mt.export(program, "cuda")),
    "tilelang": partial(text_of, lambda program: mt.export(program, "tilelang")),
    "run": runs,
}

if __name__ == "__main__":
    for name in sys.argv[1:]:
        case = built_case(name)
        for way, write in WAYS.items():
            print(f"=== {name} {way}\n{write(case)}")
