"""``python -m tests.mutation.run``: change one thing in the sources, and see whether a test notices.

    make mutate SEED=1                              the 200 mutants of a seed; goes on where it stopped
    make mutate SEED=1 MUTATE_ARGS='--folders plan,cost'    those in some folders
    make mutate SEED=1 MUTATE_ARGS='--again'        what survived, once more: after tests were written
    make mutate SEED=1 MUTATE_ARGS='--replay 17'    one mutant again, with the output of its tests

Which mutants a seed has depends on the sources only (`mutants`). Each is made in a copy of ``src/``, never in
the tree. The tests of its folder run against it in a fork of one process that has collected them (`warm`):
first those of the module's name and the tables of `tests.expected`, then those whose file mentions the
changed function, lies in the module's folder or mentions it, then all others, until SECONDS of processor time
are over. Where a folder has many mutants, its tests run once before, so that it is known what they call:
those that call the changed function come first, quick ones before slow ones, those that do not last. A mutant
is killed by a test that fails, or that takes far longer than without the change. The state file keeps every
outcome; survivors are printed, to be judged.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from tests.mutation.mutants import FOLDERS, ROOT, SOURCE, Mutant, mutants
from tests.mutation.warm import WALL_CLOCK

SECONDS = 30.0
"""Processor time of the tests that run against one mutant."""
RUNS_THE_ENGINE = "sim/compiled.py"
"""The file whose functions every simulation calls."""
LEARN_FROM = 10
"""Mutants of a folder for which its tests are run once without a change."""
LEARN_SECONDS = 10_000.0
"""Processor time that this may take."""
QUICK = 0.5
"""Seconds that make no difference between tests."""
FRESH_FILES = 6
"""Files of tests for a mutant that needs a new process."""
Known = dict[str, tuple[float, list[str]]]
"""By test that has run: its seconds, and which of the functions to change it calls."""


def ordered(mutant: Mutant, tests: Iterable[str], known: Known) -> list[str]:
    """Tests in the order in which they are likely to notice the change at the least cost.

    Functions of the engine are translated, never called: any test that simulates may notice those.
    """
    place = Path(mutant.file)
    module, function = place.stem, mutant.function.rpartition(".")[2]
    engine = "engine" in Path(mutant.file).parts
    dotted = mutant.file.removesuffix(".py").replace("/", ".")

    @cache
    def rank(file: str) -> int:
        text = (ROOT / file).read_text(encoding="utf-8")
        simulates = engine and "simulate(" in text
        signs = (
            module in Path(file).stem, f"{function}(" in text, Path(file).parent == "tests" / place.parent,
            dotted in text or simulates, place.parent.name in text,
        )  # fmt: skip
        return signs.index(True) if True in signs else len(signs)

    def order(test: str) -> tuple[int, int, int, int, str]:
        file, _, name = test.partition("::")
        own = rank(file) == 0 or Path(file).stem.startswith("test_expected")
        named = function.strip("_") in name or module in name
        place_in_line = 0 if own and named else 1 if own else 2 if named else 2 + rank(file)
        seconds, called = known.get(test, (0.0, None))
        calls = 1 if called is None or engine else 0 if mutant.code in called else 2
        # Of equal ones a sample, not those of the first files.
        mixed = hashlib.sha256(test.encode()).hexdigest()
        slow = round(seconds / QUICK)
        return calls, 0 if calls else slow, place_in_line, slow, mixed

    return sorted(tests, key=order)


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


class Warm:
    """A process that has collected the tests of a folder and runs them against mutants in forks."""

    def __init__(self, folder: str, copy: Path, watched: Iterable[Mutant] = ()) -> None:
        (source, self._write), (self._read, sink) = os.pipe(), os.pipe()
        self._run = subprocess.Popen(
            pytest_command("-p", "tests.mutation.warm", f"tests/{folder}"), cwd=ROOT, pass_fds=(source, sink),
            env=environment(copy, MEGATILE_MUTANTS=f"{source},{sink}"), stdout=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(source)
        os.close(sink)
        self._requests = os.fdopen(self._write, "w", encoding="utf-8")
        self._answers = os.fdopen(self._read, encoding="utf-8")
        begun = json.loads(self._answers.readline())
        self.tests, self.called = set(begun["tests"]), set(begun["called"])
        self.known: Known = {}
        self._watched = sorted({mutant.code for mutant in watched})

    def ask(self, mutant: Mutant, text: str, tests: list[str], seconds: float) -> tuple[str, str]:
        """The outcome, and the test that was the last."""
        wanted = [test for test in tests if test in self.tests]
        request = {"file": mutant.file, "text": text, "tests": wanted, "seconds": seconds,
                   "watched": self._watched}  # fmt: skip
        print(json.dumps(request), file=self._requests, flush=True)
        outcome, test, found = json.loads(self._answers.readline())
        self.known |= found
        return outcome, test

    def learn(self, mutant: Mutant) -> None:
        """Run every test without a change, to know what each calls; one that fails or is slow is left out."""
        original = (SOURCE / mutant.file).read_text(encoding="utf-8")
        while left := sorted(self.tests - set(self.known)):
            _, wrong = self.ask(mutant, original, left, LEARN_SECONDS)
            self.tests.discard(wrong)

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


def outcome(mutant: Mutant, copy: Path, warm: Warm, seconds: float) -> dict[str, Any]:
    """``killed``, ``timeout`` or ``survived``; by which test, where that is known; the seconds it took."""
    begin, tests = time.monotonic(), ordered(mutant, warm.tests, warm.known)
    original = (SOURCE / mutant.file).read_text(encoding="utf-8")
    said, by = "slow", ""
    while said == "slow":
        with changed(mutant, copy) as text:
            said, by = warm.ask(mutant, text, tests, seconds)
            if said == "fresh" or (said == "survived" and mutant.code in warm.called):
                paths = list(dict.fromkeys(test.partition("::")[0] for test in tests))[:FRESH_FILES]
                code = run_tests(["-x", *paths], copy, WALL_CLOCK * seconds)
                said = "killed" if code else "survived"
        if said == "slow":
            # It never ends, or always takes long: then others are asked.
            usual, _ = warm.ask(mutant, original, [by], seconds)
            said = "timeout" if usual == "survived" else "slow"
            tests = [test for test in tests if test != by]
    return {"outcome": said, "by": by, "seconds": round(time.monotonic() - begin, 1)}


def replay(mutant: Mutant, copy: Path) -> None:
    """Run the tests of a mutant in a new process and show what they print."""
    print(
        f"src/megatile/{mutant.file}:{mutant.line}\n- {mutant.before.rstrip()}\n+ {mutant.after.rstrip()}",
        flush=True,
    )
    paths = [
        path.relative_to(ROOT).as_posix() for path in (ROOT / "tests" / mutant.folder).rglob("test_*.py")
    ]
    with changed(mutant, copy):
        code = run_tests(["-x", *ordered(mutant, paths, {})], copy, None, show=True)
    print("survived" if code == 0 else "killed")


def report(every: list[Mutant], known: dict[str, Any]) -> int:
    """Print a line for each folder and for each survivor; 1 if less than nine in ten are killed."""
    every, asked = [one for one in every if one.key in known], every
    rows = collections.defaultdict(list)
    for one in every:
        rows[one.folder].append(known[one.key]["outcome"])
    for folder, found in sorted(rows.items()):
        print(f"{folder:<14}{len(found):>4} mutants {len(found) - found.count('survived'):>4} killed")
    lasting = [(n, one) for n, one in enumerate(asked) if known.get(one.key, {}).get("outcome") == "survived"]
    for number, one in lasting:
        print(f"survived: {number:>3} {one.key}")
    print(f"{len(every) - len(lasting)} of {len(every)} killed, {len(asked) - len(every)} not tried")
    return 1 if len(lasting) * 10 > len(every) else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="see whether tests notice changes of the sources")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--folders", default=",".join(FOLDERS))
    parser.add_argument("--state", type=Path, default=ROOT / "out" / "mutate.json")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of tests for one mutant")
    parser.add_argument("--again", action="store_true", help="try once more what survived")
    parser.add_argument("--only", default="", help="mutants whose name contains this")
    parser.add_argument("--replay", type=int, metavar="NUMBER")
    given = parser.parse_args()
    folders = given.folders.split(",")
    every = [mutant for mutant in mutants(given.seed, given.count) if mutant.folder in folders]
    copy = given.state.resolve().parent / "mutate" / "src"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(ROOT / "src", copy, ignore=shutil.ignore_patterns("__pycache__"))
    if given.replay is not None:
        replay(every[given.replay], copy)
        return 0
    known = json.loads(given.state.read_text(encoding="utf-8")) if given.state.exists() else {}
    ends = ("killed", "timeout") if given.again else ("killed", "timeout", "survived")
    for folder in folders:
        todo = [
            m for m in every
            if m.folder == folder and given.only in m.key and known.get(m.key, {}).get("outcome") not in ends
        ]  # fmt: skip
        if not todo:
            continue
        warm = Warm(folder, copy, todo)
        if len(todo) >= LEARN_FROM:
            warm.learn(todo[0])
        for one in todo:
            known[one.key] = outcome(one, copy, warm, given.seconds)
            given.state.write_text(json.dumps(known, indent=1), encoding="utf-8")
            print(f"{known[one.key]['outcome']:<9}{known[one.key]['seconds']:>6} s  {one.key}", flush=True)
        warm.close()
    return report(every, known)


if __name__ == "__main__":
    sys.exit(main())
