"""The interpreter: units run statements, interleaved, until the launch is done or nothing can proceed."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Generator
from time import monotonic
from typing import Any

import numpy as np

from megatile.core.errors import MegatileError
from megatile.core.expr import Const, Expr
from megatile.core.limits import TimeBudgetExceeded, deadline
from megatile.core.progress import tell
from megatile.ir import nodes as n
from megatile.ir.expr import Load
from megatile.ir.launch import ROOT
from megatile.ir.program import Program
from megatile.language.tile.errors import ProgramWarning
from megatile.targets.interpret.access import Accessor
from megatile.targets.interpret.elementwise import Elementwise, Iterations
from megatile.targets.interpret.errors import DataRaceError, DeadlockError, RunError
from megatile.targets.interpret.expressions import Compiler, Evaluate, unflatten
from megatile.targets.interpret.group import WINDOW, Dispatcher, Group, word_of
from megatile.targets.interpret.independent import can_batch, can_run
from megatile.targets.interpret.lockstep import Lockstep
from megatile.targets.interpret.places import Places, Sharing
from megatile.targets.interpret.record import Recorder
from megatile.targets.interpret.schedule import Schedule
from megatile.targets.interpret.statements import HANDLERS, TURN, WAIT, LeaveBody
from megatile.targets.interpret.units import Unit, describe

Task = Generator[Any, None, None]
MIN_UNITS_SHOWN = 16
"""Units of a region of which each that ends is told to a listener."""


class Interpreter:
    """One run of a Program."""

    def __init__(
        self, program: Program, schedule: Schedule, checks: bool = True,
        output: Callable[[str], None] = print, on_breakpoint: Callable[..., None] | None = None,
    ):  # fmt: skip
        self.program = program
        self.launch = program.launch
        self.schedule = schedule
        self.checks = checks
        self.recorder: Recorder | None = None
        self.output = output
        self.on_breakpoint = on_breakpoint
        self.places = Places(program)
        tensors = {p.name for p in program.params} if program.padded else set()
        self.padded = {name for name, one in self.places.names.items() if one.base in tensors}
        self.keep: list[Any] = []
        self.strict_bounds = False
        self.noted: set[int] = set()
        """Regions whose slices were found to reach over an edge."""
        self.compile = Compiler(program.launch, self._load)
        self.access = Accessor(self)
        self.elementwise = Elementwise(self)
        self.sharing = Sharing(program, self.places)
        self.pending: deque[tuple[Unit, Unit, Callable[[], None]]] = deque()
        self.dispatchers: list[Dispatcher] = []
        self.live: dict[int, Unit] = {}
        self.batchable: dict[tuple[int, int], bool] = {}
        self.waiters: dict[Any, list[Unit]] = {}
        self.elements: dict[int, n.Region] = {}
        self.suspicion: RunError | None = None
        """A read of something unwritten, unless it turns out to be a race with the unit that writes it."""
        self.steps, self.ends = 0, deadline()
        self.running: n.Node | None = None

    # --- running ----------------------------------------------------------------------------------

    def run(self) -> None:
        """Run the Program. What has no value in arithmetic (a division by zero) gives inf or NaN."""
        with np.errstate(all="ignore"):
            try:
                self._run()
            except DataRaceError:
                raise
            except RunError as error:
                raise self.suspicion or error from None
        if self.suspicion is not None:
            raise self.suspicion

    def _run(self) -> None:
        root = Unit(None, (), None, {})
        self.start(root, self.program.body)
        schedule = self.schedule
        while True:
            if not schedule.units:
                if self.admit() or self.deliver_one():
                    continue
                if root.ended:
                    return
                raise self.deadlock()
            self.check_time()
            self.step(schedule.take())
            if schedule.late_puts and self.pending and schedule.deliver_now():
                self.deliver_one()

    def check_time(self) -> None:
        """End the run when the enclosing `time_limit` is over."""
        if self.ends is not None and monotonic() > self.ends:
            raise TimeBudgetExceeded(
                f"program '{self.program.name}' has not ended within the time given", advice="give more time"
            )

    def start(self, unit: Unit, body: tuple[n.Node, ...]) -> None:
        unit.task = self.body(body, unit)
        self.live[unit.number] = unit
        self.schedule.add(unit)

    def step(self, unit: Unit) -> None:
        """Run one statement of a unit."""
        self.steps += 1
        assert unit.task is not None
        try:
            state = next(unit.task)
        except (StopIteration, LeaveBody):
            self.finish(unit)
            return
        if state is None:
            self.schedule.add(unit)
        elif state is TURN:
            self.schedule.defer(unit)

    def wake(self, unit: Unit) -> None:
        unit.waiting = None
        self.schedule.add(unit)

    def finish(self, unit: Unit) -> None:
        del self.live[unit.number]
        if unit.parent is None:
            unit.ended = True
            return
        self.deliver_from(unit)
        group: Group = unit.group
        if group.waved and self.sharing.exposed and self.checks:
            self.access.check_end(unit, self.sharing.exposed)
        group.leave(unit)
        if group.size >= MIN_UNITS_SHOWN:
            tell(f"running {self.program.name}", group.size - group.left, group.size)
        for channel in unit.puts.values():
            channel.end()
        unit.end()
        unit.task = None
        if group.left == 0:
            self.wake(group.parent)

    def body(self, body: tuple[n.Node, ...], unit: Unit) -> Task:
        for node in body:
            unit.node = self.running = node
            try:
                result = HANDLERS[type(node)](self, node, unit)
                if result is None:
                    yield None
                else:
                    yield from result
            except MegatileError as error:
                error.place = error.place or node.place
                raise

    # --- regions ----------------------------------------------------------------------------------

    def region(self, node: n.ScaleRegion, unit: Unit) -> Task:
        """Every unit of the scale below ``unit`` runs the body; ``unit`` goes on when all have finished."""
        within = self.launch.scales[unit.depth - 1].name if unit.depth else ROOT
        group = Group(self.launch, unit, node, within)
        low, high = unit.depth, self.launch.depth(node.scale)
        counts = [s.count for s in self.launch.scales[low:high]]
        if self._batches(node, unit, high):
            with self.elementwise.places_of(unit):
                self.elementwise.run_units(node, unit, counts)
            yield None
            return
        if can_run(self, node, unit, group.size) and Lockstep(self, node, unit.vars).run():
            yield None
            return
        unit.fork()
        unit.waiting = ("region", node, "")
        if self.launch.is_dispatched(low, high):
            group.waved = not self.launch.resident
            window = None if self.sharing.remote or self.sharing.exposed else WINDOW
            dispatcher = Dispatcher(self.launch, group, self.spawn, window)
            self.dispatchers.append(dispatcher)
            dispatcher.admit()
        else:
            for rank in range(group.size):
                self.spawn(group, rank, unit.path + unflatten(rank, counts), unit.frame)
        yield WAIT
        unit.join()

    def _batches(self, node: n.ScaleRegion, unit: Unit, high: int) -> bool:
        """Return whether the units of a region need not run one by one; recording wants to know each."""
        if self.recorder is not None or self.launch.is_dispatched(unit.depth, high):
            return False
        key = (id(node), unit.depth)
        if key not in self.batchable:
            self.batchable[key] = can_batch(node, unit.depth, self.places.names, self.launch)
        return self.batchable[key]

    def spawn(self, group: Group, rank: int, path: tuple[int, ...], frame: dict[Any, Any]) -> None:
        child = Unit(group.parent, path, group, frame)
        group.join(rank, child)
        self.start(child, group.node.body)

    def admit(self) -> bool:
        """Start more instances where there is room."""
        self.dispatchers = [d for d in self.dispatchers if d.group.left]
        started = [d.admit() for d in self.dispatchers]  # all of them, not only the first
        return any(started)

    def queued(self) -> int:
        """Return instances that wait for a free place."""
        return sum(d.queued for d in self.dispatchers)

    # --- puts -------------------------------------------------------------------------------------

    def post(self, unit: Unit, peer: Unit, action: Callable[[], None]) -> None:
        """Something that reaches ``peer`` after what ``unit`` sent it before."""
        if not self.schedule.late_puts:
            action()
        else:
            self.pending.append((unit, peer, action))

    def deliver_one(self) -> bool:
        if not self.pending:
            return False
        self.pending.popleft()[2]()
        return True

    def deliver_from(self, unit: Unit, depth: int = 0) -> None:
        """Everything a unit has sent to others (at ``depth`` or further in) arrives."""
        if not self.pending:
            return
        mine = [p for p in self.pending if p[0] is unit and p[1].depth >= depth]
        self.pending = deque(p for p in self.pending if p[0] is not unit or p[1].depth < depth)
        for _, _, action in mine:
            action()

    # --- values -----------------------------------------------------------------------------------

    def _load(self, expr: Load) -> Evaluate:
        region = n.Region(expr.source, tuple(n.Dim(i) for i in expr.index))

        def load(context: Any) -> Any:
            if isinstance(context, Iterations):
                return self.elementwise.load(expr, context)
            if isinstance(context, Lockstep):
                return context.load(expr)
            return self.access.read(self.access.resolve(region, context), context)

        return load

    def value(self, expr: Expr, unit: Unit) -> Any:
        return expr.value if isinstance(expr, Const) else self.compile(expr)(unit)

    def note(self, message: str, advice: str | None, node: n.Node | None = None) -> None:
        """Note something allowed that was hardly meant."""
        node = node or self.running
        where = f"{node.span.file}:{node.span.line}: " if node is not None and node.span else ""
        warnings.warn(f"{where}{message} (try: {advice})", ProgramWarning, stacklevel=2)

    def say(self, unit: Unit, text: str) -> None:
        self.output(f"[{describe(unit, self.launch)}] {text}")

    # --- nothing can proceed ----------------------------------------------------------------------

    def deadlock(self) -> DeadlockError:
        deserted = _deserted_meeting(self)
        if deserted is not None:
            return deserted
        waiting = _waiting(self)
        lines = []
        for unit, now, node in waiting[:6]:
            line = f" (line {node.span.line})" if node.span else ""
            lines.append(f"{describe(unit, self.launch)} waits at {word_of(node)}{line}{now}")
        more = len(waiting) - len(lines)
        if more > 0:
            lines.append(f"and {more} more")
        lines += _signalled(
            self.program.body, {node.flag for *_, node in waiting if isinstance(node, n.Wait)}
        )
        queued = self.queued()
        advice = "every wait needs a signal that is sent later, every barrier all of its units"
        if queued:
            slots = min(d.slots for d in self.dispatchers)
            scale = self.launch.dispatch
            lines.append(f"{queued} instances of '{scale}' are not resident, only {slots} fit at once")
            advice = f"launch at most as many {scale}s as fit, or synchronise by ending the region"
        missed = _missed_collective(self)
        if missed is not None:
            return DeadlockError(
                f"{missed.message}; {'; '.join(lines)}", place=missed.place, advice=missed.advice
            )
        place = waiting[0][2].place if waiting else None
        return DeadlockError("deadlock: " + "; ".join(lines), place=place, advice=advice)


def _signalled(body: tuple[n.Node, ...], flags: set[str]) -> list[str]:
    """Return where flags that units wait for are counted up."""
    said = []
    for flag in sorted(flags):
        signals = [m for m in n.walk(body) if isinstance(m, n.Signal) and m.flag == flag and m.span]
        places = sorted({m.span.line for m in signals if m.span})
        where = f"at line {', '.join(map(str, places))}" if places else "nowhere"
        said.append(f"'{flag}' is signalled {where}")
    return said


def _waiting(machine: Interpreter) -> list[tuple[Unit, str, n.Node]]:
    """Return units that wait for something other than their own region, in order."""
    units = (u for u in machine.live.values() if u.waiting is not None and u.waiting[0] != "region")
    return [(unit, unit.waiting[2], unit.waiting[1]) for unit in units if unit.waiting]


def _deserted_meeting(machine: Interpreter) -> DeadlockError | None:
    """Return a barrier or collective that a unit has passed by."""
    for group in {id(u.group): u.group for u in machine.live.values() if u.group is not None}.values():
        meeting = group.deserted()
        if meeting is not None:
            return group.partial(meeting, machine.program.body)
    return None


def _missed_collective(machine: Interpreter) -> DeadlockError | None:
    """Return a collective that some units wait at while the others wait elsewhere."""
    for unit in machine.live.values():
        for meeting in unit.group.meetings.values() if unit.group is not None else ():
            if isinstance(meeting.node, n.Collective) and not machine.queued():
                return unit.group.partial(meeting, machine.program.body)
    return None
