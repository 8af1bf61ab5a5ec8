"""``megatile``: the command line. Each group of commands is a file of its own, loaded when used."""

from __future__ import annotations

import errno
import os
import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from megatile.cli.output import USER_FILES, Commands, fail
from megatile.core.errors import MegatileError
from megatile.core.version import __version__

COMMANDS = {
    "machines": ("machine.machines", "List the shipped machines."),
    "collective": (
        "collective.collective",
        "Predict a collective over a range of sizes.",
    ),
    "run": ("run.run", "Verify a tile program, predict its time and name the bottleneck."),
    "lower": ("run.lower", "Print a tile program after each compiler pass."),
    "export": ("run.export", "Write a tile program as TileLang, CUDA C++ or C."),
    "measure": ("machine.measure", "Measure this computer and write its machine file."),
    "bench": ("bench.bench", "Run a bench on a simulated machine."),
    "kernel": ("perfdb.kernel", "Predict how long a library's kernel takes on one device."),
    "tune": ("tune.tune", "Find the fastest combination of parameter values."),
    "sweep": ("tune.sweep", "Time a plan, program or collective on variants of a machine."),
    "check-kernel": ("run.check_kernel", "Check, run and predict a file of TileLang kernels."),
    "mcp": ("mcp.mcp", "Serve check, run, predict, explain and tune to coding tools (MCP)."),
    "machine": ("machine.app", "Show, check and compare machine descriptions."),
    "plan": ("plan.app", "Show, save, check and simulate Plans."),
    "model": ("model.app", "Predict a language model: steps, memory, serving, training."),
    "attention": ("attention.app", "Predict and run attention over several devices."),
    "trace": ("trace.app", "Show and convert traces of simulated runs."),
    "perfdb": ("perfdb.app", "Keep measured kernel times, to predict from and to fit."),
}
"""Each command or group: its place in ``megatile.cli``, and its line in the list of commands."""
ANY_MORE = {"allow_extra_args": True, "ignore_unknown_options": True}


def load_command(name: str) -> Any:
    """Return the command or group ``name``, with its options, from its file."""
    module, _, member = COMMANDS[name][0].partition(".")
    found = getattr(import_module(f"megatile.cli.{module}"), member)
    holder = Commands()
    if isinstance(found, typer.Typer):
        holder.add_typer(found, name=name)
    else:
        settings = ANY_MORE if name in ("kernel", "check-kernel") else None
        holder.command(name, context_settings=settings)(found)
    return typer.main.get_group(holder).commands[name]


class AllCommands(TyperGroup):
    """The commands. Listing them loads none of their files, running one loads only its own.

    ``run --bench NAME`` is another spelling of ``bench NAME``.
    """

    def __init__(self, **settings: Any):
        super().__init__(**settings)
        self.commands = {name: TyperCommand(name, help=line) for name, (_, line) in COMMANDS.items()}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, listed, rest = super().resolve_command(ctx, _as_bench(args) if args[:1] == ["run"] else args)
        return name, listed and load_command(listed.name or ""), rest

    def invoke(self, ctx: Any) -> Any:
        with USER_FILES:
            return super().invoke(ctx)


def _as_bench(args: list[str]) -> list[str]:
    """Return the arguments of ``run --bench NAME …`` as those of ``bench NAME …``; others as they are."""
    for at, word in enumerate(args):
        if word == "--bench" and at + 1 < len(args):
            return ["bench", args[at + 1], *args[1:at], *args[at + 2 :]]
        if word.startswith("--bench="):
            return ["bench", word.removeprefix("--bench="), *args[1:at], *args[at + 1 :]]
    return args


app = typer.Typer(
    name="megatile",
    cls=AllCommands,
    help="Describe a machine, write programs and collectives for it once, then check, run and predict them.",
    epilog="Start with: megatile machines · megatile machine show dgx-h100 --png dgx.png. In sizes and "
    "extents K, M and G count in 1024 (64K is 64 KiB; kB, MB and GB are decimal); rates are decimal.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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
