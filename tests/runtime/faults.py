"""``python -m tests.runtime.faults``: processes that are killed, stopped or starved, in every phase.

    python -m tests.runtime.faults                          all cases
    python -m tests.runtime.faults --jobs tune --faults stop

A job is a script in a process of its own. The fault hits one of its processes, or the system fails it:
no memory, no space on the disk, no further process, a clock that jumps. Then the job has to end within
SECONDS with one sentence that says what was lost, or with the right result, and nothing of it may be left: no
process, no file. At the end come the cases of each kind, as a table.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.patience import patience, wait_until

ROOT = Path(__file__).parents[2]
SECONDS = 6.0
"""From the fault to the end of the job."""
BEGIN = """
import os, sys, time
import numpy as np
import megatile as mt
import megatile.language as T
from megatile.core.errors import MegatileError

def working():
    open(os.environ["MARKED_FOLDER"] + "/working", "w").close()
"""
END = """
try:
    main()
except MegatileError as error:
    sys.exit(f"NAMED {type(error).__name__}: {error}")
print("RIGHT")
"""
JOBS = {
    "plan": """
from megatile.core.expr import unit
from megatile.plan.build import PlanBuilder
from megatile.runtime.launch import launch

def main():
    b = PlanBuilder("ring", scale="device", units=3)
    x = b.tile("x", (4, 6), "f64", memory="hbm", role="inout")
    c = b.channel("c", source=(unit - 1) % 3, slot_bytes=192, memory="hbm")
    b.send(c, x, to=(unit + 1) % 3)
    b.copy(x, b.receive(c, (4, 6), "f64"))
    repeat = 10**7 if REPEAT > 1 else 10
    launch(b.finish(), {"x": np.ones((3, 4, 6))}, repeat=repeat, started=lambda pids: working())
""",
    "program": """
@T.program
def circle(x: T.Tensor((3, 8), "f32")):
    with T.Kernel(device=3), T.Scale("device"):
        mine = T.view(x, layout=T.Shard(0))
        flag = T.alloc((1,), "i32", level="l2")
        if REPEAT > 1:
            T.wait(flag, 1)
        T.copy(mine, mine)

def main():
    mt.launch(circle, np.zeros((3, 8), "f4"), machine="dgx-h100", started=lambda pids: working())
""",
    "attention": """
from megatile.attention.bench import BenchCase, run_bench

def main():
    case = BenchCase(3, seqlen=96, heads=2, kv_heads=2, dim=8, repeats=REPEAT)
    run_bench(case, ["ring", "hamilton"], progress=lambda name: working())
""",
    "tune": """
from tests.tuning.factories import adding

def slow(**choices):
    working()
    time.sleep(0.05 if REPEAT > 1 else 0)
    return adding(**choices)

def main():
    parts = [2**n for n in range(5, 14 if REPEAT > 1 else 7)]
    mt.tune(slow, {"parts": parts, "passes": [1, 2, 4, 5, 6]}, workers=2, objective=lambda r: r.time_ps,
            machine="dgx-h100", store=os.environ["MARKED_FOLDER"] + "/store", progress=False)
""",
    "search": """
from megatile.cli.main import main as command_line
from megatile.models import search

def main():
    simulated = search._simulated
    def noted(*arguments):
        working()
        return simulated(*arguments)
    search._simulated = noted
    tokens, users = ("3000", "64,128,256") if REPEAT > 1 else ("30", "1")
    sys.argv = ["megatile", "model", "search", "Llama-3.1-8B", "-m", "dgx-h100", "--isl", tokens,
                "--osl", tokens, "--concurrency", users, "--workers", "2",
                "--store", os.environ["MARKED_FOLDER"] + "/store"]
    sys.stdout, out = sys.stderr, sys.stdout
    try:
        command_line()
    except SystemExit as end:
        if end.code:
            raise
    sys.stdout = out
""",
    "serve": """
def main():
    working()
    mt.model("Llama-3.2-1B").serve(machine="dgx-h100", isl=512, osl=64, concurrency=8, count=16 * REPEAT)
""",
    "compile": """
@T.program
def double(x: T.Tensor((64,), "f32")):
    with T.Kernel(block=2, threads=32) as b:
        for i in T.Parallel(32):
            x[b * 32 + i] = x[b * 32 + i] * 2

def main():
    working()
    for _ in range(min(REPEAT, 3)):
        x = np.ones(64, "f4")
        mt.compile(double, target="cpu")(x)
        assert (x == 2).all()
""",
    "race": """
import mmap, multiprocessing, pathlib
from megatile.core.cached import read_cached, write_cached
from megatile.timing.database import Database, Measurement
from tests.tuning.factories import adding

folder = pathlib.Path(os.environ["MARKED_FOLDER"])
times = folder / "times.sqlite"
turns = mmap.mmap(-1, 5)

