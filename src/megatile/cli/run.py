"""``megatile run``, ``export`` and ``check-kernel``: programs verified, simulated, explained and written."""

from __future__ import annotations

import ast
import inspect
import sys
import warnings
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from megatile.cli.machine import (
    Json,
    Machine,
    MaxSeconds,
    Set,
    Trust,
    WhatHelps,
    complete_machine,
    load,
)
from megatile.cli.output import USER_FILES, print_json, print_table
from megatile.core.errors import MegatileError, did_you_mean
from megatile.core.files import write_text
from megatile.core.quantities import format_time
from megatile.core.user_modules import user_module

if TYPE_CHECKING:
    from megatile.hda import HDA
    from megatile.language.tile.program import ProgramFunction
    from megatile.lowering.lowered import Lowered


ProgramName = Annotated[
    str,
    typer.Argument(
        metavar="FILE.py[:NAME]",
        help="A tile program in a Python file (it is imported): gemm.py:NAME or gemm.py:gemm(512, bK=64).",
    ),
]
MAX_OPERATIONS_VERIFIED_BY_DEFAULT = 4e9
"""Operations up to which a program's data is verified without being asked for."""


Machines = Annotated[
    list[str] | None,
    typer.Option(
        "-m", "--machine", help="A shipped machine or a YAML file. Repeat to compare.",
        autocompletion=complete_machine, show_default="dgx-h100",
    ),
]  # fmt: skip


def run(
    program: ProgramName,
    machine: Machines = None,
    shapes: Annotated[
        str | None,
        typer.Option(help="Shapes of arguments with open dimensions: 512x64,64x32."),
    ] = None,
    verify: Annotated[
        bool | None,
        typer.Option(
            "--verify/--no-verify",
            help="Compare Plan and interpreter on random data; default: small programs only.",
        ),
    ] = None,
    trace: Annotated[Path | None, typer.Option(help="Write the trace (.json, .jsonl).")] = None,
    report: Annotated[Path | None, typer.Option(help="Write an HTML report.")] = None,
    judge: Annotated[
        bool,
        typer.Option("--verdict/--no-verdict", help="Name the bottleneck and time remedies (some seconds)."),
    ] = True,
    why: Annotated[
        bool,
        typer.Option("--explain", help="Print the implementation of each statement and its alternatives."),
    ] = False,
    bench: Annotated[
        str | None,
        typer.Option(metavar="NAME|FILE.py", help="Same as 'megatile bench'."),
    ] = None,
    helps: WhatHelps = False,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare",
            help="Compile and run it here and compare; use -m with a file of 'megatile measure'.",
        ),
    ] = False,
    threads: Annotated[int | None, typer.Option(help="Threads for --compare; default: all cores.")] = None,
    max_seconds: MaxSeconds = None,
    settings: Set = None,
    trust: Trust = False,
    json: Json = False,
) -> None:
    """Verify a tile program on random data, predict its time and name the bottleneck.

    Example: megatile run "gemm.py:gemm(512,512,512)" -m dgx-h100
    """
    from megatile.lowering.calls import simulate
    from megatile.lowering.explain import explain, figures
    from megatile.lowering.lowered import lower
    from megatile.targets.interpret.verify import random_arrays

    prog = find_program(program)
    given = read_shapes(shapes, prog)
    names = machine or ["dgx-h100"]
    if len(names) > 1:
        if compare or trace or report or why or helps:
            raise MegatileError(
                "--compare, --trace, --report, --explain and --what-helps take one machine, "
                f"got {len(names)}",
                advice=f"give one: -m {names[0]}",
            )
        _on_each(prog, given, [load(name, settings, trust) for name in names], json)
        return
    lowered = lower(prog, *given, machine=load(names[0], settings, trust))
    if compare:
        _compare(lowered, threads, trace, json)
        return
    work = sum(figures(lowered).flops.values())
    verified = None
    if verify or (verify is None and work <= MAX_OPERATIONS_VERIFIED_BY_DEFAULT):
        from megatile.targets.interpret.verify import verify as verify_data

        verified = verify_data(lowered)
    data = random_arrays(lowered) if _data_decide(lowered) else ()
    result = simulate(lowered, *data, progress=True)
    found = figures(lowered, result)
    if trace is not None:
        result.write_trace(trace)
        print(f"trace written to {trace}", file=sys.stderr)
    verdict = result.verdict() if judge else None
    if report is not None:
        result.report(report, texts=(("Program", str(lowered)), ("Plan", str(lowered.plan))))
        print(f"report written to {report}", file=sys.stderr)
    if json:
        said = {"verified": verified, "verdict": verdict.as_dict() if verdict is not None else None}
        gains = {"what_helps": [vars(s) for s in result.sensitivities()]} if helps else {}
        print_json("run", found.as_dict() | said | gains)
        return
    if verdict is not None:
        print(verdict, end="\n\n")
    print(explain(lowered) if why else found)
    if verified is None:
        print("Results not checked; use --verify (may be slow)")
    else:
        print(f"Plan matches the interpreter ({verified})")
    if _data_decide(lowered):
        print("time on random data: what the program does depends on its data (mt.simulate takes yours)")
    print(result.summary())
    print(result.why_slow())
    if helps:
        print(f"\n{result.what_helps()}")


