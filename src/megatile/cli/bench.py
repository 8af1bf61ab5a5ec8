"""``megatile bench``: run a bench written like a PyTorch script on a simulated machine."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Annotated, Any

import typer

from megatile.cli.machine import Json, Machine, Set, TrustCode, overrides
from megatile.cli.output import USER_FILES, print_json
from megatile.core.errors import MegatileError, did_you_mean
from megatile.core.quantities import format_time
from megatile.core.user_modules import user_module

FOLDERS = ("megatile.runtime.benches", "megatile.parallel.benches")


def benches() -> dict[str, str]:
    """The benches that come with megatile: name to module."""
    return {
        m.name: f"{folder}.{m.name}"
        for folder in FOLDERS
        for m in iter_modules(import_module(folder).__path__)
    }


def load(name: str) -> Any:
    """A bench by name, or from a Python file, which is run."""
    known = benches()
    if name in known:
        return import_module(known[name])
    path = Path(name)
    if path.suffix != ".py":
        raise MegatileError(f"there is no bench '{name}'", advice=did_you_mean(name, known, what="benches"))
    module = USER_FILES.enter_context(user_module(path))
    if not callable(getattr(module, "run", None)):
        raise MegatileError(f"'{name}' has no function run(torch)")
    return module


def bench(
    name: Annotated[
        str, typer.Argument(help="A bench that comes with megatile, or a Python file with run(torch).")
    ],
    machine: Machine = "ahbm",
    topology: Annotated[Path | None, typer.Option(help="A topology.yaml instead of a machine.")] = None,
    ccl: Annotated[Path | None, typer.Option(help="A ccl.yaml whose kernel does all_reduce.")] = None,
    algorithm: Annotated[
        str | None,
        typer.Option("-a", "--algorithm", help="A kernel of ccl.yaml, or an algorithm of the library."),
    ] = None,
    verify_data: Annotated[
        bool, typer.Option("--verify-data/--no-data", help="Compute and check data, or find out times only.")
    ] = True,
    settings: Set = None,
    trace: Annotated[
        Path | None, typer.Option(help="Write a trace: *.json for Perfetto, *.jsonl for an op log.")
    ] = None,
    log: Annotated[
        Path | None, typer.Option(help="Write every operation on data: *.jsonl, for mt.replay.")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Write a page to look at: out.html.")] = None,
    trust: TrustCode = False,
    json: Json = False,
) -> None:
    """Run a bench: what it checks, then the simulated time, that of the PEs' engines, the rest, and the
    bound.

    Example: megatile bench ccl_allreduce -m ahbm --set sips=4 -a intercube_allreduce
    """
    import contextlib
    import io

    from megatile.report.page import check_page, page, write_page
    from megatile.runtime.host.context import host
    from megatile.trace import write_trace

    module = load(name)
    if report is not None:
        check_page(report)
    said = io.StringIO()
    with host(
        str(topology or machine),
        ccl or (getattr(module, "CCL", None) if algorithm is None else None),
        algorithm=algorithm,
        data=verify_data,
        log=log is not None,
        trust=trust,
        **overrides(settings),
    ) as torch:
        with contextlib.redirect_stdout(said) if json else contextlib.nullcontext():
            failures = module.run(torch) or 0
        times = torch.report()
        if trace is not None:
            write_trace(torch.trace, trace)
        if report is not None:
            cards = [(key.removesuffix("_ns"), format_time(round(ns * 1000))) for key, ns in times.items()]
            title = f"{name} on {torch.machine.name}"
            write_page(report, page(torch.trace, title=title, hda=torch.machine, cards=cards))
        if log is not None and torch.op_log is not None:
            torch.op_log.write(log)
    if json:
        found = {
            "bench": name,
            "machine": torch.machine.name,
            "failures": failures,
            "said": said.getvalue().strip(),
        }
        print_json("bench", {**found, **times})
    else:
        for label, key in (
            ("total", "total_ns"),
            ("PE execution", "pe_exec_ns"),
            ("network", "network_ns"),
            ("roofline bound", "bound_ns"),
        ):
            print(f"  {label:<15} {format_time(round(times[key] * 1000)):>12}")
    if failures:
        raise typer.Exit(1)
