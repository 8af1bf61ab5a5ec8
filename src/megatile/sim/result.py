"""What a simulation found out."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from functools import cached_property
from html import escape
from pathlib import Path as FilePath
from typing import Any

import numpy as np

from megatile.core.cached import cached_in_owner
from megatile.core.public import extension
from megatile.core.quantities import format_bytes, format_time
from megatile.core.times import HasTime
from megatile.plan.model import Compute
from megatile.plan.residency import copies
from megatile.sim.launches import Launch
from megatile.sim.record import Record
from megatile.sim.repeat import recorded
from megatile.sim.usage import Traffic, Usage
from megatile.timing.attention_kernels import FLOPS_PER_PAIR
from megatile.timing.machine_timing import Origin, Timing, as_timing
from megatile.timing.origins import origin_lines
from megatile.timing.resources import Resources
from megatile.timing.transports import NO_COMMUNICATION, model_of
from megatile.trace import (
    CriticalStep,
    Event,
    Trace,
    critical_path,
    text_table,
    why_slow,
    write_trace,
)

TRACE_SWITCH = "MEGATILE_TRACE"


class Result(HasTime):
    """The outcome of one simulation.

    ``trace``, ``busy``, ``links``, ``critical_path`` … come from what was recorded in the same run; where
    nothing was, or it was too much, the run is repeated when they are first asked for.
    """

    time_ps: int

    def __init__(self, launch: Launch) -> None:
        self.plan = launch.plan
        self.machine = launch.hda
        self.time_ps = launch.took_ps
        self.choices = launch.choices
        """Per unit, the members its receive-from-any took; `execute(order=result)` follows them."""
        self.outputs = launch.outputs
        self.messages = launch.messages
        """Per channel, how many messages went through each queue (receiver * members + member)."""
        self.timed_by = launch.timed_by
        """Which units were timed, and why: every one, or unit 0 where all do the same at the same times."""
        self.timing: Timing = launch.timing
        self.launch = launch
        self.lowered: Any = None
        """The lowered program that the plan is of, where it is of one."""

    def __repr__(self) -> str:
        return f"Result({self.plan.name} on {self.machine.name}: {format_time(self.time_ps)})"

    @cached_property
    def record(self) -> Record:
        """What the engine recorded of every command."""
        return recorded(self.launch)

    @cached_property
    def trace(self) -> Trace:
        """Every event with its cause and source line."""
        record = self.record if self.record.operands else recorded(self.launch, operands=True)
        return record.trace(self.launch.begin_ps)

    @property
    def op_log(self) -> list[Event]:
        """Every operation with start, end, unit, operands and their memories, in order of time."""
        return sorted(self.trace, key=lambda e: (e.start_ps, e.end_ps, e.index))

    @cached_property
    def usage(self) -> Usage:
        return self.record.usage(self.time_ps)

    @property
    def busy(self) -> dict[str, int]:
        """Picoseconds of work per engine, added up over all units."""
        return self.usage.busy

    def use(self, engine: str) -> float:
        """Share of the whole time in which an engine works, on average over the hardware that uses it."""
        return self.usage.covered[engine] / max(1, self.time_ps * self.usage.units[engine])

    @property
    def links(self) -> dict[str, float]:
        """Share of the whole time in which each link is busy."""
        return self.usage.links

    def work_ps(self, engine: str) -> list[int]:
        """Per unit, how long ``tensor`` or ``vector`` engines work."""
        return self.record.work_ps(engine)

    @property
    def memories(self) -> dict[str, float]:
        """Share of the whole time in which each shared memory is busy."""
        return self.usage.memories

    @cached_property
    def traffic(self) -> dict[str, Traffic]:
        """Per memory layer: bytes read and written by copies, and what caches had of them."""
        return self.record.traffic()

    @property
    def exposed_ns(self) -> float:
        """The longest time a unit communicates or waits while none of its compute engines works."""
        return max(self.usage.exposed.values(), default=0) / 1000

    @cached_property
    def critical_path(self) -> list[CriticalStep]:
        """The events that released each other up to the end; their times add up to the whole."""
        return critical_path(self.trace)

    def why_slow(self, limit: int = 10) -> str:
        """Return the critical path as a table by operation and source line."""
        return why_slow(self.trace, limit)

    @cached_in_owner
    def verdict(self) -> Any:
        """Return what limits the time, why and where, what to do next, and what that would bring.

        Remedies are timed again, as changed programs, Plans or machines, which may take ten seconds; a
        program that a function made (``gemm(M, N, K, bM=64)``) is made again with other integers.
        """
        return extension(__name__).verdict(self)

    def write_trace(self, path: str | FilePath) -> FilePath:
        """``*.json[.gz]`` for Perfetto, ``*.jsonl[.gz]`` for an op log."""
        return write_trace(self.trace, path)

    @property
    def begin_ps(self) -> int:
        """What goes before the first command beside the launch (kernels of a library)."""
        return self.launch.begin_ps

    @cached_property
    def flops_by(self) -> dict[tuple[str, str], int]:
        """Operations done, by engine and dtype."""
        return self.record.flops()

    @property
    def flops(self) -> int:
        """Operations done by all units together."""
        return sum(self.flops_by.values())

    @property
    def share_of_machine(self) -> float:
        """The part of the machine's units that the plan runs on."""
        resources = self.record.launched.resources
        first, _ = copies(self.plan, self.machine)[self.plan.level(None).name]
        return len(np.unique(first)) / max(1, resources.level.total)

    def retime(self, factors: Mapping[str, float]) -> int:
        """Return picoseconds with figures of the machine multiplied: ``{"memory.hbm.bandwidth": 2}``."""
        from megatile.sim.sensitivity import retime

        return retime(self, factors)

    def sensitivities(self, names: Sequence[str] | None = None, **options: Any) -> list[Any]:
        """Return how the time follows each rate, latency and capacity that the plan uses, largest effect
        first."""
        from megatile.sim.sensitivity import sensitivities

        return sensitivities(self, names, **options)

    def what_helps(self, limit: int = 12) -> str:
        """Return the sensitivities as a table: what a tenth better would bring."""
        from megatile.sim.sensitivity import table

        return table(self.sensitivities(), limit)

    def report(
        self,
        path: str | FilePath,
        *,
        retime: bool = True,
        texts: Sequence[tuple[str, str]] = (),
        sources: str | FilePath | None = None,
    ) -> FilePath:
        """Write one self-contained HTML page: verdict, timeline, links, roofline, traffic, critical path,
        sliders.

        ``retime=False`` leaves out the verdict and the sliders, for which changed plans and machines are
        simulated some forty times; ``texts``
        are further (title, text) pairs to fold in. Source lines are shown of programs that this process has
        read, and of files in the folder ``sources``: a plan that was read from a file may name any other.
        """
        from megatile.report.page import check_page, write_page
        from megatile.sim.page import result_page

        check_page(path, sources)
        return write_page(path, result_page(self, retime=retime, texts=texts, sources=sources))

    def _repr_html_(self) -> str:
        return f"<pre>{escape(self.summary())}</pre>"

    @property
    def origins(self) -> dict[str, Origin]:
        """By class of commands, where their times come from: measured, interpolated, rule or assumed."""
        return Resources(self.machine, self.plan, timing=self.timing).origins()

    @cached_property
    def model(self) -> str:
        """The name of the model that times its communication (``NCCL ring, LL``, ``copy engines``), and of
        that of attention commands, if it has such."""
        found = model_of(self.plan, self.machine)
        commands = (s for body in self.plan.bodies for s in body if isinstance(s, Compute))
        if not any(s.operation.removesuffix("_add") in FLOPS_PER_PAIR for s in commands):
            return found
        return f"{found}; attention by {as_timing(self.timing).attention}"

    @property
    def exposed_name(self) -> str:
        """What `exposed_ns` is the time of: copies and waits too, so all of it where no messages are sent."""
        return (
            "exposed copies and waits of one unit: at most"
            if self.model.startswith(NO_COMMUNICATION)
            else "exposed communication"
        )

    def summary(self) -> str:
        """Time, engines, links and exposed communication as a table, and where the times come from."""
        whole = max(1, self.time_ps)
        rows = [
            (
                f"engine {name} × {count}",
                format_time(round(self.use(name) * whole)),
                f"{self.use(name):.1%}",
                "",
            )
            for name, count in self.usage.units.items()
        ]
        moved = self.usage.bytes_on
        for kind, table in (("link", self.links), ("memory", self.memories)):
            ranked = sorted(table.items(), key=lambda item: (-item[1], item[0]))
            shown = ranked[:8]
            if len(ranked) > 8 and kind == "memory":  # the busiest of each layer
                first = {name.split("[")[0]: (name, share) for name, share in reversed(ranked)}
                shown = sorted(first.values(), key=ranked.index)
            for name, share in shown:
                spent, word = format_time(round(share * whole)), name.removeprefix("memory ")
                found = self.traffic.get(word.split("[")[0]) if kind == "memory" else None
                much = ", ".join(filter(None, (format_bytes(moved[name]), found.hit_text if found else "")))
                rows.append((f"{kind} {word}", spent, f"{share:.1%}", much))
            if len(ranked) > len(shown):
                more = "memories" if kind == "memory" else "links"
                rows.append((f"… {len(ranked) - len(shown)} more {more}", "", "", ""))
        counts = ((level.name, self.plan.instances(level.name)) for level in self.plan.levels)
        inside = ", ".join(f"{count} {name}{'' if count == 1 else 's'}" for name, count in counts)
        units = (
            f"{inside}{' on ' * bool(inside)}"
            f"{self.plan.units} {self.plan.scale}{'' if self.plan.units == 1 else 's'}"
        )
        head = (
            f"{self.plan.name} on {self.machine.name}: {format_time(self.time_ps)}, {units}, "
            f"{self.exposed_name} {format_time(round(self.exposed_ns * 1000))} ({self.model})"
        )
        lines = [head, *self.plan.pace_lines(), *self.plan.spread_lines()]
        lines.append(text_table(("what", "busy", "use", "bytes"), rows))
        return "\n".join([*lines, *origin_lines(self.origins)])

    def print_communication(self, start_ps: int = 0) -> None:
        """One line per message on stderr, in order of time; ``start_ps`` is when the launch began."""
        for line in self.record.message_lines(start_ps + self.begin_ps):
            print(line, file=sys.stderr)


def wants_communication_trace() -> bool:
    """Return whether ``MEGATILE_TRACE=comm`` is set."""
    return "comm" in os.environ.get(TRACE_SWITCH, "").split(",")
