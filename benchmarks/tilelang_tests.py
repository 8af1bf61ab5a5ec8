"""Runs TileLang's own tests, of a checkout given by path, through megatile's door.

    python benchmarks/tilelang_tests.py CHECKOUT [--below testing/python/issue ...] [--only TEXT] [--csv FILE]

Nothing of the checkout is part of megatile. Each test counts as

* *passed*, or *skipped* by itself;
* *values*: its comparisons of values hold; its assertions on the compiler's text were passed over;
* *refused*: megatile said in one sentence what it has not;
* *text*: it looks only at the compiler's text or internals, which megatile does not have;
* *listed*: it expects an error of TileLang's compiler that megatile does not make, or takes too long on a
  CPU; ``tilelang_listed.txt`` (comma-separated) beside this script says why;
* *unrefused* and *slow*: the same, without a reason yet;
* *wrong*: a comparison of values failed; *error*: anything else, to be mended.

The exit code is 1 if a test is unrefused, slow, wrong or an error.
"""

from __future__ import annotations

import argparse
import ast
import csv
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

FOLDERS = ("testing/python/language", "testing/python/issue", "testing/python/cpu")
RESULTS = "MEGATILE_TEST_RESULTS"
LIMIT = "MEGATILE_TEST_SECONDS"
TOGETHER = 12
"""Files of one process."""
_TOUCHED = dict.fromkeys(("text", "passed over", "ran", "compared"), False)
"""What the present test did: looked at text, had assertions on it, ran a kernel, compared after that."""
_REFUSED: list[str] = []
"""What the present test was refused, whether or not it expects an error."""
_ERRORS: list[Any] = []
"""The errors that megatile made in the present test."""
LISTED = Path(__file__).with_name("tilelang_listed.txt")
OPEN = ("unrefused", "slow", "wrong", "error")
"""Results that are to be mended, or listed with a reason."""


class _TooLong(BaseException):
    """The test has not ended in time."""


# --- the plugin, inside the process of one file ---------------------------------------------------------


def pytest_configure(config: Any) -> None:
    """Note when a test looks at the text of a kernel."""
    if RESULTS not in os.environ:
        return
    from _pytest.assertion import rewrite

    from megatile.compat.tilelang import kernel, source
    from megatile.core.errors import MegatileError

    original, execute, rewrite_asserts = (
        kernel.Kernel.get_kernel_source,
        kernel.execute,
        rewrite.rewrite_asserts,
    )

    def noted_run(*arguments: Any) -> None:
        execute(*arguments)
        _TOUCHED["ran"] = True

    def without_text(module: Any, *rest: Any) -> None:
        TextAssertions(module).visit(module)
        rewrite_asserts(ast.fix_missing_locations(module), *rest)

    made = MegatileError.__init__

    def noted_error(self: Any, message: str = "", *rest: Any, **more: Any) -> None:
        """A test that expects any error must not pass by what megatile has not."""
        lacks = "has no counterpart" in message or "not in megatile's TileLang spelling" in message
        if lacks and not isinstance(self, AttributeError):
            _REFUSED.append(message)
        _ERRORS.append(self)
        made(self, message, *rest, **more)

    MegatileError.__init__ = noted_error  # type: ignore[method-assign]
    kernel.execute = noted_run
    rewrite.rewrite_asserts = without_text
    rewrite._read_pyc = lambda *_: None

    def noted(self: Any, *rest: Any, **more: Any) -> str:
        _TOUCHED["text"] = True
        return original(self, *rest, **more)

    kernel.Kernel.get_kernel_source = noted  # type: ignore[method-assign]
    kernel.Kernel.get_host_source = lambda self: noted(self) and "// no host code"  # type: ignore[method-assign]
    kernel.Kernel.kernel_source = property(noted)  # type: ignore[assignment]

    def script(self: Any, *_: Any, **__: Any) -> str:
        _TOUCHED["text"] = True
        return str(self)

    source.PrimFunc.script = script  # type: ignore[assignment]


