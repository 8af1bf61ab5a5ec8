"""``megatile bench``: run a bench written like a PyTorch script on a simulated machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Annotated, Any

import typer

from megatile.cli.machine import Json, Machine, Set, TrustCode, overrides
from megatile.cli.output import USER_FILES, print_json, print_table
from megatile.core.errors import MegatileError, did_you_mean
from megatile.core.files import exists, is_folder
from megatile.core.frames import raised_at
from megatile.core.quantities import format_time
from megatile.core.user_modules import user_module
from megatile.runtime.benches import Bench, benches_of

HEADLINE = (
    ("total", "total_ns"),
    ("host copies", "host_copies_ns"),
    ("queues and pages", "setup_ns"),
    ("kernels", "kernels_ns"),
    ("  PE execution", "pe_exec_ns"),
    ("  network", "network_ns"),
    ("roofline bound", "bound_ns"),
)
MAX_LAUNCH_ROWS = 8
"""Launches that are listed, the longest first."""
FOLDERS = ("megatile.runtime.benches", "megatile.parallel.benches")


def benches() -> dict[str, str]:
    """Return the benches that come with megatile: name to module."""
    return {
        m.name: f"{folder}.{m.name}"
        for folder in FOLDERS
        for m in iter_modules(import_module(folder).__path__)
    }


def load(text: str) -> Bench:
    """Return a bench by name, of ``./benches/NAME.py``, or of a file (``FILE.py[:NAME]``), which is run."""
    known = benches()
    if text in known:
        return benches_of(import_module(known[text]))[text]
    file, _, name = text.partition(":")
    if Path(file).suffix != ".py":
        beside = Path("benches") / f"{text}.py"
        if not exists(beside):
            raise MegatileError(
                f"there is no bench '{text}'", advice=did_you_mean(text, known, what="benches")
            )
        file = str(beside)
    found = of_file(file)
    if name and name not in found:
        raise MegatileError(
            f"'{file}' has no bench '{name}'", advice=did_you_mean(name, found, what="benches")
        )
    if not name and len(found) != 1:
        said = f"'{file}' has {len(found)} benches" if found else f"'{file}' has no function run(torch)"
        raise MegatileError(said, advice=f"name one: {file}:{next(iter(found))}" if found else None)
    return found[name or next(iter(found))]


def of_file(file: str) -> Mapping[str, Bench]:
    return benches_of(USER_FILES.enter_context(user_module(file)))


def show(files: Sequence[Path]) -> None:
    """Print the benches that come with megatile, and those of Python files and of folders of them."""
    rows = [(name, benches_of(import_module(module))[name].description) for name, module in benches().items()]
    for given in files:
        inside = sorted(given.glob("*.py")) if is_folder(given) else [given]
        for file in inside:
            rows += [(f"{file}:{name}", found.description) for name, found in of_file(str(file)).items()]
    print_table(("bench", "what it does"), rows, left=2)


def print_times(times: Mapping[str, float], launches: Sequence[Mapping[str, Any]]) -> None:
    """Print the times of a bench in all, then those of its longest launches; equal names share a line."""
    for label, key in HEADLINE:
        print(f"  {label:<17} {written(times[key]):>12}")
    by_name: dict[str, list[Mapping[str, Any]]] = {}
    for launch in launches:
        by_name.setdefault(launch["name"], []).append(launch)
    sums = {
        name: [sum(w[key] for w in each) for key in ("total_ns", "pe_exec_ns", "network_ns")]
        for name, each in by_name.items()
    }
    longest = sorted(sums, key=lambda name: -sums[name][0])
    rows = [(name, len(by_name[name]), *map(written, sums[name])) for name in longest[:MAX_LAUNCH_ROWS]]
    print_table(("launch", "times", "total", "PE execution", "network"), rows)
    if len(longest) > MAX_LAUNCH_ROWS:
        print(f"  {len(longest) - MAX_LAUNCH_ROWS} shorter ones are not shown; --json lists every launch")


def written(ns: float) -> str:
    return format_time(round(ns * 1000)) if ns else "-"


def run_safely(run: Any, torch: Any) -> Any:
    """Run a bench; an exception of its own is one sentence with its line (``MEGATILE_DEBUG=1`` raises it)."""
    try:
        return run(torch)
    except MegatileError:
        raise
    except Exception as error:
        if torch.debug:
            raise
        raise MegatileError(f"{type(error).__name__}: {error}", place=raised_at(error)) from error


def bench(
    name: Annotated[
        str,
        typer.Argument(help="A shipped bench, ./benches/NAME.py, a Python file (FILE.py[:NAME]), or 'list'."),
    ],
    files: Annotated[
        list[Path] | None, typer.Argument(help="With 'list': more files and folders to list.")
    ] = None,
    machine: Machine = "ahbm",
    topology: Annotated[Path | None, typer.Option(help="A topology.yaml instead of a machine.")] = None,
    ccl: Annotated[Path | None, typer.Option(help="A ccl.yaml that names the all_reduce kernel.")] = None,
    algorithm: Annotated[
        str | None,
        typer.Option("-a", "--algorithm", help="A kernel of ccl.yaml, or a library algorithm."),
    ] = None,
    device: Annotated[str, typer.Option(help="'all', or the default device: sip:N.")] = "all",
    verify_data: Annotated[
        bool, typer.Option("--verify-data/--no-data", help="Check data (the default), or predict times only.")
    ] = True,
    settings: Set = None,
    trace: Annotated[Path | None, typer.Option(help="Write a trace (.json for Perfetto, .jsonl).")] = None,
    log: Annotated[Path | None, typer.Option(help="Write an op log (.jsonl) for mt.replay.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write an HTML report.")] = None,
    trust: TrustCode = False,
    json: Json = False,
) -> None:
    """Run a bench: its checks, then simulated times.

    Kernels include collectives; their time is PE execution (busy engines) and network (the rest).

    Example: megatile bench ccl_allreduce -m ahbm --set sips=4 -a intercube_allreduce
    """
    import contextlib
    import io

    from megatile.report.page import check_page, page, write_page
    from megatile.runtime.host.context import host
    from megatile.runtime.host.times import all_launches
    from megatile.trace import write_trace

    if name == "list":
        show(files or ())
        return
    if files:
        raise MegatileError(f"'{files[0]}' is an unexpected argument", advice="megatile bench list FILE ...")
    found = load(name)
    if report is not None:
        check_page(report)
    said = io.StringIO()
    with host(
        str(topology or machine),
        ccl or (found.ccl if algorithm is None else None),
        algorithm=algorithm,
        data=verify_data,
        log=log is not None,
        trust=trust,
        target_device=device,
        **overrides(settings),
    ) as torch:
        with contextlib.redirect_stdout(said) if json else contextlib.nullcontext():
            failures = run_safely(found.run, torch) or 0
        times, launches = torch.report(), all_launches(torch.engine)
        if trace is not None:
            write_trace(torch.trace, trace)
        if report is not None:
            cards = [(key.removesuffix("_ns"), format_time(round(ns * 1000))) for key, ns in times.items()]
            title = f"{name} on {torch.machine.name}"
            write_page(report, page(torch.trace, title=title, hda=torch.machine, cards=cards))
        if log is not None and torch.op_log is not None:
            torch.op_log.write(log)
    if json:
        said_so = {
            "bench": name,
            "machine": torch.machine.name,
            "failures": failures,
            "said": said.getvalue().strip(),
        }
        print_json("bench", {**said_so, **times, "launches": launches})
    elif times["total_ns"]:
        print_times(times, launches)
    if failures:
        raise typer.Exit(1)
