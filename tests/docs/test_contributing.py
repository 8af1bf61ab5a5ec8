"""The diffs of CONTRIBUTING.md fit the files they are for, and the one that adds a command works."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
DIFFS = re.findall(r"^```diff\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def parts(diff: str) -> list[str]:
    """Return the parts of a diff, one per file."""
    return [part for part in re.split(r"^(?=--- )", diff, flags=re.MULTILINE) if part]


def path_of(part: str) -> str:
    return part.splitlines()[1].removeprefix("+++ b/")


def hunks(part: str) -> Iterator[tuple[str, str]]:
    """Yield the old and the new lines of each hunk."""
    for hunk in re.split(r"^@@.*\n", part, flags=re.MULTILINE)[1:]:
        lines = hunk.splitlines()
        old, new = ("\n".join(x[1:] for x in lines if x[:1] in ("", " ", mark)) for mark in "-+")
        yield old, new


@pytest.mark.parametrize("part", [part for diff in DIFFS for part in parts(diff)], ids=path_of)
def test_a_diff_fits_its_file(part: str) -> None:
    """What it takes away and leaves is there; one that has been applied has its new lines there."""
    for old, new in hunks(part):
        if part.startswith("--- /dev/null"):
            compile(new, path_of(part), "exec")
            continue
        text = (ROOT / path_of(part)).read_text(encoding="utf-8")
        assert old
        assert old in text or new in text


def test_there_is_a_diff_for_each_kind_of_change() -> None:
    assert sorted(len(parts(diff)) for diff in DIFFS) == [1, 1, 2, 2, 5]


def test_the_files_it_names_exist() -> None:
    """Paths of folders and modules in the text are those of the tree, from the package or from the root."""
    text = re.sub(r"^ *```[a-z].*?^ *```$", "", TEXT, flags=re.MULTILINE | re.DOTALL)
    named = set(re.findall(r"`([\w-]+(?:/[\w-]+)*/(?:[\w-]+\.(?:py|md))?)`", text))
    assert len(named) > 40
    inside = {"common/", "kernel/", "tile/"}  # of language/
    made = {"benchmarks/bench_NAME.py"}
    roots = [ROOT, ROOT / "src" / "megatile", ROOT / "src"]
    assert {n for n in named if not any((root / n).exists() for root in roots)} == inside | made


USE_THE_COMMAND = '''
from megatile.cost.price import price
from megatile.plan.check import check
from megatile.plan.execute import execute
from megatile.plan.model import Plan
from megatile.sim import simulate
from toys import toy

TEXT = """plan("sleepy", scale="core", grid=(2,))
x = tile(f32, (4,), memory="local", role="inout")
ready = flag(members=1)
with units((0, 1, 1)):
    for k in range(-1, 3, 1):
        sleep(ns=k * 100)
    signal(ready, to=1)
with units((1, 2, 1)):
    sleep(ns=50)
    wait(ready, value=1)
    sleep(ns=25)
    x <- fill(value=2)
"""
plan = Plan.from_text(TEXT)
assert str(plan) == TEXT
assert Plan.from_json(plan.to_json()) == plan
check(plan)
assert execute(plan, {"x": [[1] * 4] * 2})["x"].tolist() == [[1] * 4, [2] * 4]
# Unit 0 sleeps 0, 0, 100 and 200 ns; its signal takes 100 ps and 8 ps for 8 bytes; unit 1 sleeps 25 ns, and
# the vector engine takes 5 ps to start, with no work said.
BY_HAND = 300_000 + 108 + 25_000 + 5
for engine in ("plain", "compiled"):
    result = simulate(plan, machine=toy(2), engine=engine)
    assert result.time_ps == BY_HAND, (engine, result.time_ps)
    slept = [(e.unit, e.start_ps, e.end_ps) for e in result.trace if e.operation == "sleep"]
    assert slept == [
        ("core0", 0, 0), ("core0", 0, 0), ("core0", 0, 100_000), ("core0", 100_000, 300_000),
        ("core1", 0, 50_000), ("core1", 300_108, 325_108),
    ], slept
ANY = """plan("any", scale="core", grid=(2,))
x = tile(f32, (8,), memory="local", role="input")
q = channel(source=0, slots=1, slot_bytes=32, memory="local")
with units((0, 1, 1)):
    sleep(ns=100)
    send(q, x, to=1, bytes=32)
with units((1, 2, 1)):
    m, c <- receive_any(q, f32[8], members=(0,), bytes=32)
    sleep(ns=100)
"""
for each in (plan, Plan.from_text(ANY)):
    bounds = price(each, toy(2))
    assert bounds.lower_ps <= simulate(each, machine=toy(2)).time_ps <= bounds.upper_ps, bounds
print("all right")
'''


def test_the_command_of_the_diff_works(tmp_path: Path) -> None:
    """Apply the diff to a copy of the sources: the command is read, checked, executed and timed."""
    (diff,) = (diff for diff in DIFFS if "b/src/megatile/plan/statements.py" in diff)
    shutil.copytree(ROOT / "src", tmp_path / "src")  # with bytecode, which stays valid
    for part in parts(diff):
        file = tmp_path / path_of(part)
        text = file.read_text(encoding="utf-8")
        for old, new in hunks(part):
            assert text.count(old) == 1, f"{path_of(part)} must have these lines once:\n{old}"
            text = text.replace(old, new)
        file.write_text(text, encoding="utf-8")
    folders = os.pathsep.join(str(folder) for folder in (tmp_path / "src", ROOT / "tests" / "sim"))
    done = subprocess.run(
        [sys.executable, "-c", USE_THE_COMMAND],
        env={**os.environ, "PYTHONPATH": folders},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "all right\n", done.stderr