def work(number, seconds=2.0 if REPEAT > 1 else 0.0):
    begin, turn = 0.0, 0
    while not turn or time.monotonic() < begin + seconds:
        write_cached(folder / "cached" / "entry", bytes([number]) * (1000 + turn))
        with Database(times) as database:
            shape = {"m": 1 + turn, "n": 1 + number, "k": 64}
            database.add([Measurement("dgx-h100", "gemm", "bf16", "", shape, 1.0 + turn, "race")])
        turn += 1
        turns[number] = turn
        choices = {"parts": [8 << number, 16 << turn % 5], "passes": [1, 2]}
        mt.tune(adding, choices, store=folder / "store", workers=1, objective=lambda r: r.time_ps,
                machine="dgx-h100", progress=False)
        begin = begin or time.monotonic()
        working()

def run(number):
    try:
        work(number)
    except (MegatileError, MemoryError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(3)

def main():
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=run, args=(number,), daemon=True) for number in range(4)]
    try:
        for rank in ranks:
            rank.start()
    except OSError as error:
        raise MegatileError(f"a process could not be started: {error}")
    while sum(rank.is_alive() for rank in ranks) > stopped(ranks):
        time.sleep(0.01)
    for rank in ranks:
        rank.kill()
    with Database(times) as database:
        rows = [m.shape["n"] for m in database.rows()]
    for number, rank in enumerate(ranks):
        assert rows.count(1 + number) - turns[number] in ((0,) if rank.exitcode == 0 else (0, 1))
        if rank.exitcode == 3:
            raise MegatileError(f"process {number} ended with an error")
    found = read_cached(folder / "cached" / "entry")
    assert found is None or len(set(found)) == 1 and len(found) >= 1000
    work(4, 0.0)

def stopped(ranks):
    states = [pathlib.Path(f"/proc/{rank.pid}/stat").read_text().rpartition(")")[2] for rank in ranks
              if rank.is_alive()]
    return sum(state.split()[0] in "tT" for state in states)
""",
}
"""By name: what defines ``main``, which calls ``working`` when its work has begun."""
FORKS = {"plan": (2, 1, 0), "attention": (2, 1, 0), "program": (1, 0), "tune": (1, 0), "search": (1, 0),
         "serve": (0,), "compile": (1, 0), "race": (1, 0)}  # fmt: skip
"""How far below the job's own process others are that a fault may hit."""
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "segv": signal.SIGSEGV, "term": signal.SIGTERM}
MOMENTS = {"start": 0.0, "begin": 0.05, "middle": 0.8}
FORK_FAILS = """
import os, _posixsubprocess
_left = [int(os.environ["FORKS_LEFT"])]

def failing(function):
    def fork(*arguments):
        if not _left[0]:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        _left[0] -= 1
        return function(*arguments)
    return fork

os.fork = failing(os.fork)
_posixsubprocess.fork_exec = failing(_posixsubprocess.fork_exec)
"""
CLOCK_JUMPS = """
import os, time
_time, _calls = time.time, [0]

def jumping():
    _calls[0] += 1
    return _time() + (_calls[0] % 3 - 1) * int(os.environ["CLOCK_JUMP"])

time.time = jumping
"""


class Fault(NamedTuple):
    """What goes wrong: a signal to a process ``depth`` below the job's own, a limit of the system, or a clock
    that is set forward and back by some seconds."""

    name: str
    moment: str = "start"
    depth: int = 0
    amount: int = 0

    def __str__(self) -> str:
        if self.name in SIGNALS:
            return f"{self.name} depth {self.depth}, {self.moment}"
        return f"{self.name} {self.amount}"


def cases(jobs: list[str]) -> Iterator[tuple[str, Fault]]:
    """Every fault in every phase of every job."""
    for job in jobs:
        for name in SIGNALS:
            for moment in MOMENTS:
                for depth in FORKS[job]:
                    # A stopped job can say nothing; compilers work at the start only.
                    if not (
                        (name == "stop" and depth == 0) or (job == "compile" and depth and moment != "start")
                    ):
                        yield job, Fault(name, moment, depth)
        yield from ((job, Fault("disk", amount=room)) for room in (0, 1, 1000, 20_000))
        yield from ((job, Fault("memory", amount=room)) for room in (0, 50, 200, 800))
        if max(FORKS[job]):
            yield from ((job, Fault("fork", amount=left)) for left in (0, 1, 2))
        yield from ((job, Fault("clock", amount=seconds)) for seconds in (10, 10**6))


