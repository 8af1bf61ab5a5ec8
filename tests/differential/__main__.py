"""``python -m tests.differential [N]``: random programs on every target; a tensor that differs is a finding.

    python -m tests.differential 500                   500 more of both generators; goes on where it stopped
    python -m tests.differential 100 --generator b     100 more of one
    python -m tests.differential --again               what was found, once more: after a change
    python -m tests.differential --replay b:17         one again, with what each target says

Generator a is ``tests/language/tile/random_programs.py``: steps on two tiles of every unit. Generator b,
beside this file, was written from ``docs/reference/tile-language.md`` alone: phases over tensors of many
types, sizes and launches. Both know in NumPy what comes out. A program runs in the interpreter, as an
executed Plan, as C code on one and two threads and, of one device, as CUDA source with the header for the
CPU, in a process of its own. What lowering or a target says it cannot do is counted, not wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tests.differential.page_programs import PageProgram, page_program
from tests.language.tile.random_programs import RandomProgram, random_program

import megatile as mt
from megatile.lowering.errors import LoweringError
from megatile.targets.common.errors import CompileError

MACHINE = "dgx-h100"
TARGETS = ("interpreter", "plan", "cpu", "cpu, 2 threads", "cuda")
SECONDS = 120
ROOT = Path(__file__).parents[2]


class Case:
    """One program with fresh arrays for every run of it."""

    def __init__(self, generator: str, number: int) -> None:
        self.page = page_program(number) if generator == "b" else None
        self.steps = None if generator == "b" else random_program(number, one_device=number % 2 == 0)

    @property
    def program(self) -> Any:
        return (self.page or self.steps).program  # type: ignore[union-attr]

    @property
    def devices(self) -> int:
        if self.page is not None:
            return self.page.launch.devices
        assert self.steps is not None
        return int(np.prod(self.steps.config.devices))

    def arrays(self) -> list[Any]:
        if self.steps is not None:
            return self.steps.arrays()
        assert self.page is not None
        results = self.page.results()
        unused = [np.zeros((1, 1), np.float32)] * (4 - len(results))
        return [*self.page.inputs().values(), *results, *unused]

    def wrong(self, arrays: list[Any]) -> str | None:
        """What differs from NumPy's results."""
        if self.page is not None:
            return self.page.wrong(arrays[5 : 5 + len(self.page.phases)])
        assert self.steps is not None
        return _differs(self.steps, arrays)

    def __str__(self) -> str:
        case: RandomProgram | PageProgram | None = self.steps or self.page
        return str(case)


def _differs(case: RandomProgram, arrays: list[Any]) -> str | None:
    for name, got, wanted in zip("XY", arrays[4:], case.expected(), strict=True):
        if not np.allclose(got, wanted, rtol=1e-3, atol=1e-4, equal_nan=True):
            return f"{name} differs by up to {np.nanmax(np.abs(got - wanted))}: {case.steps}"
    return None


def ran(case: Case, target: str) -> list[Any]:
    """The arrays after a run on a target."""
    arrays = case.arrays()
    program = case.program
    if target == "interpreter":
        mt.run(program, *arrays, machine=MACHINE, output=lambda text: None, on_breakpoint=lambda unit: None)
    elif target == "plan":
        found = mt.execute(program, *arrays, machine=MACHINE)
        names = [param.name for param in program.build(MACHINE).params]
        arrays = [found.get(name, array) for name, array in zip(names, arrays, strict=True)]
    elif target == "cuda":
        mt.compile(program, target="cuda", machine=MACHINE)(*arrays)
    else:
        mt.compile(program, machine=MACHINE, threads=2 if "2" in target else 1)(*arrays)
    return arrays


def outcome(case: Case, target: str) -> str:
    """``equal``, ``refused: …`` or what is wrong."""
    if target == "cuda" and case.devices > 1:
        return "refused: several devices"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return case.wrong(ran(case, target)) or "equal"
    except (CompileError, LoweringError) as error:
        wrong_text = "compiler failed" in str(error)  # ours to write, so not a refusal
        return f"{'fails' if wrong_text else 'refused'}: {error}"
    except Exception as error:
        where = "".join(traceback.format_tb(error.__traceback__)[-3:])
        return f"fails: {type(error).__name__}: {error}\n{where}"


