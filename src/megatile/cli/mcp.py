"""``megatile mcp``: a Model Context Protocol server, for tools that write kernels.

Each tool runs one command of ``megatile`` in a process of its own, so a file that was edited is read anew. An
answer says where it comes from, and how far it may be off, or that this cannot be judged.
"""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from megatile.core.errors import MegatileError
from megatile.core.version import __version__

MAX_SECONDS = 300
"""Of one call; a longer one ends with a sentence."""
INSTRUCTIONS = """megatile checks, runs and times GPU kernels without a GPU.
1. Write a tile program to a file (`import megatile.language as T`, `@T.program`), or a TileLang kernel.
2. `check` it: races, bounds, capacity, deadlocks, with the line and what to try. Repeat until it is clean.
3. `predict` its time on a machine; `explain` names the bottleneck, with remedies that were timed.
4. `tune` tries values of the factory's arguments. `run` compares its data with the interpreter.
A program is named FILE.py:NAME or "FILE.py:gemm(512, bK=64)"; only literals are read. `error` of an answer is
a share of the time, or says that it cannot be judged: then compare times with each other, not with a clock.
"""
UNMEASURED = (
    "cannot judge: no run of this program was measured on this machine; compare times with each other"
)


def check(program: str, machine: str = "dgx-h100") -> dict[str, Any]:
    """Find races, reads of unwritten data, deadlocks, bounds and capacity of a program (FILE.py:NAME), under
    three schedules; of a file of TileLang kernels (FILE.py), at small sizes."""
    if ":" in program:
        said = _command("megatile.cli.mcp", "check", program, machine)
        origin = "interpreter: three schedules, random data"
        return _answer(said, origin, "cannot judge other sizes and data; exact for these")
    said = _command("megatile", "check-kernel", program, "-m", machine, "--json")
    if not said["ok"] and said["problem"].endswith("calls no kernel"):
        said["try"] = f"{program}:NAME for a tile program; a file of TileLang kernels has to call one"
    return _answer(said, "interpreter, at small sizes", "cannot judge other sizes and data; exact for these")


def run(program: str, machine: str = "dgx-h100") -> dict[str, Any]:
    """Run a program on random data and compare the lowered Plan with the interpreter."""
    said = _command("megatile", "run", program, "-m", machine, "--no-verdict", "--verify", "--json")
    return _answer(said, _simulated(machine), UNMEASURED)