def marked(mark: str) -> dict[int, int]:
    """The processes that have the mark in their environment, and have not ended, each with its parent."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (path / "environ").read_bytes():
                fields = (path / "stat").read_text().rpartition(")")[2].split()
                if fields[0] != "Z":
                    found[int(path.name)] = int(fields[1])
        except (OSError, ValueError):
            continue
    return found


def below(mark: str, root: int, depth: int) -> list[int]:
    """The processes so far below one; not those whose program has not begun: nothing can be done for a parent
    that the system holds until then (state D)."""
    parents, level = marked(mark), [root]
    for _ in range(depth):
        level = [pid for pid in level if _state(pid) != "D"]
        level = sorted(pid for pid, parent in parents.items() if parent in level)
    return level


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def attempt(job: str, fault: Fault) -> str | None:
    """What is wrong with how a job ends after a fault, or None."""
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        folder, temporary = Path(name), Path(name) / "tmp"
        temporary.mkdir()
        mark = f"MARK_{uuid.uuid4().hex}"
        site = folder / "site"
        site.mkdir()
        environment = {
            **os.environ, mark: "1", "TMPDIR": str(temporary), "MARKED_FOLDER": str(folder),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(site), str(ROOT / "src"), str(ROOT)]),
        }  # fmt: skip
        hit = fault.name in SIGNALS
        if fault.name == "fork":
            (site / "sitecustomize.py").write_text(FORK_FAILS)
            environment["FORKS_LEFT"] = str(fault.amount)
        if fault.name == "clock":
            (site / "sitecustomize.py").write_text(CLOCK_JUMPS)
            environment["CLOCK_JUMP"] = str(fault.amount)
        if job == "compile" or fault.name == "disk":
            environment["MEGATILE_CACHE"] = str(folder / "cache")
        repeat = 10**6 if hit else 1
        script = f"{BEGIN}\nREPEAT = {repeat}\n{JOBS[job]}{END}"
        (folder / "job.py").write_text(script)
        process = subprocess.Popen(
            [sys.executable, "job.py"], env=environment, cwd=folder, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=_limits(fault),
        )  # fmt: skip
        try:
            return _judged(process, fault, folder, mark)
        finally:
            for pid in [process.pid, *marked(mark)]:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            process.communicate()


def _limits(fault: Fault) -> Callable[[], None]:
    def limit() -> None:
        if fault.name == "disk":
            resource.setrlimit(resource.RLIMIT_FSIZE, (fault.amount,) * 2)
        if fault.name == "memory":
            # What Python and NumPy take to begin with, and so many MB more.
            resource.setrlimit(resource.RLIMIT_DATA, ((fault.amount + 120) << 20,) * 2)

    return limit


def _judged(process: subprocess.Popen[str], fault: Fault, folder: Path, mark: str) -> str | None:
    limit = 60.0
    if fault.name in SIGNALS:
        if fault.moment == "start":
            ready = wait_until(lambda: below(mark, process.pid, fault.depth), 60)
        else:
            ready = wait_until((folder / "working").exists, 60)
        time.sleep(MOMENTS[fault.moment])
        victims = below(mark, process.pid, fault.depth)
        if not ready or not victims:
            said = "" if process.poll() is None else process.communicate()[1][-300:]
            return f"nothing to hit: {said}"
        os.kill(victims[len(victims) // 2], SIGNALS[fault.name])
        limit = SECONDS
    begin = time.monotonic()
    try:
        out, err = process.communicate(timeout=patience(limit))
    except subprocess.TimeoutExpired:
        return f"not at an end {limit:g} s after the fault"
    seconds = time.monotonic() - begin
    if not wait_until(lambda: not marked(mark), 3):
        return f"left processes behind: {marked(mark)}"
    own = fault.name in SIGNALS and fault.depth == 0
    left = [p.name for p in (folder / "tmp").iterdir() if not (own and p.name.startswith("tmp"))]
    if left and not (own and wait_until(lambda: not any((folder / "tmp").iterdir()), 3)):
        return f"left files behind: {left}"
    right = process.returncode == 0 and out.strip() == "RIGHT"
    named = (
        process.returncode == 1
        and re.search(r"^(NAMED \w+|error): .+", err, re.M | re.I)
        and "Traceback" not in err
    )
    if fault.name == "clock":
        named = None  # only what the time of day says has changed
    if not (right or named or (own and process.returncode == -SIGNALS[fault.name])):
        return f"exit code {process.returncode} after {seconds:.1f} s: {err[-1500:]}"
    if os.environ.get("SHOW_FAULTS"):
        print("   ", err.strip().splitlines()[-1] if err.strip() else out.strip())
    return None


def main() -> int:
    parser = argparse.ArgumentParser(
        description="hit processes of jobs and see that it is said, and nothing left"
    )
    parser.add_argument("--jobs", default=",".join(JOBS))
    parser.add_argument("--faults", default=",".join([*SIGNALS, "disk", "memory", "fork", "clock"]))
    given = parser.parse_args()
    jobs, kinds = given.jobs.split(","), given.faults.split(",")
    found: dict[tuple[str, str], list[bool]] = {(job, kind): [] for job in jobs for kind in kinds}
    for job, fault in cases(jobs):
        if fault.name in kinds:
            problem = attempt(job, fault)
            found[job, fault.name].append(problem is None)
            print(f"{job}, {fault}: {problem or 'fine'}", flush=True)
    print("\n| fine of tried |", " | ".join(kinds), "|")
    print("|---" * (len(kinds) + 1) + "|")
    for job in jobs:
        row = [found[job, kind] for kind in kinds]
        print(f"| {job} |", " | ".join(f"{sum(fine)} of {len(fine)}" if fine else "" for fine in row), "|")
    every = [fine for some in found.values() for fine in some]
    print(f"{len(every)} cases, {every.count(False)} wrong")
    return 0 if all(every) else 1


if __name__ == "__main__":
    sys.exit(main())