def outcomes(generator: str, number: int) -> dict[str, str]:
    """By target, in a process that ends with the program."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        signal.alarm(10 * SECONDS)  # by the clock, others use the processor too
        with os.fdopen(write, "w") as sink, contextlib.redirect_stdout(None):
            try:
                case = Case(generator, number)
                found = {target: outcome(case, target) for target in TARGETS}
            except BaseException as error:
                found = {"generator": f"fails: {type(error).__name__}: {error}"}
            sink.write(json.dumps(found))
            sink.flush()
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as source:
        said = source.read()
    _, status = os.waitpid(child, 0)
    return dict(json.loads(said)) if said else {"process": f"fails: ended with status {status}"}


def findings(found: dict[str, str]) -> list[str]:
    return [
        f"{target}: {said}" for target, said in found.items() if said != "equal" and said[:7] != "refused"
    ]


@contextlib.contextmanager
def own_cache() -> Iterator[None]:
    """Machine code of random programs does not stay."""
    with tempfile.TemporaryDirectory(prefix="megatile-differential-") as folder:
        os.environ["MEGATILE_CACHE"] = folder
        yield


def again(generator: str, document: dict[str, Any], save: Callable[[], None]) -> None:
    """Try what was found, once more."""
    entry = document[generator]
    for number in [*entry["findings"]]:
        found = outcomes(generator, int(number))
        wrong = findings(found)
        before = {line.partition(": ")[0] for line in entry["findings"].pop(number)}
        for target in before - {line.partition(": ")[0] for line in wrong}:
            entry["equal"][target] = entry["equal"].get(target, 0) + (found.get(target) == "equal")
        if wrong:
            entry["findings"][number] = wrong
            print(f"{generator}:{number} " + "\n  ".join(wrong), flush=True)
        save()


def tried(generator: str, count: int, document: dict[str, Any], save: Callable[[], None]) -> None:
    """Try the next programs of a generator."""
    entry = document.setdefault(generator, {"programs": 0, "equal": {}, "refused": {}, "findings": {}})
    equal, refused = Counter(entry["equal"]), Counter(entry["refused"])
    for number in range(entry["programs"], entry["programs"] + count):
        found = outcomes(generator, number)
        wrong = findings(found)
        if wrong:
            entry["findings"][str(number)] = wrong
            print(f"{generator}:{number} " + "\n  ".join(wrong), flush=True)
        for target, said in found.items():
            equal[target] += said == "equal"
            if said.startswith("refused"):
                refused[
                    f"{target}: {said.splitlines()[0].partition(': ')[2].partition(': ')[2] or said[9:]}"
                ] += 1
        entry |= {"programs": number + 1, "equal": equal, "refused": refused}
        save()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "count", type=int, nargs="?", default=100, help="programs of each generator, this time"
    )
    parser.add_argument("--generator", choices=("a", "b"), default=None)
    parser.add_argument("--state", type=Path, default=ROOT / "out" / "differential.json")
    parser.add_argument("--again", action="store_true", help="only what was found before")
    parser.add_argument("--replay", help="GENERATOR:NUMBER")
    asked = parser.parse_args()
    if asked.replay:
        generator, _, number = asked.replay.partition(":")
        print(Case(generator, int(number)))
        with own_cache():
            for target, said in outcomes(generator, int(number)).items():
                print(f"{target:<15} {said}")
        return 0
    asked.state.parent.mkdir(parents=True, exist_ok=True)
    document = json.loads(asked.state.read_text()) if asked.state.exists() else {}
    begin, turns = time.monotonic(), 0 if asked.again else -(-asked.count // 10)
    names = [asked.generator] if asked.generator else ["a", "b"]
    with own_cache():
        for name in names:  # what every program needs is imported once, before processes are made of this one
            for target in set(TARGETS) - {"cpu, 2 threads"}:  # whose threads the others would not have
                outcome(Case(name, 0), target)
        for name in names if asked.again else ():
            again(name, document, lambda: _save(asked.state, document))
        for turn in range(turns):
            for name in names:
                size = min(10, asked.count - 10 * turn)
                tried(name, size, document, lambda: _save(asked.state, document))
    for name, entry in document.items():
        print(f"generator {name}: {entry['programs']} programs, {len(entry['findings'])} with findings")
        for target in TARGETS:
            print(f"  {target:<15}{entry['equal'].get(target, 0):>6} equal")
        for reason, times in sorted(entry["refused"].items(), key=lambda item: -item[1])[:12]:
            print(f"  refused {times:>6} times by {reason[:150]}")
    print(f"{time.monotonic() - begin:.0f} s")
    return 1 if any(entry["findings"] for entry in document.values()) else 0


def _save(file: Path, document: dict[str, Any]) -> None:
    file.write_text(json.dumps(document, indent=1), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