def _on_each(prog: ProgramFunction, given: list[Any], machines: list[HDA], json: bool) -> None:
    """Print one table: the program's time on every machine, and what limits it there."""
    from megatile.core.operations import spoken_operation
    from megatile.cost.bounded import BoundedResult
    from megatile.lowering.calls import simulate
    from megatile.lowering.explain import figures
    from megatile.lowering.lowered import lower
    from megatile.targets.interpret.verify import random_arrays
    from megatile.trace.critical import critical_groups

    rows = []
    refused: list[tuple[str, MegatileError]] = []
    for hda in machines:
        try:
            lowered = lower(prog, *given, machine=hda)
            data = random_arrays(lowered) if _data_decide(lowered) else ()
            result = simulate(lowered, *data, progress=True)
        except MegatileError as error:
            refused.append((hda.name, error))
            continue
        if isinstance(result, BoundedResult):
            rows.append((figures(lowered, result), "a lower bound: the busiest link"))
            continue
        operation, engine, source, _, _, share = critical_groups(result.trace)[0]
        where = f" ({source})" if source else ""
        rows.append(
            (figures(lowered, result), f"{share:.0%} {spoken_operation(operation)} on {engine}{where}")
        )
    if not rows:
        raise refused[0][1]
    if json:
        timed = [found.as_dict() | {"critical_path": path} for found, path in rows]
        print_json("run", timed + [{"machine": name, "refused": str(error)} for name, error in refused])
        return
    least = min(found.time_ps or 0 for found, _ in rows)
    shown = [
        (
            found.machine,
            format_time(found.time_ps or 0),
            f"{(found.time_ps or 0) / least:.3g} ×",
            f"{found.tflops:.4g}" if found.tflops else "",
            f"{found.share_of_peak:.1%}" if found.share_of_peak else "",
            f"{found.share_of_roofline:.1%}" if found.share_of_roofline else "",
            path,
        )
        for found, path in rows
    ]
    shown += [(name, "", "", "", "", "", f"refused: {str(error).splitlines()[0]}") for name, error in refused]
    head = (
        "machine",
        "time",
        "to the fastest",
        "TFLOP/s",
        "of peak",
        "of roofline",
        "most of the critical path",
    )
    print_table(head, shown, title=rows[0][0].name)


def _data_decide(lowered: Lowered) -> bool:
    """Return whether what the program does depends on its data, so that shapes alone have no time."""
    from megatile.plan.model import ReadScalar, statements

    return any(isinstance(s, ReadScalar) for x in lowered.plan.streams for s in statements(x.body))


def _compare(lowered: Lowered, threads: int | None, trace: Path | None, json: bool) -> None:
    """Print what the program is predicted to take, and what it takes here, on random data."""
    from megatile.targets.compile import compile as compile_program
    from megatile.targets.interpret.verify import random_arrays

    kernel = compile_program(lowered.source, threads=threads, machine=lowered.machine)
    found = kernel.compare(*random_arrays(lowered), machine=lowered.machine, repeat=20, trace=trace)
    if trace is not None:
        print(f"both timelines written to {trace}", file=sys.stderr)
    if json:
        print_json("compare", found.json())
    else:
        print(found)


def read_shapes(text: str | None, prog: ProgramFunction) -> list[tuple[int, ...]]:
    """``512x64,64x32`` → [(512, 64), (64, 32)]."""
    if text is None:
        return []
    try:
        found = [tuple(int(e) for e in one.split("x")) for one in text.split(",")]
    except ValueError:
        raise MegatileError(f"'{text}' are not shapes", advice="write --shapes 512x64,64x32") from None
    if len(found) != len(prog.tensors):
        raise MegatileError(
            f"{len(found)} shapes for the {len(prog.tensors)} arguments {', '.join(prog.tensors)}",
            advice="one shape for each argument, outputs too",
        )
    return found


