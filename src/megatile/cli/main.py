"""``megatile``: the command line. Each group of commands is a file of its own."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from megatile.cli import (
    attention,
    bench,
    collective,
    machine,
    perfdb,
    plan,
    run,
    trace,
    tune,
)
from megatile.cli.output import fail
from megatile.core.errors import MegatileError
from megatile.core.version import __version__


class Commands(TyperGroup):
    """The commands; ``run --bench NAME`` is another spelling of ``bench NAME``."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        return super().resolve_command(ctx, bench.as_bench(args) if args[:1] == ["run"] else args)


app = typer.Typer(
    name="megatile",
    cls=Commands,
    help="Describe a machine, write programs and collectives for it once, then check, run and predict them.",
    epilog="Start with: megatile machines · megatile machine show dgx-h100 --png dgx.png",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
COMMANDS: dict[str, Callable[..., None]] = {
    "machines": machine.machines, "collective": collective.collective, "run": run.run, "export": run.export,
    "measure": machine.measure, "bench": bench.bench, "kernel": perfdb.kernel, "tune": tune.tune,
    "sweep": tune.sweep, "check-kernel": run.check_kernel,
}  # fmt: skip
ANY_MORE = {"allow_extra_args": True, "ignore_unknown_options": True}
for _name, _command in COMMANDS.items():
    app.command(_name, context_settings=ANY_MORE if _name in ("kernel", "check-kernel") else None)(_command)
for _group in (machine, plan, attention, trace, perfdb):
    app.add_typer(_group.app, name=_group.__name__.rpartition(".")[2])


def _version(asked: bool) -> None:
    if asked:
        print(f"megatile {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line; a user's mistake is one message on stderr and exit code 1."""
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except MegatileError as problem:
        fail(problem)
    except OSError as problem:
        # What files can do wrong is said where they are opened: this is standard output.
        if problem.errno not in (errno.ENOSPC, errno.EIO, errno.EFBIG, errno.EDQUOT):
            raise
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  (nothing more to flush)
        fail(MegatileError(f"cannot write the output: {problem.strerror}"))


if __name__ == "__main__":
    main()
