"""``python -m tests.mutation.run``: change one thing in the sources, and see whether a test notices.

    make mutate SEED=1                              the 200 mutants of a seed; goes on where it stopped
    make mutate SEED=1 MUTATE_ARGS='--count 20 --folders plan,cost'
    make mutate SEED=1 MUTATE_ARGS='--again'        what survived, once more: after tests were written
    make mutate SEED=1 MUTATE_ARGS='--replay 17'    one mutant again, with the output of its tests

Which mutants a seed has depends on the sources only (`mutants`). Each is made in a copy of ``src/``, never in
the tree, and the tests of its folder run against it: those that call the changed function (`calls`), the
quickest first, then the others, as many as take SECONDS together without a change. They run in forks of one
process that has collected them (`warm`); what is translated at import, and with ``--again`` everything, in a
new process. A mutant is killed by a test that fails, or by the time limit: SLOWER times the processor time
that its tests take.
The state file keeps every outcome; survivors are printed, to be judged.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.mutation.mutants import FOLDERS, ROOT, Mutant, mutants
from tests.mutation.warm import WALL_CLOCK, translated

SECONDS = 60.0
"""Processor time of the tests that may run against one mutant, as they take without a change."""
SLOWER = 3.0
"""How much longer than without a change tests may take, and at least a minute."""
RUNS_THE_ENGINE = "sim/compiled.py"
"""The file whose functions every simulation calls."""
Calls = dict[str, tuple[float, list[str]]]
"""By test: its seconds and the functions it calls."""


def chosen_tests(mutant: Mutant, calls: Calls, most: float) -> list[str]:
    """The tests that call the changed function, the quickest first, then the others; so many seconds' worth.

    Functions of the engine are translated, never called: any test that simulates may notice those.
    """
    engine = translated(Path(mutant.file))
    wanted = RUNS_THE_ENGINE if engine else mutant.code

    def order(test: str) -> tuple[bool, float, str]:
        seconds, called = calls[test]
        names = {name.partition(":")[0] for name in called} if engine else called
        return wanted not in names, seconds, test

    chosen, total = [], 0.0
    for test in sorted(calls, key=order):
        total += calls[test][0]
        if total > most and chosen:
            break
        chosen.append(test)
    return chosen


def environment(copy: Path, **more: str) -> dict[str, str]:
    """What tests see: the copy of the sources, no byte code, nothing that hypothesis keeps of a mutant."""
    kept = {"HYPOTHESIS_STORAGE_DIRECTORY": str(copy.parent / "hypothesis"), "PYTHONDONTWRITEBYTECODE": "1"}
    return {**os.environ, "PYTHONPATH": f"{copy}{os.pathsep}{ROOT}", **kept, **more}


def pytest_command(*arguments: str) -> list[str]:
    options = ("-q", "-n", "0", "-p", "no:cacheprovider", "--hypothesis-seed=0", *arguments)
    return [sys.executable, "-m", "pytest", *options]


def run_tests(
    tests: list[str], copy: Path, seconds: float | None, show: bool = False, **more: str
) -> int | None:
    """The exit code of a new process with tests, against a copy of the sources; None: they took longer."""
    out = None if show else subprocess.DEVNULL
    run = subprocess.Popen(
        pytest_command(*tests), cwd=ROOT, env=environment(copy, **more), stdout=out, stderr=out,
        start_new_session=True,
    )  # fmt: skip
    try:
        return run.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):  # and what the tests have started
            os.killpg(run.pid, signal.SIGKILL)
        run.wait()


def calls_of(folder: str, copy: Path) -> Calls:
    """What the tests of a folder call, noted in one run without a change and kept beside the state."""
    file = copy.parent / f"calls_{folder}.json"
    if not file.exists():
        print(f"running the tests of {folder} without a change", flush=True)
        if run_tests(["-p", "tests.mutation.calls", f"tests/{folder}"], copy, None, MEGATILE_CALLS=str(file)):
            print(f"some tests of {folder} fail without a change: they are left out", flush=True)
    return {test: (taken, called) for test, (taken, called) in json.loads(file.read_text()).items()}


class Warm:
    """A process that has collected the tests of a folder and runs them against mutants in forks."""

    def __init__(self, folder: str, copy: Path) -> None:
        (source, self._write), (self._read, sink) = os.pipe(), os.pipe()
        self._run = subprocess.Popen(
            pytest_command("-p", "tests.mutation.warm", f"tests/{folder}"), cwd=ROOT, pass_fds=(source, sink),
            env=environment(copy, MEGATILE_MUTANTS=f"{source},{sink}"), stdout=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(source)
        os.close(sink)
        self._requests = os.fdopen(self._write, "w", encoding="utf-8")
        self._answers = os.fdopen(self._read, encoding="utf-8")
        self.tests = set(json.loads(self._answers.readline()))

    def ask(self, mutant: Mutant, text: str, tests: list[str], seconds: float) -> tuple[str, str]:
        """The outcome, and the test that was the last."""
        wanted = [test for test in tests if test in self.tests]
        request = {"file": mutant.file, "text": text, "tests": wanted, "seconds": seconds}
        print(json.dumps(request), file=self._requests, flush=True)
        outcome, test = json.loads(self._answers.readline())
        return outcome, test

    def close(self) -> None:
        self._requests.close()
        self._run.wait()
        self._answers.close()


@contextlib.contextmanager
def changed(mutant: Mutant, copy: Path) -> Iterator[str]:
    """The copy of the sources with a mutant in it."""
    target = copy / "megatile" / mutant.file
    original = target.read_bytes()
    target.write_bytes(mutant.text().encode())
    try:
        yield mutant.text()
    finally:
        target.write_bytes(original)


def outcome(
    mutant: Mutant, copy: Path, calls: Calls, warm: Warm, seconds: float, again: bool
) -> dict[str, Any]:
    """``killed``, ``timeout`` or ``survived``; by which test, where that is known; the seconds it took."""
    begin = time.monotonic()
    limit = lambda tests: max(60.0, SLOWER * sum(calls[test][0] for test in tests))  # noqa: E731
    said, by = "fresh", ""
    with changed(mutant, copy) as text:
        if not translated(Path(mutant.file)):
            tests = chosen_tests(mutant, calls, seconds)
            said, by = warm.ask(mutant, text, tests, limit(tests))
        if said == "fresh" or (again and said == "survived"):
            tests = chosen_tests(mutant, calls, seconds)
            code = run_tests(["-x", *tests], copy, WALL_CLOCK * limit(tests))
            said, by = {0: "survived", None: "timeout"}.get(code, "killed"), ""
    return {"outcome": said, "by": by, "seconds": round(time.monotonic() - begin, 1)}


def replay(mutant: Mutant, copy: Path) -> None:
    """Run the tests of a mutant in a new process and show what they print."""
    print(f"src/megatile/{mutant.file}:{mutant.line}\n- {mutant.before.rstrip()}\n+ {mutant.after.rstrip()}")
    tests = chosen_tests(mutant, calls_of(mutant.folder, copy), SECONDS)
    with changed(mutant, copy):
        code = run_tests(["-x", *tests], copy, None, show=True)
    print("survived" if code == 0 else "killed")


def report(every: list[Mutant], known: dict[str, Any]) -> int:
    """Print a line for each folder and for each survivor; 1 if less than nine in ten are killed."""
    rows = collections.defaultdict(list)
    for one in every:
        rows[one.folder].append(known[one.key]["outcome"])
    for folder, found in sorted(rows.items()):
        print(f"{folder:<14}{len(found):>4} mutants {len(found) - found.count('survived'):>4} killed")
    lasting = [(n, one) for n, one in enumerate(every) if known[one.key]["outcome"] == "survived"]
    for number, one in lasting:
        print(f"survived: {number:>3} {one.key}")
    print(f"{len(every) - len(lasting)} of {len(every)} killed")
    return 1 if len(lasting) * 10 > len(every) else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="see whether tests notice changes of the sources")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--folders", default=",".join(FOLDERS))
    parser.add_argument("--state", type=Path, default=ROOT / "out" / "mutate.json")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of tests for one mutant")
    parser.add_argument("--again", action="store_true", help="try once more what survived")
    parser.add_argument("--replay", type=int, metavar="NUMBER")
    given = parser.parse_args()
    every = mutants(given.seed, given.count, tuple(given.folders.split(",")))
    copy = given.state.resolve().parent / "mutate" / "src"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(ROOT / "src", copy, ignore=shutil.ignore_patterns("__pycache__"))
    if given.replay is not None:
        replay(every[given.replay], copy)
        return 0
    known = json.loads(given.state.read_text(encoding="utf-8")) if given.state.exists() else {}
    ends = ("killed", "timeout") if given.again else ("killed", "timeout", "survived")
    for folder in given.folders.split(","):
        todo = [m for m in every if m.folder == folder and known.get(m.key, {}).get("outcome") not in ends]
        if not todo:
            continue
        calls = calls_of(folder, copy)
        warm = Warm(folder, copy)
        for one in todo:
            known[one.key] = outcome(one, copy, calls, warm, given.seconds, given.again)
            given.state.write_text(json.dumps(known, indent=1), encoding="utf-8")
            print(f"{known[one.key]['outcome']:<9}{known[one.key]['seconds']:>6} s  {one.key}", flush=True)
        warm.close()
    return report(every, known)


if __name__ == "__main__":
    sys.exit(main())
