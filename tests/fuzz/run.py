"""``python -m tests.fuzz.run``: seeded, resumable fuzzing of everything megatile reads.

    make fuzz FUZZ_ARGS='--count 1000'                     1000 inputs of every kind
    make fuzz FUZZ_ARGS='--kinds yaml,trace --minutes 30'   as many as fit
    make fuzz FUZZ_ARGS='--total 100000'                   until every kind has so many
    make fuzz FUZZ_ARGS='--replay yaml:4711'                one input again, shown

Input n of a kind depends on seed, kind and n only. The state file remembers how far each kind came, so the next
run goes on from there; findings are kept beside it.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import random
import resource
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.fuzz import line_kinds, model_kinds, name_kinds, program_kinds  # noqa: F401  (they register kinds)
from tests.fuzz.kinds import KINDS

from megatile.core.errors import MegatileError
from megatile.core.files import write_text

SECONDS = 20
MEMORY = 1 << 30


class TooLong(BaseException):
    """An input took more than its time."""


@contextlib.contextmanager
def within(seconds: int) -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise TooLong(f"more than {seconds} s")

    # Time of the processor, as others may use it too; and ten times that by the clock, for what only waits.
    watches = (
        (signal.SIGPROF, signal.ITIMER_PROF, seconds),
        (signal.SIGALRM, signal.ITIMER_REAL, 10 * seconds),
    )
    before = {number: signal.signal(number, stop) for number, _, _ in watches}
    for _, timer, limit in watches:
        signal.setitimer(timer, limit)
    try:
        yield
    finally:
        for number, timer, _ in watches:
            signal.setitimer(timer, 0)
            late = before[number] == signal.SIG_DFL  # one that comes now must not end the process
            signal.signal(number, signal.SIG_IGN if late else before[number])


def make(kind: str, seed: int, number: int) -> Any:
    """Input ``number`` of a kind."""
    return KINDS[kind].make(random.Random(f"{seed} {kind} {number}"), number)


def attempt(kind: str, value: Any, seconds: int = SECONDS) -> str | None:
    """What is wrong with how an input is treated, or None."""
    before = _open_files()
    problem = _problem(kind, value, seconds)
    if problem is None and _open_files() > before:
        gc.collect()
        left = _open_files() - before
        problem = f"leaves {left} files open" if left > 0 else None
    return problem


def _open_files() -> int:
    """How many files this process has open; 0 where the system does not tell."""
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0


def _problem(kind: str, value: Any, seconds: int) -> str | None:
    try:
        with within(seconds):
            KINDS[kind].run(value)
    except MegatileError as error:
        text = str(error)
        return None if text.strip() else f"an empty {type(error).__name__}"
    except TooLong as error:
        return f"hang: {error}\n{_where(error)}"
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        return f"{type(error).__name__}: {str(error)[:500]}\n{_where(error)}"
    return None


def _where(error: BaseException) -> str:
    return "".join(traceback.format_tb(error.__traceback__)[-4:])


def limit_memory() -> None:
    """A greedy input fails with MemoryError instead of taking the machine."""
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if Path("/proc").exists() else 0
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY,) * 2)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kinds", default=",".join(KINDS), help="names joined by commas")
    parser.add_argument("--count", type=int, default=None, help="inputs of every kind, this time")
    parser.add_argument("--total", type=int, default=None, help="inputs of every kind, with those of before")
    parser.add_argument("--minutes", type=float, default=None, help="time for all kinds together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--state", type=Path, default=Path("out/fuzz.json"))
    parser.add_argument("--replay", help="KIND:NUMBER")
    asked = parser.parse_args()
    if asked.replay:
        name, _, number = asked.replay.partition(":")
        value = make(name, asked.seed, int(number))
        print(value)
        print(attempt(name, value) or "fine")
        return
    names = asked.kinds.split(",")
    unknown = [name for name in names if name not in KINDS]
    if unknown:
        parser.error(f"no kind {', '.join(unknown)}; there are {', '.join(KINDS)}")
    sys.exit(fuzz(names, asked.seed, asked.count, asked.minutes, asked.state, asked.total))


def fuzz(
    names: list[str],
    seed: int,
    count: int | None,
    minutes: float | None,
    state: Path,
    total: int | None = None,
) -> int:
    """Rounds of 50 inputs of each kind until the count or the time is reached; 1 if there is a finding."""
    for name in names:  # what is imported and made once does not count as an input's time or memory
        attempt(name, make(name, seed, 0), 600)
    limit_memory()
    gc.freeze()  # what is imported stays; looking through it again and again takes a sixth of the time
    gc.set_threshold(50_000, 20, 100)
    state.parent.mkdir(parents=True, exist_ok=True)
    document = json.loads(state.read_text()) if state.exists() else {}
    done = document.setdefault(str(seed), {})
    goal = {name: total or done.get(name, {}).get("inputs", 0) + (count or 10**12) for name in names}
    until = time.monotonic() + 60 * (minutes if minutes is not None else 10**6 if count or total else 1)
    found = 0
    while time.monotonic() < until and any(done.get(n, {}).get("inputs", 0) < goal[n] for n in names):
        for name in names:
            entry = done.setdefault(name, {"inputs": 0, "findings": {}})
            for number in range(entry["inputs"], min(entry["inputs"] + 50, goal[name])):
                problem = attempt(name, make(name, seed, number))
                entry["inputs"] = number + 1
                if problem is not None:
                    found += 1
                    entry["findings"][str(number)] = problem
                    print(f"{name}:{number} {problem}", flush=True)
                if time.monotonic() > until:
                    break
            write_text(state, json.dumps(document, indent=1) + "\n")
    for name in names:
        entry = done.get(name, {"inputs": 0, "findings": {}})
        print(f"{name:<14}{entry['inputs']:>9} inputs  {len(entry['findings']):>5} findings")
    return 1 if found else 0


if __name__ == "__main__":
    main()