def names_of(file: str) -> dict[str, Any]:
    """Return what a Python file defines; it is run, and can import its neighbours until the command ends."""
    module = USER_FILES.enter_context(user_module(file))
    return {k: v for k, v in vars(module).items() if not k.startswith("_")}


def find_named(file: str, things: dict[str, Any], name: str) -> tuple[str, Any, list[Any], dict[str, Any]]:
    """Return what ``name`` or ``name(arguments)`` means among them, and the arguments."""
    word, arguments, named = read_call(name)
    if word not in things:
        raise MegatileError(
            f"'{file}' has no '{word}'", advice=did_you_mean(word, list(things), what="names")
        )
    return word, things[word], arguments, named


def find_program(text: str) -> ProgramFunction:
    """Return the program that ``FILE.py``, ``FILE.py:name`` or ``FILE.py:name(arguments)`` means."""
    from megatile.language.tile.program import ProgramFunction

    file, _, name = text.partition(":")
    things = names_of(file)
    programs = {k: v for k, v in things.items() if isinstance(v, ProgramFunction)}
    if not name:
        if len(programs) == 1:
            return next(iter(programs.values()))
        made = [f"{k}{_call(v)}" for k, v in things.items() if callable(v) and _defined_in(v, file)]
        raise MegatileError(
            f"'{file}' has {len(programs)} tile programs",
            advice=f"name one, or call what makes it: '{file}:{next(iter([*programs, *made]), 'name')}'",
        )
    word, found, arguments, named = find_named(file, things, name)
    if not isinstance(found, ProgramFunction) and callable(found):
        try:
            found = found(*arguments, **named)
        except TypeError as problem:
            raise MegatileError(
                f"{word}: {problem}", advice=f"give its arguments: '{file}:{word}{_call(found)}'"
            ) from None
    if not isinstance(found, ProgramFunction):
        raise MegatileError(
            f"'{word}' is {type(found).__name__}, not a tile program", advice="@T.program makes one"
        )
    return found