def predict(
    program: str = "", machine: str = "dgx-h100", operation: str = "", dtype: str = "",
    extents: dict[str, int] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Predict the time of a program (FILE.py:NAME), or of a library's kernel: operation="gemm",
    extents={"m": 4096, "n": 4096, "k": 4096}, dtype="bf16"."""
    if bool(program) == bool(operation):
        return _answer({"ok": False, "problem": "give program= or operation=, one of them"}, "", "")
    if program:
        said = _command("megatile", "run", program, "-m", machine, "--no-verdict", "--no-verify", "--json")
        return _answer(said, _simulated(machine), UNMEASURED)
    _check_names(extents or {}, "an extent")
    sizes = [part for name, size in (extents or {}).items() for part in (f"--{name}", str(size))]
    element = ["-d", dtype] if dtype else []
    said = _command("megatile", "kernel", operation, "-m", machine, *element, *sizes, "--json")
    found = said.get("answer", {})
    error = found.get("error")
    bar = f"± {error:.0%} of the time" if error is not None else "cannot judge: no rows like these are known"
    return _answer(
        said, f"{found.get('kind', '')}: {found.get('source', '')} ({found.get('model', '')})", bar
    )


def explain(program: str, machine: str = "dgx-h100") -> dict[str, Any]:
    """Name what limits a program, and remedies with the times that they give."""
    said = _command("megatile", "run", program, "-m", machine, "--no-verify", "--json")
    if said["ok"]:
        said["answer"] = said["answer"]["verdict"]
    return _answer(said, f"{_simulated(machine)}; remedies timed again", UNMEASURED)


def tune(program: str, choices: dict[str, list[Any]], machine: str = "dgx-h100") -> dict[str, Any]:
    """Find the fastest values of a factory's arguments: choices={"bM": [64, 128], "stages": [2, 3]}."""
    _check_names(choices, "an argument")
    if not choices:
        return _answer(
            {"ok": False, "problem": "no choices are given", "try": 'choices={"bM": [64, 128]}'}, "", ""
        )
    chosen = [
        part for name, values in choices.items() for part in ("-c", f"{name}={','.join(map(str, values))}")
    ]
    said = _command("megatile", "tune", program, *chosen, "-m", machine, "--workers", "1", "--json")
    return _answer(said, _simulated(machine), UNMEASURED)


TOOLS: tuple[Callable[..., dict[str, Any]], ...] = (check, run, predict, explain, tune)


def _check_names(given: Mapping[str, Any], what: str) -> None:
    for name in given:
        if not name.isidentifier() or name == "help":
            raise MegatileError(f"'{name}' is not a name of {what}", advice="m, n, bM, stages")


def _simulated(machine: str) -> str:
    return f"Plan simulated by megatile {__version__} with the figures of {machine}"


def _answer(said: dict[str, Any], origin: str, error: str) -> dict[str, Any]:
    if not said["ok"] and re.match(r"\S+\.py:\d+: ", said["problem"]):
        return {
            **said,
            "origin": f"found by megatile {__version__} at that line",
            "error": "exact: it happened",
        }
    if not said["ok"]:
        error = "cannot judge: there is no answer"
    return {**said, "origin": origin if said["ok"] else f"megatile {__version__}", "error": error}


def _command(module: str, *arguments: str) -> dict[str, Any]:
    """Return what a command answers, as JSON, or its error."""
    bad = next((a for a in arguments[1:2] if a.startswith("-")), None)
    if bad is not None:
        return {"ok": False, "problem": f"'{bad}' is not a program", "try": "FILE.py:NAME"}
    try:
        done = subprocess.run(
            [sys.executable, "-m", module, *arguments], capture_output=True, text=True, timeout=MAX_SECONDS,
            stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"ok": False, "problem": f"no answer within {MAX_SECONDS} s", "try": "smaller sizes"}
    except (ValueError, OSError) as error:  # a null byte, or more than a command line holds
        said = f"the arguments cannot be passed on: {error}"
        return {"ok": False, "problem": said, "try": "FILE.py:NAME"}
    if done.returncode == 0:
        try:
            found = json.loads(done.stdout[done.stdout.index("{") :])
        except ValueError:
            return {"ok": False, "problem": "the command printed no answer", "try": done.stderr[-400:]}
        notes = [line for line in done.stderr.splitlines() if line.strip()]
        return {"ok": True, "answer": found} | ({"notes": notes[:20]} if notes else {})
    text = (done.stderr or done.stdout).strip()
    text = text[text.find("error: ") + 7 :] if "error: " in text else text[-1000:]
    problem, advice = _sentence(text)
    return {"ok": False, "problem": problem} | ({"try": advice} if advice else {})


def _sentence(text: str) -> tuple[str, str]:
    """Return what is wrong and what to try, without the line of the source below; the parts of what is wrong
    may have advice of their own."""
    if re.search(r"\(try: .*\(try: ", text.partition("\n")[0]):
        problem, _, advice = text.partition("\n")[0].rpartition(" (try: ")
    else:
        problem, _, advice = text.partition("(try: ")
    return problem.strip(), advice.partition("\n")[0].strip().removesuffix(")")


SCHEDULES = (("round-robin", 0), ("random", 1), ("adversarial", 0))
"""The orders of units, with their seeds, in which a program is run to find races."""


def checked(program: str, machine: str) -> dict[str, Any]:
    """Run a program under three schedules; what was found, or the machine's limits it keeps."""
    from megatile.cli.run import find_program
    from megatile.lowering.calls import check as check_plan
    from megatile.lowering.lowered import lower
    from megatile.targets.interpret.run import run as interpret
    from megatile.targets.interpret.verify import random_arrays

    found = find_program(program)
    lowered = lower(found, machine=machine)
    check_plan(lowered)
    for schedule, seed in SCHEDULES:
        interpret(
            lowered.source, *random_arrays(lowered), machine=machine, schedule=schedule, seed=seed,
            output=lambda text: None,
        )  # fmt: skip
    warned = [str(text) for text in lowered.source.warnings]
    return {"clean": not warned, "warnings": warned, "schedules": [name for name, _ in SCHEDULES]}


def server() -> Any:
    """Return the server; ``run()`` speaks over standard input and output."""
    try:
        from mcp.server import MCPServer as Server  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        try:
            from mcp.server.fastmcp import FastMCP as Server  # type: ignore[import-not-found, unused-ignore, no-redef]
        except ImportError:
            raise MegatileError(
                "the server needs the package 'mcp'", advice="pip install 'megatile[mcp]'"
            ) from None
    version = {"version": __version__} if "version" in inspect.signature(Server).parameters else {}
    made = Server("megatile", instructions=INSTRUCTIONS, **version)
    for tool in TOOLS:
        made.tool()(answering(tool))
    return made


def answering(tool: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """Return a tool whose errors are answers: a client sees no message of an exception."""

    @wraps(tool)
    def answered(*arguments: Any, **named: Any) -> dict[str, Any]:
        try:
            return tool(*arguments, **named)
        except MegatileError as problem:
            return _answer({"ok": False, "problem": problem.message, "try": problem.advice or ""}, "", "")

    return answered


def mcp() -> None:
    """Serve check, run, predict, explain and tune to tools that write kernels, over standard input and
    output (Model Context Protocol).

    Example: megatile mcp
    """
    server().run()


if __name__ == "__main__":  # a check in a process of its own
    from megatile.cli.output import USER_FILES, fail

    with USER_FILES:
        try:
            print(json.dumps(checked(*sys.argv[2:4])))
        except MegatileError as problem:
            fail(problem)