class TextAssertions(ast.NodeTransformer):
    """Takes assertions on the compiler's text out of a test module; the others are noted when they run."""

    SOURCES = frozenset({"get_kernel_source", "get_host_source", "kernel_source", "host_source", "script"})

    def __init__(self, module: ast.Module):
        self.functions = {f.name: f for f in ast.walk(module) if isinstance(f, ast.FunctionDef)}
        self.texts: set[str] = set()
        """Functions that return text."""
        self.names: dict[str, set[str]] = {name: set() for name in self.functions}
        """Names of each function that hold text."""
        self.inside: list[str] = []
        before = None
        while before != (before := (len(self.texts), sum(map(len, self.names.values())))):
            for function in self.functions.values():
                self.follow(function)

    def of_text(self, node: ast.AST | None, names: set[str]) -> bool:
        return any(
            (isinstance(m, ast.Attribute) and m.attr in self.SOURCES)
            or (isinstance(m, ast.Name) and (m.id in names or m.id in self.texts))
            for m in (ast.walk(node) if node is not None else ())
        )

    def follow(self, function: ast.FunctionDef) -> None:
        names = self.names[function.name]
        for node in ast.walk(function):
            if isinstance(node, (ast.Assign, ast.For)):
                value = node.value if isinstance(node, ast.Assign) else node.iter
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if self.of_text(value, names):
                    names |= {m.id for t in targets for m in ast.walk(t) if isinstance(m, ast.Name)}
            elif isinstance(node, ast.Return) and self.of_text(node.value, names):
                self.texts.add(function.name)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                called = self.functions.get(node.func.id)
                given = [a.arg for a in called.args.args] if called else []
                found = [*zip(given, node.args, strict=False), *((k.arg, k.value) for k in node.keywords)]
                if called:
                    self.names[called.name] |= {a for a, v in found if a in given and self.of_text(v, names)}

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        self.inside.append(node.name)
        self.generic_visit(node)
        self.inside.pop()
        return node

    def visit_Assert(self, node: ast.Assert) -> Any:
        names = set().union(*(self.names[name] for name in self.inside))
        if self.of_text(node.test, names):
            return self.noting("passed over", node)
        return [self.noting("compared", node), node]

    def visit_Expr(self, node: ast.Expr) -> Any:
        function = node.value.func if isinstance(node.value, ast.Call) else None
        name = getattr(function, "attr", getattr(function, "id", ""))
        return [self.noting("compared", node), node] if "assert_" in name else node

    def noting(self, word: str, place: ast.AST) -> ast.stmt:
        statement = ast.parse(f"__import__({__name__!r}).note({word!r})").body[0]
        for node in ast.walk(statement):
            ast.copy_location(node, place)
        return statement


def note(word: str) -> None:
    _TOUCHED[word] |= word == "passed over" or _TOUCHED["ran"]


def _stop(*_: Any) -> None:
    raise _TooLong


def pytest_runtest_setup(item: Any) -> None:
    _TOUCHED.update(dict.fromkeys(_TOUCHED, False))
    _REFUSED.clear()
    _ERRORS.clear()
    signal.signal(signal.SIGALRM, _stop)
    signal.alarm(int(os.environ.get(LIMIT, "60")))


def pytest_runtest_makereport(item: Any, call: Any) -> None:
    if RESULTS not in os.environ:
        return
    if call.when == "call":
        signal.alarm(0)
    if call.when != "call" and call.excinfo is None:
        return
    if call.when == "teardown":
        return
    kind, why = classified(call.excinfo)
    with open(os.environ[RESULTS], "a", encoding="utf-8") as out:
        out.write(json.dumps({"test": item.nodeid, "result": kind, "why": why}) + "\n")


def classified(found: Any) -> tuple[str, str]:
    """The kind of a test's end, and one line about it."""
    import pytest

    from megatile.core.errors import MegatileError

    if found is None and _REFUSED:
        return "refused", f"{_REFUSED[-1]} (the test expects any error)"[:300]
    if found is None and _TOUCHED["passed over"]:
        return "values" if _TOUCHED["compared"] else "text", "assertions on the compiler's text passed over"
    if found is None:
        return "passed", ""
    error = found.value
    first = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
    if isinstance(error, pytest.skip.Exception):
        return "skipped", first
    if isinstance(error, _TooLong):
        return "slow", "not ended within the limit"
    if isinstance(error, MegatileError):
        return "refused", f"{error.message} ({error.advice})"[:300]
    if isinstance(error, pytest.fail.Exception):
        return "unrefused", first
    text = " ".join(str(error).split())
    if isinstance(error, AssertionError):
        values = any(
            word in text for word in ("ismatched", "not close", "allclose", "Not equal to tolerance")
        )
        if "Regex pattern did not match" in text and (_REFUSED or _ERRORS):
            said = _REFUSED[-1] if _REFUSED else _ERRORS[-1].message
            return "refused", f"{said} (the test expects other words)"[:300]
        if "Regex pattern did not match" in text or "Expect to report an error" in text:
            return "unrefused", first
        if (_TOUCHED["text"] or "megatile" in text) and not values:
            return "text", first
        return "wrong", first
    if _TOUCHED["text"] and isinstance(error, (ValueError, IndexError, StopIteration, AttributeError)):
        return "text", first
    return "error", f"{type(error).__name__}: {first}"


