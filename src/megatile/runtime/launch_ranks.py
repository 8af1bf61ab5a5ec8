"""A tile program on the ranks that torchrun has started: native code within a host, a Plan between hosts."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from megatile.core.errors import MegatileError
from megatile.lowering.lowered import Lowered, lower
from megatile.runtime.errors import LaunchError, PeerError, named
from megatile.runtime.forked import prepared, run_forked
from megatile.runtime.processes import Started
from megatile.runtime.program_memory import ProgramMemory
from megatile.runtime.ranks import Meeting
from megatile.targets.interpret.arguments import arrays_of, as_array, built, check_arguments, check_writable


def launch_on_ranks(
    prog: Any, arrays: list[Any], machine: Any, timeout: float, started: Started | None
) -> float:
    """Run a program on all ranks; the results are in the arrays of all afterwards.

    On one host rank 0 forks the processes that run it, as without torchrun. Between hosts every rank follows
    its unit of the Plan.
    """
    meeting = Meeting(timeout)
    work: _Native | _Planned | None = None
    problem = None
    try:
        kind = _Native if meeting.one_host else _Planned
        work = kind(prog, arrays_of(prog, arrays), machine, meeting)
    except MegatileError as error:
        problem = error
    with meeting.ending_together():
        equal = meeting.same(problem, *((work.code, work.views) if work else ("", ())))
        assert work is not None
        values = work.views if equal else [view.copy(order="C") for view in work.views]
        if not equal:
            meeting.broadcast(values)  # the ranks were given different values: those of rank 0 count
        if started is not None:
            started(meeting.pids)
        seconds = work.run(values, timeout)
        return max(record["seconds"] for record in meeting._agree({"seconds": seconds}))


class _Native:
    """Machine code in processes that rank 0 forks."""

    def __init__(self, prog: Any, arrays: list[np.ndarray], machine: Any, meeting: Meeting):
        self.meeting = meeting
        self._others = [(rank, pid) for rank, pid in enumerate(meeting.pids) if _is_alive(pid)]
        self.memory: ProgramMemory = prepared(prog, tuple(arrays), machine, meeting.size)[0]
        self.views, self.code = self.memory.views, self.memory.code.source.text

    def run(self, values: list[np.ndarray], timeout: float) -> float:
        seconds = 0.0
        if self.meeting.rank == 0:
            seconds = run_forked(self.memory, self.meeting.size, timeout, watch=self._check_ranks)
        written = [
            view
            for param, view in zip(self.memory.code.program.params, self.views, strict=True)
            if param.name not in self.memory.code.constant
        ]
        self.meeting.broadcast(written)
        return seconds

    def _check_ranks(self) -> None:
        """Raise when another rank is gone."""
        gone = tuple(rank for rank, pid in self._others if not _is_alive(pid))
        if gone:
            raise PeerError(f"{named('rank', gone)} ended", ranks=gone)


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return state.rsplit(")", 1)[1].split()[0] not in ("Z", "X")


class _Planned:
    """The Plan of the program; each rank runs one unit."""

    def __init__(self, prog: Any, arrays: list[np.ndarray], machine: Any, meeting: Meeting):
        from megatile.runtime.copies import refuse_one_sided

        self.meeting, self.views = meeting, arrays
        program = built(prog, arrays, machine)
        check_arguments(program, arrays)
        self.lowered: Lowered = lower(program, machine=machine)
        self.plan = self.lowered.plan
        if self.plan.units != meeting.size:
            raise LaunchError(
                f"'{self.plan.name}' has {self.plan.units} {self.plan.scale}s, and there are "
                f"{meeting.size} ranks on several hosts",
                advice=f"start {self.plan.units} ranks: between hosts each runs one {self.plan.scale}",
            )
        constant = {p.name for p in program.params} - set(self.lowered.written)
        check_writable(program, arrays, constant)
        refuse_one_sided(self.plan)
        self.code = self.plan.digest

    def run(self, values: list[np.ndarray], timeout: float) -> float:
        from megatile.runtime.stream import UnitRun
        from megatile.runtime.tile_memory import RankMemory
        from megatile.runtime.transport import Transport

        meeting, plan = self.meeting, self.plan
        transport = Transport(plan, meeting.rank, meeting.store, timeout, meeting.group)
        memory = RankMemory(plan, meeting.rank, self.lowered.scatter(values))
        run = UnitRun(plan, meeting.rank, memory, transport)
        begin = time.perf_counter()
        run.run()
        seconds = time.perf_counter() - begin
        outputs = self._outputs(run, memory)
        found = self.lowered.gather(outputs, values)
        for param, view in zip(self.lowered.program.params, self.views, strict=True):
            if param.name in found:
                view[...] = found[param.name]
        return seconds

    def _outputs(self, run: Any, memory: Any) -> dict[str, np.ndarray]:
        """Return the tiles that the program writes, of all owners, from the ranks that keep them."""
        outputs = {}
        for tile in self.plan.tiles:
            if tile.name in self.lowered.written:
                inputs = memory.inputs[tile.name]
                outputs[tile.name] = np.array(inputs, order="C")
                for owner, place in enumerate(outputs[tile.name]):
                    home = memory.home(tile.name, owner)
                    if home == self.meeting.rank:
                        place[...] = as_array(run.output(tile.name, owner))
                    self.meeting.broadcast([place], home)
        return outputs
