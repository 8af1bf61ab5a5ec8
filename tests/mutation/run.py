"""``python -m tests.mutation.run``: change one thing in the sources, and see whether a test notices.

    make mutate SEED=1                              the 200 mutants of a seed; goes on where it stopped
    make mutate SEED=1 MUTATE_ARGS='--count 20 --folders plan,cost'
    make mutate SEED=1 MUTATE_ARGS='--replay 17'    one mutant again, with the output of its tests

Mutant n depends on the seed and the sources only. It is made in a copy of ``src/``, never in the tree, and
the tests of its folder run against it: first those that call the changed function (`calls`), the quickest
first, then all. A mutant is killed by a test that fails or by the time limit, SLOWER times what the tests of
the folder take without a change. The state file keeps every outcome; survivors are printed, to be judged.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "megatile"
FOLDERS = ("sim", "lowering", "plan", "cost", "collectives", "runtime", "targets", "hda")
MAX_FIRST_SECONDS = 60.0
"""How long the tests take together that run before those of the whole folder."""
RUNS_THE_ENGINE = "sim/compiled.py"
"""The file whose functions every simulation calls."""
Calls = dict[str, tuple[float, list[str]]]
"""By test: its seconds and the functions it calls."""
SLOWER = 3.0
"""How much longer than without a change tests may take, and at least a minute."""

SWAPS: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Add: ast.Sub,
    ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.And: ast.Or,
    ast.Or: ast.And,
}  # fmt: skip


class Mutant(NamedTuple):
    """One change of one file."""

    file: Path
    line: int
    before: str
    after: str

    @property
    def name(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line}"


def mutations(tree: ast.AST) -> list[tuple[ast.expr, ast.expr]]:
    """Expressions of functions, each with what stands in its place."""
    found: list[tuple[ast.expr, ast.expr]] = []
    functions = [n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
    inside = {id(n): n for f in functions for s in f.body for n in ast.walk(s)}
    for node in inside.values():
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in SWAPS:
            other = SWAPS[type(node.ops[0])]()
            found.append((node, ast.Compare(node.left, [other], node.comparators)))
        elif isinstance(node, ast.BinOp) and type(node.op) in SWAPS and not _text(node.left):
            found.append((node, ast.BinOp(node.left, SWAPS[type(node.op)](), node.right)))
        elif isinstance(node, ast.BoolOp):
            found.append((node, ast.BoolOp(SWAPS[type(node.op)](), node.values)))
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            found.append((node, node.operand))
        elif isinstance(node, ast.Constant) and type(node.value) is int:
            found.append((node, ast.Constant(node.value + 1)))
        elif isinstance(node, ast.Constant) and type(node.value) is bool:
            found.append((node, ast.Constant(not node.value)))
        elif isinstance(node, ast.IfExp):
            found.append((node, ast.IfExp(node.test, node.orelse, node.body)))
    messages = {
        id(n) for r in ast.walk(tree) if isinstance(r, (ast.Raise, ast.JoinedStr)) for n in ast.walk(r)
    }
    single = [(a, b) for a, b in found if a.lineno == a.end_lineno and id(a) not in messages]
    return sorted(single, key=lambda pair: (pair[0].lineno, pair[0].col_offset, ast.dump(pair[1])))


def _text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def mutants(seed: int, count: int, folders: tuple[str, ...]) -> list[Mutant]:
    """The first mutants of a seed, spread evenly over what can be changed in the folders."""
    sites = [
        (file, number)
        for folder in folders
        for file in sorted((SOURCE / folder).rglob("*.py"))
        for number in range(len(mutations(ast.parse(file.read_text(encoding="utf-8")))))
    ]
    chosen = random.Random(seed).sample(sites, min(count, len(sites)))
    return [_made(file, number) for file, number in chosen]


def _made(file: Path, number: int) -> Mutant:
    text = file.read_text(encoding="utf-8")
    old, new = mutations(ast.parse(text))[number]
    lines = text.splitlines(keepends=True)
    line = lines[old.lineno - 1].encode()
    changed = line[: old.col_offset] + f"({ast.unparse(new)})".encode() + line[old.end_col_offset :]
    return Mutant(file, old.lineno, lines[old.lineno - 1], changed.decode())


def folder_of(mutant: Mutant) -> str:
    return mutant.file.relative_to(SOURCE).parts[0]


def function_of(mutant: Mutant) -> str:
    """The innermost function around a change, by file and first line as code objects count them."""
    tree = ast.parse(mutant.file.read_text(encoding="utf-8"))
    around = [
        min([node.lineno, *(d.lineno for d in node.decorator_list)])
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and node.lineno <= mutant.line <= (node.end_lineno or 0)
    ]
    return f"{mutant.file.relative_to(SOURCE)}:{max(around)}"


def quickest_tests(mutant: Mutant, calls: Calls) -> list[str]:
    """The tests that call the changed function, the quickest first, at most MAX_FIRST_SECONDS together.

    Functions of the engine are translated, never called: any test that simulates may notice those.
    """
    translated = "engine" in mutant.file.parts
    wanted = RUNS_THE_ENGINE if translated else function_of(mutant)
    calling = sorted(
        (taken, test) for test, (taken, called) in calls.items() if wanted in _names(called, translated)
    )
    chosen, total = [], 0.0
    for taken, test in calling:
        total += taken
        if total > MAX_FIRST_SECONDS:
            break
        chosen.append(test)
    return chosen


def _names(called: list[str], files_only: bool) -> set[str]:
    return {name.partition(":")[0] for name in called} if files_only else set(called)


def run_tests(
    paths: list[str], copy: Path, seconds: float | None, more: dict[str, str], show: bool = False
) -> int | None:
    """The exit code of the tests against a copy of the sources; None: they took longer."""
    env = {**os.environ, "PYTHONPATH": f"{copy}{os.pathsep}{ROOT}", "PYTHONDONTWRITEBYTECODE": "1", **more}
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *paths]
    out = None if show else subprocess.DEVNULL
    run = subprocess.Popen(command, cwd=ROOT, env=env, stdout=out, stderr=out, start_new_session=True)
    try:
        return run.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):  # and what the tests have started
            os.killpg(run.pid, signal.SIGKILL)
        run.wait()


def calls_of(folder: str, copy: Path, state: Path) -> Calls:
    """What the tests of a folder call, noted in one run without a change and kept beside the state."""
    file = state.parent / "mutate" / f"calls_{folder}.json"
    if not file.exists():
        print(f"running the tests of {folder} without a change", flush=True)
        more = ["-p", "tests.mutation.calls"]
        if run_tests([*more, f"tests/{folder}"], copy, None, {"MEGATILE_CALLS": str(file)}):
            print(f"some tests of {folder} fail without a change: they are left out", flush=True)
    return {test: (taken, called) for test, (taken, called) in json.loads(file.read_text()).items()}


def outcome(mutant: Mutant, copy: Path, calls: Calls, slower: float, show: bool = False) -> str:
    """``killed``, ``survived`` or ``timeout``."""
    limit = max(60.0, slower * sum(taken for taken, _ in calls.values()))
    target = copy / mutant.file.relative_to(ROOT / "src")
    original = target.read_text(encoding="utf-8")
    lines = original.splitlines(keepends=True)
    lines[mutant.line - 1] = mutant.after
    target.write_text("".join(lines), encoding="utf-8")
    try:
        for tests in (quickest_tests(mutant, calls), sorted(calls)):
            code = run_tests(["-x", *tests], copy, limit, {}, show) if tests else 0
            if code is None:
                return "timeout"
            if code:
                return "killed"
    finally:
        target.write_text(original, encoding="utf-8")
    return "survived"


def main() -> int:
    parser = argparse.ArgumentParser(description="see whether tests notice changes of the sources")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--folders", default=",".join(FOLDERS))
    parser.add_argument("--state", type=Path, default=ROOT / "out" / "mutate.json")
    parser.add_argument("--slower", type=float, default=SLOWER, help="time limit; more on a busy computer")
    parser.add_argument("--replay", type=int)
    given = parser.parse_args()
    every = mutants(given.seed, given.count, tuple(given.folders.split(",")))
    copy = given.state.parent / "mutate" / "src"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(ROOT / "src", copy, ignore=shutil.ignore_patterns("__pycache__"))
    known = json.loads(given.state.read_text(encoding="utf-8")) if given.state.exists() else {}
    if given.replay is not None:
        one = every[given.replay]
        print("".join(difflib.ndiff([one.before], [one.after])), end="")
        print(
            one.name, outcome(one, copy, calls_of(folder_of(one), copy, given.state), given.slower, show=True)
        )
        return 0
    for number, one in enumerate(every):
        key = f"{one.name} {one.after.strip()}"
        if key not in known:
            known[key] = outcome(one, copy, calls_of(folder_of(one), copy, given.state), given.slower)
            given.state.write_text(json.dumps(known, indent=1), encoding="utf-8")
        print(f"{number:4} {known[key]:9} {one.name}", flush=True)
    found = [(one, known[f"{one.name} {one.after.strip()}"]) for one in every]
    survivors = [one for one, what in found if what == "survived"]
    print(f"{len(found)} mutants of seed {given.seed}: {len(found) - len(survivors)} killed, "
          f"{sum(what == 'timeout' for _, what in found)} of them by the time limit")  # fmt: skip
    for one in survivors:
        print(f"survived: {one.name}\n  - {one.before.strip()}\n  + {one.after.strip()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
