"""What each statement does: one function per kind, in one table. Those that may wait are generators."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import numpy as np

from megatile.core.expr import Expr
from megatile.core.forkjoin import rendezvous
from megatile.core.operations import OPERATIONS, apply as apply_operation, cast
from megatile.ir import nodes as n
from megatile.targets.interpret.collectives import check_order, check_same, perform
from megatile.targets.interpret.elementwise import ATOMICS, Iterations, filled
from megatile.targets.interpret.errors import DeviceAssertionError, RunError, StaleSignalError
from megatile.targets.interpret.record import UnitView
from megatile.targets.interpret.storage import Flags, StoredArray
from megatile.targets.interpret.units import Unit, describe

if TYPE_CHECKING:
    from megatile.targets.interpret.machine import Interpreter
    from megatile.targets.interpret.resolve import Target

Task = Generator[Any, None, None]
Handler = Callable[["Interpreter", Any, Unit], "Task | None"]
HANDLERS: dict[type[n.Node], Handler] = {}
WAIT = object()
"""Yielded by a unit that somebody else will wake."""
TURN = object()
"""Yielded by a unit in a ``while``: it may wait for what another unit does, so let others go first."""


class LeaveBody(Exception):
    """A Break, Continue or Return: statements that follow are passed over."""

    def __init__(self, node: n.Node):
        self.node = node


_WORDS: dict[type[n.Node], str] = {n.Copy: "T.copy", n.AtomicRegion: "an atomic of regions"}
rule = n.registrar(HANDLERS)


# --- control --------------------------------------------------------------------------------------


rule(n.ScaleRegion)(lambda machine, node, unit: machine.region(node, unit))


@rule(n.Loop)
def _loop(machine: Interpreter, node: n.Loop, unit: Unit) -> Task:
    start, stop, step = (int(machine.value(e, unit)) for e in (node.start, node.stop, node.step))
    if step == 0:
        raise RunError("a loop with step 0 never ends", advice="give a step of at least 1")
    leaving = 1 if node.kind == "bounded" else 0  # a turn whose condition has to end the loop
    for index in range(start, stop + leaving, step):
        unit.node = node
        machine.check_time()
        _set(machine, unit, node.var, index)
        try:
            yield from machine.body(node.body, unit)
        except LeaveBody as jump:
            if isinstance(jump.node, n.Break):
                return
            if isinstance(jump.node, n.Return):
                raise
        if node.kind == "bounded":
            yield TURN
    if node.kind == "bounded":
        raise RunError(
            f"a 'while' has not ended after {stop} turns",
            advice="it may wait for something that never comes; T.bounded(condition, n) allows more turns",
        )


@rule(n.Break, n.Continue, n.Return)
def _leave(machine: Interpreter, node: n.Node, unit: Unit) -> None:
    raise LeaveBody(node)


@rule(n.If)
def _if(machine: Interpreter, node: n.If, unit: Unit) -> Task:
    yield from machine.body(node.body if machine.value(node.condition, unit) else node.orelse, unit)


@rule(n.Parallel)
def _parallel(machine: Interpreter, node: n.Parallel, unit: Unit) -> None:
    with machine.elementwise.places_of(unit):
        machine.elementwise.run(node, unit)


# --- memory ---------------------------------------------------------------------------------------


@rule(n.Alloc)
def _alloc(machine: Interpreter, node: n.Alloc, unit: Unit) -> None:
    """The tile is new: nothing in it may be read. Tiles that others write into exist from the start."""
    machine.places.renew(machine.places.names[node.name], unit, keep=node.name in machine.sharing.remote)


@rule(n.View, n.Reshape, n.Hint)
def _nothing(machine: Interpreter, node: n.Node, unit: Unit) -> None:
    """Views are resolved where they are used; data never depends on a hint."""


@rule(n.Let)
def _let(machine: Interpreter, node: n.Let, unit: Unit) -> None:
    value = machine.value(node.value, unit)
    if isinstance(value, np.ndarray):  # a copy: not a window on the tile it was read from
        value = value.item() if value.dtype.kind in "iub" else value.copy()
    _set(machine, unit, node.name, value)


def _set(machine: Interpreter, unit: Unit, name: str, value: Any) -> None:
    unit.vars[name] = value
    if machine.recorder is not None:
        machine.recorder.note_scalar(name, unit, value)


@rule(n.ReadScalar)
def _read_scalar(machine: Interpreter, node: n.ReadScalar, unit: Unit) -> None:
    value = int(machine.value(node.value, unit))
    if value < 0 or (node.bound is not None and value > node.bound):
        raise RunError(
            f"T.read_scalar gives {value}, outside 0..{node.bound}", advice="raise bound=, or check the data"
        )
    _set(machine, unit, node.name, value)


@rule(n.Fill)
def _fill(machine: Interpreter, node: n.Fill, unit: Unit) -> None:
    target = machine.access.resolve(node.to, unit)
    machine.access.write(target, np.asarray(machine.value(node.value, unit)), unit)


@rule(n.Store)
def _store(machine: Interpreter, node: n.Store, unit: Unit) -> None:
    value = np.asarray(machine.value(node.value, unit))
    target = machine.access.resolve(_element(machine, node, node.target, node.index), unit)
    machine.access.write(target, value.reshape(()), unit)


@rule(n.Atomic)
def _atomic(machine: Interpreter, node: n.Atomic, unit: Unit) -> None:
    peer = _peer(machine, node, node.dst, unit, node.target)
    machine.elementwise.atomic(node, Iterations(unit, (), (), unit.vars), peer)


@rule(n.AtomicRegion)
def _atomic_region(machine: Interpreter, node: n.AtomicRegion, unit: Unit) -> None:
    access = machine.access
    peer = _peer(machine, node, node.dst, unit, node.to.source)
    source, target = access.resolve(node.source, unit), access.resolve(node.to, unit, peer)
    _check_extents(node, target, source)
    data = cast(np.array(access.read(source, unit)).reshape(target.shape), target.storage.dtype)
    access.combine(target, ATOMICS[node.op], data, unit, peer)


def _peer(machine: Interpreter, node: Any, rank: Expr | None, unit: Unit, name: str) -> Any:
    """Return the unit whose tile ``name`` a statement means by a rank among those of its scale; None: its
    own."""
    if rank is None:
        return None
    among = unit.around(machine.launch, node.scale)
    peer = among.group.peer(among, int(machine.value(rank, unit)), node.axis, name)
    return unit.counterpart(peer, machine.places.names[name].depth)


def _element(machine: Interpreter, key: Any, name: str, index: tuple[Any, ...]) -> n.Region:
    region = machine.elements.get(id(key))
    if region is None:
        region = machine.elements[id(key)] = n.Region(name, tuple(n.Dim(i) for i in index))
        machine.keep.append(key)
    return region


# --- data movement and arithmetic -----------------------------------------------------------------


@rule(n.Copy)
def _copy(machine: Interpreter, node: n.Copy, unit: Unit) -> None:
    access = machine.access
    if node.dst is not None:
        _put(machine, node, unit)
        return
    home = _peer(machine, node, node.src, unit, node.source.source)
    source = access.resolve(node.source, unit, home)
    target = access.resolve(node.to, unit)
    _check_extents(node, target, source)
    access.write(target, access.read(source, unit).reshape(target.shape), unit)


def _check_extents(node: n.Copy | n.AtomicRegion, target: Target, source: Target) -> None:
    left = [e for e in target.shape if e != 1]
    right = [e for e in source.shape if e != 1]
    if left != right:
        raise RunError(
            f"{_WORDS[type(node)]}: '{node.to.source}' {target.shape} and '{node.source.source}' "
            f"{source.shape} have different shapes",
            advice="uneven shards differ between units: copy x.shape[d] elements",
        )


def _put(machine: Interpreter, node: n.Copy, unit: Unit) -> None:
    """The source is read now; the destination changes when the put arrives."""
    access = machine.access
    peer = _peer(machine, node, node.dst, unit, node.to.source)
    assert peer is not None
    source = access.resolve(node.source, unit)
    target = access.resolve(node.to, unit, peer)
    _check_extents(node, target, source)
    data = np.array(access.read(source, unit)).reshape(target.shape)
    channel = unit.puts_to(peer)
    if machine.checks and not target.is_empty:
        access.order(target, 1, unit, channel)

    def arrive() -> None:
        checks, machine.checks = machine.checks, False
        previous, unit.node = unit.node, node
        try:
            access.write(target, data, unit)
        finally:
            machine.checks, unit.node = checks, previous

    machine.post(unit, peer, arrive)


@rule(n.Gemm)
def _gemm(machine: Interpreter, node: n.Gemm, unit: Unit) -> None:
    access = machine.access
    a = _matrix(access.read(access.resolve(node.a, unit), unit))
    b = _matrix(access.read(access.resolve(node.b, unit), unit))
    target = access.resolve(node.c, unit)
    _check_product(node, a, b, target)
    old = [] if node.clear else [_matrix(access.read(target, unit))]
    result = apply_operation(
        "gemm", [a, b, *old], target.storage.dtype, transpose_a=node.transpose_a, transpose_b=node.transpose_b
    )
    access.write(target, result.reshape(target.shape), unit)


def _check_product(node: n.Gemm, a: np.ndarray, b: np.ndarray, target: Target) -> None:
    """Extents known only at run time (uneven shards, numbers read from data) must fit as well."""
    rows, inner = a.shape[::-1] if node.transpose_a else a.shape
    inner_b, columns = b.shape[::-1] if node.transpose_b else b.shape
    if inner != inner_b or (rows, columns) != target.shape[-2:]:
        raise RunError(
            f"T.gemm: shapes {a.shape} and {b.shape} do not give {target.shape}",
            advice="the shares of units may differ: check the layouts of the views",
        )


def _matrix(array: np.ndarray) -> np.ndarray:
    return array.reshape(array.shape[-2:]) if array.ndim > 2 else array


@rule(n.Reduce)
def _reduce(machine: Interpreter, node: n.Reduce, unit: Unit) -> None:
    access = machine.access
    data = access.read(access.resolve(node.source, unit), unit)
    target = access.resolve(node.to, unit)
    name, old = (node.op, []) if node.clear else (f"{node.op}_onto", [access.read(target, unit)])
    access.write(target, OPERATIONS[name].meaning(data, *old, axis=node.dim).reshape(target.shape), unit)


@rule(n.Cumsum)
def _cumsum(machine: Interpreter, node: n.Cumsum, unit: Unit) -> None:
    access = machine.access
    data = access.read(access.resolve(node.source, unit), unit)
    result = OPERATIONS["cumsum"].meaning(data, axis=node.dim, reverse=node.reverse)
    access.write(access.resolve(node.to, unit), result, unit)


# --- synchronisation ------------------------------------------------------------------------------


@rule(n.Barrier)
def _barrier(machine: Interpreter, node: n.Barrier, unit: Unit) -> Task:
    group, inside = unit.among(machine.launch, node.scale)
    unit.waiting = ("barrier", node, "")
    key = ("barrier", inside, node.name, None if node.group is None else int(machine.value(node.group, unit)))
    meeting = group.arrive(unit, node, node.axis, key, node.units)
    if meeting is None:
        yield WAIT
        return
    units = meeting.units()
    for one in units:
        machine.deliver_from(one)
    rendezvous(units, [channel for one in units for channel in one.puts.values()])
    _go_on(machine, unit, units)
    yield None


def _go_on(machine: Interpreter, unit: Unit, units: list[Unit]) -> None:
    """All have met; ``unit`` came last."""
    for one in units:
        if one is not unit:
            machine.wake(one)
    unit.waiting = None


@rule(n.Fence)
def _fence(machine: Interpreter, node: n.Fence, unit: Unit) -> None:
    depth = 0 if node.scale is None else machine.launch.depth(node.scale)
    machine.deliver_from(unit, depth)
    unit.acquire(unit.release(c for c in unit.puts.values() if c.depth >= depth))


@rule(n.Collective)
def _collective(machine: Interpreter, node: n.Collective, unit: Unit) -> Task:
    group, inside = unit.among(machine.launch, node.scale)
    unit.waiting = ("collective", node, "")
    meeting = group.arrive(unit, node, node.axis, ("collective", inside))
    check_same(machine, node, meeting or group.meeting(unit, node.axis, ("collective", inside)), unit)
    if meeting is None:
        yield WAIT
        return
    check_order(machine, meeting)
    units = meeting.units()
    perform(machine, [meeting.nodes[r] for r in meeting.ranks], units)
    _go_on(machine, unit, units)
    yield None


def _flags(
    machine: Interpreter, name: str, index: tuple[Any, ...], unit: Unit, home: Unit
) -> tuple[StoredArray, Any]:
    found = machine.places.names[name]
    storage = machine.places.storage(found, home)
    shares = machine.places.share(found, home)
    at = tuple(int(machine.value(i, unit)) for i in index)
    for d, (i, extent) in enumerate(zip(at, storage.shape, strict=True)):
        if not 0 <= i < extent:
            raise RunError(
                f"flag {i} does not exist: '{name}' has {extent} in dimension {d}",
                advice="allocate as many flags as are used",
            )
    if shares is not None:
        at = tuple(int(s[0] + i if isinstance(s, tuple) else s[i]) for s, i in zip(shares, at, strict=True))
    return storage, (machine.places.copies(found, home)[0], *at)


@rule(n.Signal)
def _signal(machine: Interpreter, node: n.Signal, unit: Unit) -> None:
    among = unit.around(machine.launch, node.scale)
    peer: Unit | None = unit
    if node.dst is not None:
        peer = among.group.find(among, int(machine.value(node.dst, unit)), node.axis)
    if peer is None:  # it has finished, and will never ask
        return
    home = unit.counterpart(peer, machine.places.names[node.flag].depth)
    storage, at = _flags(machine, node.flag, node.index, unit, home)
    amount = int(machine.value(node.amount, unit))
    channels = [unit.puts[peer.number]] if peer.number in unit.puts else []
    flags = storage.flags.setdefault(at, Flags())
    flags.sent.setdefault(unit.number, []).append((amount, unit.release(channels)))

    def arrive() -> None:
        flags.count += amount
        storage.array[at] += amount
        for waiting in machine.waiters.pop((id(storage), at), []):
            machine.wake(waiting)

    if node.dst is None:
        arrive()
    else:
        machine.post(unit, peer, arrive)


@rule(n.Wait)
def _wait(machine: Interpreter, node: n.Wait, unit: Unit) -> Task:
    storage, at = _flags(machine, node.flag, node.index, unit, unit)
    value = int(machine.value(node.value, unit))
    unit.exchange(machine.places.names[node.flag].owner_depth)
    while True:
        flags = storage.flags.get(at)
        seen = flags.count if flags else 0
        before = int(storage.array[at]) - seen
        if node.phase is not None and (before + seen) // node.phase % 2 != value % 2:
            value = (before + seen) // node.phase * node.phase
            break
        if node.phase is None and 0 < value <= before:
            raise StaleSignalError(
                f"T.wait on '{node.flag}' for {value} is met by signals of an earlier launch: it began at "
                f"{before}",
                advice="clear the flags before the launch, or wait for a value that counts on",
            )
        if node.phase is None and before + seen >= value:
            break
        now = "" if node.phase is not None else f" until '{node.flag}' is {value}, and it is {before + seen}"
        unit.waiting = ("wait", node, now)
        machine.waiters.setdefault((id(storage), at), []).append(unit)
        yield WAIT
    for clock in flags.certain(value - before) if flags else ():
        unit.acquire(clock)
    yield None


# --- looking --------------------------------------------------------------------------------------


@rule(n.Print)
def _print(machine: Interpreter, node: n.Print, unit: Unit) -> None:
    if node.unit is not None and unit.group.rank(unit) != int(machine.value(node.unit, unit)):
        return
    values = [
        machine.access.read(machine.access.resolve(value, unit), unit)
        if isinstance(value, n.Region)
        else np.asarray(machine.value(value, unit))
        for value in node.values
    ]
    machine.say(unit, filled(node.text, [str(value) for value in values]))


@rule(n.Check)
def _assert(machine: Interpreter, node: n.Check, unit: Unit) -> None:
    if not bool(machine.value(node.condition, unit)):
        text = f": {node.text}" if node.text else ""
        raise DeviceAssertionError(
            f"assertion failed{text} (on {describe(unit, machine.launch)})",
            advice="look at the values there: T.print, T.breakpoint, or mt.run(..., record=True)",
        )


@rule(n.Breakpoint)
def _breakpoint(machine: Interpreter, node: n.Breakpoint, unit: Unit) -> None:
    if node.unit is not None and unit.group.rank(unit) != int(machine.value(node.unit, unit)):
        return
    scalars = {name: machine.value(v, unit) for name, v in zip(node.names, node.values, strict=True)}
    if machine.on_breakpoint is not None:
        machine.on_breakpoint(UnitView(machine, unit, scalars))
        return
    line = f" at line {node.span.line}" if node.span is not None else ""
    shown = ", ".join(f"{name} = {value}" for name, value in scalars.items())
    machine.say(unit, f"breakpoint{line}: {shown}")
