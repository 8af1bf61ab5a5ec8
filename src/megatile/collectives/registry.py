"""Algorithms by name. Each is a function that writes its part of the plan; see ``algorithms/``.

@algorithm("mine", "all_reduce", unfit=needs_two_ranks)
def mine(w: Writer) -> None: ...
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from megatile.collectives.job import CollectiveError, Job
from megatile.collectives.writer import Writer
from megatile.core.arguments import no_none
from megatile.core.errors import did_you_mean
from megatile.core.quantities import whole
from megatile.core.registry import Registry
from megatile.plan.model import Plan


@dataclass(frozen=True)
class Algorithm:
    """``write`` puts the commands; ``unfit`` says why a job is not for it (None: it is); ``protocol`` is the
    only one on which its kernels send ("NVLS" where the switch reduces), if there is only one."""

    name: str
    operations: tuple[str, ...]
    write: Callable[..., None]
    unfit: Callable[[Job], str | None]
    protocol: str = ""

    @property
    def summary(self) -> str:
        """The first line of its docstring."""
        return (inspect.getdoc(self.write) or "").split("\n")[0]

    @property
    def options(self) -> dict[str, Any]:
        """Its own settings with their defaults."""
        parameters = list(inspect.signature(self.write).parameters.values())[1:]
        return {p.name: p.default for p in parameters}

    def reason_against(self, job: Job) -> str | None:
        if job.operation not in self.operations:
            return f"does {', '.join(self.operations)} only"
        if job.splits and self.name != "direct":
            return "sends blocks of one size"
        return self.unfit(job) if job.ranks > 1 else None

    def plan(self, job: Job, **options: Any) -> Plan:
        """Return the plan for a job; a job it cannot do is a ``CollectiveError``."""
        reason = self.reason_against(job)
        if reason is not None:
            raise CollectiveError(f"{self.name} cannot do {job.operation} over {job.ranks} ranks: {reason}")
        unknown = set(options) - set(self.options)
        if unknown:
            raise CollectiveError(
                f"{self.name} has no option '{min(unknown)}'",
                advice=did_you_mean(min(unknown), self.options, what="options"),
            )
        for name, value in options.items():
            _check_option(self.name, name, value, self.options[name])
        if options.get("chunks", 1) > max(job.count, MAX_CHUNKS_OF_SMALL_JOBS):
            raise CollectiveError(
                f"{self.name} cannot cut {job.count} elements into {options['chunks']} chunks",
                advice=f"use at most {max(job.count, MAX_CHUNKS_OF_SMALL_JOBS)}",
            )
        writer = Writer(job, self.name)
        if job.ranks == 1:
            _alone(writer)
        else:
            self.write(writer, **options)
        return writer.finish()


MAX_CHUNKS_OF_SMALL_JOBS = 64
"""So many chunks may be asked for whatever the size; those without an element are empty."""


def _check_option(algorithm: str, name: str, value: Any, default: Any) -> None:
    """Check that an option's value is like its default (None: yes, no or as the algorithm decides); numbers
    count something, so they are at least 1 (or it)."""
    said = f"{name}={value!r} is not valid for {algorithm}"
    if default is None or isinstance(default, bool):
        if not isinstance(value, bool) and value is not default:
            raise CollectiveError(said, advice="use True or False")
    elif isinstance(default, int):
        least = min(1, default)
        if whole(value) is None or value < least:
            raise CollectiveError(said, advice=f"use an integer of at least {least}")
    elif isinstance(default, str) and not isinstance(value, str):
        raise CollectiveError(said, advice=f"use a name such as '{default}'")


def _alone(writer: Writer) -> None:
    """One rank has all there is."""
    if writer.out_of_place:
        writer.copy(writer.output, writer.own)


ALGORITHMS: Registry[Algorithm] = Registry("collective algorithms")


@no_none
def algorithm(
    name: str, *operations: str, unfit: Callable[[Job], str | None] = lambda job: None, protocol: str = ""
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function ``f(writer, **options)`` as an algorithm."""

    def register(write: Callable[..., None]) -> Callable[..., None]:
        ALGORITHMS.add(name, Algorithm(name, operations, write, unfit, protocol))
        return write

    return register


def needs(*conditions: tuple[Callable[[Job], bool], str]) -> Callable[[Job], str | None]:
    """For ``unfit``: the reason beside the first condition that does not hold."""
    return lambda job: next((reason for holds, reason in conditions if not holds(job)), None)


ON_NODES = (lambda job: len(job.nesting) == 2, "needs nodes with several ranks each")
ON_ONE_NETWORK = (lambda job: len(job.nesting) == 1, "the ranks are not on one network")


TRUST = "read it, then say trust=True; or install it with an entry point, or register it under a name"


def by_import_path(path: str, what: str, *, trust: bool = True) -> Any:
    """Import ``package.module:name`` or ``package.module.name``; failing says which part does not exist.

    Importing runs code: a path that comes out of a file needs the user's word (``trust``).
    """
    if not trust:
        raise CollectiveError(f"{what} '{path}' is an import path, so it is code", advice=TRUST)
    module, _, name = path.partition(":") if ":" in path else path.rpartition(".")
    try:
        return getattr(import_module(module), name)
    except (ImportError, TypeError, ValueError) as problem:
        raise CollectiveError(f"{what} '{path}' cannot be imported: {problem}") from None
    except AttributeError:
        raise CollectiveError(
            f"module '{module}' has no '{name}'",
            advice=did_you_mean(name, dir(import_module(module)), what="names"),
        ) from None