def _call(function: Any) -> str:
    """``(M=512, N=512)`` for the arguments that a function needs."""
    needed = [p for p in inspect.signature(function).parameters.values() if p.default is p.empty]
    words = [f"{p.name}=512" for p in needed if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return f"({', '.join(words)})" if words else "()"


def _defined_in(function: Any, file: str) -> bool:
    return getattr(getattr(function, "__code__", None), "co_filename", None) == file


def read_call(text: str) -> tuple[str, list[Any], dict[str, Any]]:
    """Read ``name`` or ``name(1, b=2)``, whose arguments are literals."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        if isinstance(tree, ast.Call):
            named = {str(k.arg): ast.literal_eval(k.value) for k in tree.keywords}
            return ast.unparse(tree.func), [ast.literal_eval(a) for a in tree.args], named
        return ast.unparse(tree), [], {}
    except (SyntaxError, ValueError):
        raise MegatileError(
            f"'{text}' is neither a name nor a call with numbers", advice="gemm(512, bK=64)"
        ) from None


def lower(
    program: ProgramName,
    machine: Machine = "dgx-h100",
    after: Annotated[
        str | None, typer.Option(metavar="PASS", help="Print only this step; 'plan' is the Plan.")
    ] = None,
    diff: Annotated[bool, typer.Option("--diff", help="Print only the changes of each pass.")] = False,
    shapes: Annotated[
        str | None, typer.Option(help="Shapes of arguments with open dimensions: 512x64,64x32.")
    ] = None,
    settings: Set = None,
    trust: Trust = False,
) -> None:
    """Print a tile program after each compiler pass, and its Plan.

    Example: megatile lower "gemm.py:gemm(512,512,512)" -m dgx-h100 --diff
    """
    from difflib import unified_diff

    from megatile.lowering.lowered import lower as lower_program

    prog = find_program(program)
    found = lower_program(prog, *read_shapes(shapes, prog), machine=load(machine, settings, trust))
    texts = {"source": str(found.source)} | {step.name: str(step) for step in found.steps}
    texts["plan"] = str(found.plan)
    if after is not None and after not in texts:
        raise MegatileError(
            f"there is no pass '{after}'", advice=did_you_mean(after, list(texts), what="passes")
        )
    names = list(texts)
    for before, name in zip(["", *names], names, strict=False):
        if after not in (None, name) or (diff and name in ("source", "plan") and after is None):
            continue
        if after is None:
            print(f"--- {name}")
        if diff and before and name != "plan":
            found_lines = unified_diff(texts[before].splitlines(), texts[name].splitlines(), lineterm="", n=0)
            print("\n".join(list(found_lines)[2:]) or "no change")
        else:
            print(texts[name], end="")


def export(
    program: ProgramName,
    to: Annotated[str, typer.Option("--to", help="tilelang, cuda or c.")],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Output file; default: print."),
    ] = None,
    machine: Annotated[
        str | None,
        typer.Option("-m", "--machine", help="Target machine; default: this computer (c) or hgx-a100."),
    ] = None,
    shapes: Annotated[
        str | None, typer.Option(help="Shapes of arguments with open dimensions: 512x64,64x32.")
    ] = None,
    settings: Set = None,
    trust: Trust = False,
) -> None:
    """Write a tile program as TileLang, CUDA C++ or C, without compiling it.

    Example: megatile export "gemm.py:gemm(512,512,512)" --to cuda -o gemm.cu
    """
    from megatile.targets.compile import export as write

    prog = find_program(program)
    hda = load(machine, settings, trust) if machine is not None else None
    text = write(prog, to, *read_shapes(shapes, prog), machine=hda)
    if output is None:
        print(text, end="")
    else:
        write_text(output, text)
        print(f"written to {output}")


def check_kernel(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="A Python file with TileLang kernels (it is run).")],
    machine: Machine = "dgx-h100",
    at: Annotated[str, typer.Option(help="Sizes to predict at: M=4096,N=4096,K=4096.")] = "",
    as_is: Annotated[bool, typer.Option("--as-is", help="Run it with its own sizes.")] = False,
    form: Annotated[
        str,
        typer.Option("--format", help="text, sarif or github."),
    ] = "text",
    json: Json = False,
) -> None:
    """Check a file of TileLang kernels at small sizes (races, bounds, capacity), then predict its kernels at
    its own sizes. Further arguments go to the file.

    Example: megatile check-kernel example_gemm.py -m dgx-h100
    """
    from megatile.cli.findings import FORMATS, Finding, written
    from megatile.compat.tilelang.check import check_file, grids
    from megatile.language.tile.errors import ProgramWarning

    if form not in FORMATS:
        raise MegatileError(
            f"there is no format '{form}'", advice=did_you_mean(form, FORMATS, what="formats")
        )
    with warnings.catch_warnings(record=form != "text") as noted:
        if form != "text":
            warnings.simplefilter("always", ProgramWarning)
        try:
            with redirect_stdout(sys.stdout if form == "text" else sys.stderr):
                checked = check_file(file, context.args, machine, _extents(at), as_is)
        except MegatileError as error:
            if form == "text":
                raise
            print(
                written([*Finding.warned(noted or (), file, ProgramWarning), Finding.of(error, file)], form)
            )
            raise typer.Exit(1) from None
    if form != "text":
        remarks = [r for one in checked.kernels for r in one.warnings]
        print(written([Finding.remark(r, file, ProgramWarning) for r in remarks], form))
        return
    found, changed = checked.kernels, checked.made_small
    if json:
        kernels = [one.as_dict() for one in found]
        said = {"kernels": kernels, "made_small": changed, "not_compared": checked.not_compared}
        print_json("check-kernel", said)
        return
    rows = []
    for one in found:
        predicted = "by data" if one.predicted_us is None else f"{one.predicted_us:.4g}"
        ran, timed = (" then ".join(map(str, grids(programs))) for programs in (one.programs, one.timed))
        ms = f"{one.seconds * 1e3:.1f}" if one.runs else "-"
        rows.append((one.name, ran, str(one.runs), ms, timed, predicted, f"{one.least_us:.3g}"))
    head = ("kernel", "grid", "runs", "ms on this CPU", "predicted grid", f"us on {machine}", "us at least")
    print_table(head, rows, left=2)
    if changed:
        sizes = ", ".join(f"{name} (there {size})" for name, size in changed.items())
        print(f"Sizes reduced for this run: {sizes}; --as-is keeps them.")
    if checked.not_compared:
        print(f"Not compared at the file's own sizes, where tensors have no values: {checked.not_compared}.")
    for one in found:
        for text in one.warnings:
            print(f"warning: {text}")
    print("No races, no access out of bounds, no missing data: every kernel ran with all checks on.")
    print("'At least' is a bound (matrix products at peak, tensors moved once), not a prediction.")


def _extents(text: str) -> dict[str, int]:
    """Read ``M=4096,N=64`` as numbers by name."""
    found = {}
    for part in filter(None, text.replace(" ", "").split(",")):
        name, sign, number = part.partition("=")
        if not name.isidentifier() or not sign or not number.isdecimal() or int(number) < 1:
            raise MegatileError(f"--at {text}: '{part}' is not an extent", advice="--at M=4096,N=4096")
        found[name] = int(number)
    return found