# --- the script -----------------------------------------------------------------------------------------


def run_files(files: list[Path], checkout: Path, seconds: int) -> list[dict[str, str]]:
    """The results of files; of those that stop the process, one by one."""
    results = Path(os.environ.get("TMPDIR", "/tmp")) / f"megatile-tests-{os.getpid()}.jsonl"
    results.unlink(missing_ok=True)
    environment = os.environ | {
        RESULTS: str(results), LIMIT: str(seconds), "PYTHONPATH": f"{Path(__file__).parent}{os.pathsep}"
        + os.environ.get("PYTHONPATH", ""), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    command = [
        sys.executable, "-m", "megatile.tilelang", "-m", "pytest", *map(str, files), "-q",
        "-p", "tilelang_tests", "-p", "no:cacheprovider", "-n", "0", "-c", os.devnull,
        "--continue-on-collection-errors", f"--rootdir={checkout}",
    ]  # fmt: skip
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=60 + 20 * seconds, check=False
        )
        said = (done.stdout + done.stderr).strip().splitlines()
    except subprocess.TimeoutExpired:
        said = ["the file did not end in time"]
    rows = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    results.unlink(missing_ok=True)
    rows = [row | {"file": row["test"].partition("::")[0]} for row in rows]
    done_files = {Path(row["file"]).name for row in rows}
    for file in files:
        if file.name in done_files:
            continue
        if len(files) > 1:
            rows += run_files([file], checkout, seconds)
            continue
        why = next((line for line in reversed(said) if "Error" in line), said[-1] if said else "nothing ran")
        kind = "refused" if "ProgramError" in why or "has no counterpart" in why else "error"
        if "no tests ran" in why or "deselected" in why:
            kind = "skipped"
        rows.append(
            {
                "file": file.name,
                "test": f"{file.name}::*",
                "result": kind,
                "why": f"not collected: {why}"[:300],
            }
        )
    return rows


def with_reasons(rows: list[dict[str, str]]) -> None:
    """Tests that expect another compiler's errors, or are too long: listed, with the reason."""
    with LISTED.open(newline="", encoding="utf-8") as text:
        reasons = [(row["test"], row["why"]) for row in csv.DictReader(text)]
    for row in rows:
        if row["result"] in ("unrefused", "slow"):
            head, bracket, case = row["test"].partition("[")
            name = head.rpartition("/")[2] + bracket + case
            why = next((why for pattern, why in reasons if fnmatchcase(name, pattern)), None)
            if why is not None:
                row["result"], row["why"] = "listed", why


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--below", nargs="*", default=FOLDERS)
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=int, default=30, help="of one test")
    parser.add_argument("--csv", type=Path)
    given = parser.parse_args()
    files = [f for folder in given.below for f in sorted((given.checkout / folder).rglob("test_*.py"))]
    files = [f for f in files if given.only in f.name]
    if not files:
        sys.exit(f"error: no tests below {given.checkout} (try: the root of a checkout of TileLang)")
    rows: list[dict[str, str]] = []
    for start in range(0, len(files), TOGETHER):
        mine = run_files(files[start : start + TOGETHER], given.checkout, given.seconds)
        rows += mine
        found = dict(Counter(row["result"] for row in mine))
        print(f"{min(start + TOGETHER, len(files))} of {len(files)} files: {found}", flush=True)
    with_reasons(rows)
    if given.csv:
        with given.csv.open("w", newline="", encoding="utf-8") as out:
            writer = csv.DictWriter(out, ("file", "test", "result", "why"))
            writer.writeheader()
            writer.writerows(rows)
    counts = Counter(row["result"] for row in rows)
    print(
        f"{len(rows)} tests of {len(files)} files: "
        + ", ".join(f"{n} {kind}" for kind, n in counts.most_common())
    )
    sys.exit(any(counts[kind] for kind in OPEN))


if __name__ == "__main__":
    main()
