"""``mt.run``: a Program with real data."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TextIO

import numpy as np

from megatile.collectives.algorithms import algorithms, find_algorithm
from megatile.core.errors import MegatileError, did_you_mean
from megatile.core.frames import without_frames
from megatile.core.progress import Listener, estimated
from megatile.core.times import Shown
from megatile.hda import HDA
from megatile.ir import nodes as n
from megatile.ir.launch import Param
from megatile.ir.program import Program, bindings
from megatile.language.tile.program import DEFAULT_MACHINE, ProgramFunction
from megatile.language.tile.tiles import InputArray
from megatile.targets.interpret.access import assembled, same
from megatile.targets.interpret.arguments import (
    arrays_of,
    built,
    check_arguments,
    check_writable,
    in_order,
    warn_of_aliases,
)
from megatile.targets.interpret.errors import ArgumentError, PartialError, ReplicaMismatchError, RunError
from megatile.targets.interpret.group import word_of
from megatile.targets.interpret.machine import Interpreter
from megatile.targets.interpret.record import Recorder, Write
from megatile.targets.interpret.schedule import Schedule, schedule_of
from megatile.targets.interpret.storage import StoredArray


@dataclass(repr=False)
class RunResult(Shown):
    """What a run left besides the data: lines printed, steps taken, and, if recorded, who wrote what."""

    program: Program
    steps: int
    printed: list[str] = field(default_factory=list)
    recorder: Recorder | None = None

    def __repr__(self) -> str:
        lines = f", {len(self.printed)} lines printed" if self.printed else ""
        recorded = ", recorded" if self.recorder is not None else ""
        return (
            f"<run of '{self.program.name}' on {self.program.machine}: {self.steps} steps{lines}{recorded}>"
        )

    def last_write(self, name: str, *index: int, copy: int = 0, unit: int | None = None) -> Write | None:
        """Return who wrote an element of a tensor or tile, or a scalar, last, and when; None if nobody did.

        ``unit`` is the rank in the launch of the unit whose tile or scalar is meant; without it, the last
        write to any of that name. Needs ``record=True``.
        """
        if self.recorder is None:
            raise ArgumentError("this run was not recorded", advice="mt.run(..., record=True)")
        return self.recorder.last(name, index, copy, unit)


@without_frames
def run(
    prog: ProgramFunction | Program, *arrays: Any, machine: str | HDA = DEFAULT_MACHINE,
    schedule: str = "round-robin", seed: int = 0, checks: bool = True, strict_bounds: bool = False,
    record: bool = False, output: Callable[[str], Any] | TextIO | None = None,
    on_breakpoint: Callable[..., None] | None = None, progress: bool | Listener = False, **named: Any,
) -> RunResult:  # fmt: skip
    """Run a program on NumPy arrays; results are in the arrays afterwards.

    Arrays come in the order of the program's arguments, or by name: ``mt.run(p, A=a, B=b)``.

    ``schedule`` is how units interleave: ``round-robin``, ``random`` (by ``seed``) or ``adversarial``
    (puts arrive
    as late as they may). A correct program gives the same result with all. ``record`` keeps who wrote what.
    What is read of a tensor over its edge is zero and what is written there is dropped, as bulk copies do;
    with ``strict_bounds`` a region entirely outside, or a slice over the edge, is an error. An array given as
    ``T.Input(a)`` may not be written. ``progress=True`` shows on a terminal how many units are done; it may
    be a function of (what, done, of) instead.
    """
    order = schedule_of(schedule, seed)
    arrays = in_order(prog, arrays, named)
    with estimated(progress):
        return _run(prog, arrays, machine, order, checks, strict_bounds, record, output, on_breakpoint)


@without_frames
def run_on_new_arrays(program: Program, *arrays: Any, unwritten: dict[str, np.ndarray]) -> None:
    """Run a Program some of whose arrays are new: reading an element that nothing has written is an error.

    ``unwritten`` says of such arguments which elements have no value yet; what the Program writes leaves it.
    """
    _run(
        program,
        arrays,
        program.machine,
        schedule_of("round-robin", 0),
        True,
        False,
        False,
        None,
        None,
        unwritten,
    )


def _run(
    prog: ProgramFunction | Program, arrays: tuple[Any, ...], machine: str | HDA, schedule: Schedule,
    checks: bool, strict_bounds: bool, record: bool, output: Any, on_breakpoint: Any,
    unwritten: dict[str, np.ndarray] | None = None,
) -> RunResult:  # fmt: skip
    views = arrays_of(prog, arrays)
    program = built(prog, views, machine)
    check_arguments(program, views)
    check_algorithms(program)
    printed: list[str] = []

    def say(text: str) -> None:
        printed.append(text)
        if hasattr(output, "write"):
            output.write(f"{text}\n")
        else:
            (output or print)(text)

    interpreter = Interpreter(program, schedule, checks, say, on_breakpoint)
    interpreter.strict_bounds = strict_bounds
    if record:
        interpreter.recorder = Recorder(interpreter)
    check_writable(program, views, interpreter.sharing.constant)
    warn_of_aliases(program, views, interpreter.sharing.constant)
    given = [p.name for p, a in zip(program.params, arrays, strict=True) if isinstance(a, InputArray)]
    _check_inputs(interpreter, [name for name in given if name not in interpreter.sharing.constant])
    results = _results(program) if checks else {}
    new = {p.name: np.ones(tuple(map(int, p.shape)), bool) for p in program.params if p.name in results} | (
        unwritten or {}
    )
    tensors = {}
    for param, array in zip(program.params, views, strict=True):
        copies = interpreter.places.names[param.name].copies
        storage = StoredArray.tensor(param.name, array, param.dtype, copies)
        if param.name in new:
            storage.written = np.repeat(~new[param.name][None], copies, axis=0)
        tensors[param.name] = interpreter.places.frame[param.name, ()] = storage
        if interpreter.recorder is not None:
            interpreter.recorder.tiles[param.name, ()] = storage
    interpreter.run()
    for param, array in zip(program.params, views, strict=True):
        if param.name not in interpreter.sharing.constant:
            array[...] = _result(interpreter, param, tensors[param.name])
        written = tensors[param.name].written
        if param.name in new:
            new[param.name] &= False if written is None else ~written.any(0)
            if param.name in results and written is not None and not written.any():
                interpreter.note(
                    f"'{param.name}' is as it was before: no statement that writes it has run",
                    "look at the conditions and loops around those statements, and at what they count with",
                    results[param.name],
                )
    return RunResult(program, interpreter.steps, printed, interpreter.recorder)


def _results(program: Program) -> dict[str, n.Node]:
    """Return the arguments that are only written, each with a statement that writes it; single elements are
    left out, as they may say that something has happened."""
    table, sizes = bindings(program), {p.name: math.prod(map(int, p.shape)) for p in program.params}
    found: dict[str, n.Node] = {}
    others = {node.source for node in n.walk(program.body) if isinstance(node, n.Reshape)}
    for node in n.walk(program.body):
        for kind, region in n.regions(node):
            if kind != "write":
                others.add(region.source)
            elif region.source in table:
                found[table[region.source].base] = node
    read = {table[name].base for name in others if name in table}
    return {name: node for name, node in found.items() if sizes.get(name, 0) > 1 and name not in read}


def _check_inputs(interpreter: Interpreter, written: list[str]) -> None:
    for node in n.walk(interpreter.program.body) if written else ():
        for kind, region in n.regions(node):
            name = interpreter.sharing.base(region.source)
            if kind != "read" and name in written:
                raise ArgumentError(
                    f"'{name}' is given as T.Input, and this statement writes it",
                    place=node.place,
                    advice="T.copy takes the destination first; give an array to be written without T.Input",
                )


def _result(interpreter: Interpreter, param: Param, storage: StoredArray) -> np.ndarray:
    """Return the tensor at the end: copies must agree, partial terms must have been reduced."""
    name = interpreter.places.names[param.name]
    if storage.scattered is not None or name.valid is not None:
        try:
            return assembled(storage, name, range(storage.copies))
        except MegatileError as error:
            error.place = error.place or _view_place(interpreter.program, param.name)
            raise
    if not interpreter.checks or storage.copies == 1:
        return storage.array[0]
    if storage.partial:
        advice = "reduce it: T.allreduce or T.reduce_scatter on its view, after the last write"
        if storage.reduced:
            advice = (
                "its sum went into another tile: keep the terms in a tile (T.alloc), or reduce them in "
                f"place, T.reduce_scatter(view of {param.name})"
            )
        raise PartialError(
            f"'{param.name}' still holds partial terms at the end",
            place=_view_place(interpreter.program, param.name),
            advice=advice,
        )
    differing = [c for c in range(1, storage.copies) if not same(storage.array[0], storage.array[c])]
    if differing:
        raise _disagreement(interpreter, param, storage, differing)
    return storage.array[0]


def _disagreement(
    interpreter: Interpreter, param: Param, storage: StoredArray, differing: list[int]
) -> MegatileError:
    name = interpreter.places.names[param.name]
    first = storage.array[0]
    other = storage.array[differing[0]]
    where = tuple(int(i) for i in np.argwhere(~((first == other) | ((first != first) & (other != other))))[0])
    shown = ", ".join(map(str, differing[:8]))
    return ReplicaMismatchError(
        f"the copies of '{param.name}' differ at the end: {name.copy_scale} {shown} from "
        f"{name.copy_scale} 0, "
        f"first at {where}: {other[where]} and {first[where]}",
        place=_view_place(interpreter.program, param.name),
        advice=f'a reduction is missing: T.allreduce on the view inside T.Scale("{name.copy_scale}")',
    )


def _view_place(program: Program, name: str) -> Any:
    views = (node for node in n.walk(program.body) if isinstance(node, n.View) and node.source == name)
    return next((view.place for view in views if view.span), None)


def check_algorithms(program: Program) -> None:
    """The result does not depend on the algorithm; a name nothing could lower is refused all the same."""
    for node in n.walk(program.body):
        name = node.algorithm if isinstance(node, n.Collective) else None
        if not isinstance(node, n.Collective) or name is None or name in n.WITHOUT_LIBRARY:
            continue
        wanted = n.PLANNER_NAMES[node.kind]
        fitting = sorted(k for k, a in algorithms().items() if wanted in a.operations)
        if ":" not in name and name not in algorithms():
            raise RunError(
                f"{word_of(node)}: there is no algorithm '{name}'", place=node.place,
                advice=did_you_mean(name, fitting, what="algorithms"),
            )  # fmt: skip
        if wanted not in find_algorithm(name).operations:
            raise RunError(
                f"{word_of(node)}: the algorithm '{name}' does another collective", place=node.place,
                advice=f"one of {', '.join(fitting)}",
            )  # fmt: skip
