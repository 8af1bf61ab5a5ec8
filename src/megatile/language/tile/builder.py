"""The state of building one Program: open regions, names, and the statements read so far."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from megatile.core.errors import MegatileError, Place
from megatile.core.expr import Expr, Symbol, walk
from megatile.core.frames import caller
from megatile.cost.implementations import CANDIDATES, Request, check_implementation, prices
from megatile.hda import Instance
from megatile.ir import nodes as n
from megatile.ir.expr import Coord, Rank
from megatile.ir.launch import ROOT, Launch
from megatile.ir.nodes import Node, Span
from megatile.language.tile.errors import ProgramError
from megatile.language.tile.inference import elementwise
from megatile.language.tile.launch import launch_of
from megatile.language.tile.nest import Nest
from megatile.language.tile.tiles import ACTIVE, Tile


def current() -> ProgramBuilder:
    """Return the Program being built; the functions of ``T`` speak to it."""
    builder = ACTIVE.get()
    instance = Instance.current() if builder is None else None
    if instance is not None and instance.recording() is not None:
        builder = ACTIVE.get()
    if builder is not None and builder.argument is not None:
        builder.place = caller()
    if builder is None:
        raise ProgramError(
            "a tile operation outside a kernel",
            place=caller(),
            advice="call it inside a function under @T.program, run by mt.run",
        )
    return builder


@dataclass
class OpenScale:
    """A region being read."""

    scale: str
    number: int
    implied: bool = False
    body_depth: int = 0


@dataclass
class Body:
    """A list of statements being read, and the variables that end with it."""

    nodes: list[Node] = field(default_factory=list)
    variables: set[str] = field(default_factory=set)


class LargerScale(BaseException):
    """A region larger than the implied one stands inside a loop or branch: read that at the top instead."""


class NoLaunchError(ProgramError):
    """A statement that no launch surrounds."""


class ProgramBuilder:
    """Collects statements. ``machine`` is the HDA the Program is built for."""

    def __init__(self, machine: Any, name: str):
        self.machine = machine
        self.name = name
        self.launch: Launch | None = None
        self.instance: Any = None
        self.nest = Nest(machine)
        """Scales with extents, where these describe the launch."""
        self.reader: Any = None
        self.place: Place | None = None
        self.bodies: list[Body] = [Body()]
        self.scales: list[OpenScale] = []
        self.parallel: list[str] = []
        self.names: set[str] = set()
        self.tiles: dict[str, Tile] = {}
        self.homes: dict[str, int] = {}
        self.placements: dict[tuple[str, str], Any] = {}
        self.inferred: dict[tuple[str, str], Any] = {}
        """Layouts of views that were read without one, from their uses."""
        self.open: dict[tuple[str, str], Place | None] = {}
        self.asked: set[tuple[str, str]] = set()
        """Views without a layout so far, and those of them whose shape the kernel has asked for."""
        self.symbols: list[str] = []
        self.symmetric: list[Any] = []
        """Arguments with one copy per device."""
        self.begun: Callable[[ProgramBuilder], None] | None = None
        """What is done when the launch is known."""
        self.argument: Callable[[Any], Tile] | None = None
        """Of a bare ``with instance:``, whose statements Python runs: the argument of a ``T.Tensor``."""
        self.bound: dict[str, int] = {}
        self.regions = 0
        self.left = ""
        """Why some units have left the kernel early."""
        self.padded = self.spills = False
        self.expanding: list[str] = []
        """Implementations whose bodies are being read."""

    # --- where we are -----------------------------------------------------------------------------

    @property
    def scale(self) -> str:
        return self.scales[-1].scale if self.scales else ROOT

    @property
    def enclosing(self) -> str:
        """The scale of the unit around the current region."""
        return self.scales[-2].scale if len(self.scales) > 1 else ROOT

    @property
    def plan(self) -> Launch:
        instance = Instance.current() if self.launch is None else None
        if instance is not None:  # ``with instance:`` (made by ``HDA.instantiate``) around the statements
            self.begin(instance)
        if self.launch is None:
            raise NoLaunchError(
                "a tile operation outside the launch", advice="put it under 'with T.Kernel(...):'"
            )
        return self.launch

    @property
    def launched(self) -> bool:
        """Whether a ``T.Kernel`` or an instance around the statements gives the launch."""
        return self.launch is not None or Instance.current() is not None

    def begin(self, instance: Instance) -> None:
        """Set the launch, which is known from here on."""
        self.instance, self.machine, self.launch = instance, instance.hda, launch_of(instance)
        if self.begun is not None:
            self.begun(self)

    def depth(self, scale: str) -> int:
        return self.plan.depth(scale)

    def span(self) -> Span | None:
        place = self.place
        if place is None or place.file is None or place.line is None:
            return None
        return Span(place.file, place.line, place.column or 1)

    @contextmanager
    def active(self) -> Iterator[None]:
        token = ACTIVE.set(self)
        try:
            yield
        finally:
            ACTIVE.reset(token)

    # --- names ------------------------------------------------------------------------------------

    def fresh(self, wanted: str) -> str:
        """Return a name not used yet, as near as possible to the wanted one."""
        name, number = wanted, 1
        while name in self.names or not name.isidentifier():
            number += 1
            name = f"{wanted}_{number}" if wanted.isidentifier() else f"v{number}"
        self.names.add(name)
        return name

    def variable(self, wanted: str) -> str:
        """Return a fresh scalar variable that ends with the current body."""
        name = self.fresh(wanted)
        self.bodies[-1].variables.add(name)
        return name

    def rename(self, tile: Tile, wanted: str) -> None:
        """Give a tile just made (perhaps with others: ``a, b = …``) the name of its variable."""
        nodes = self.bodies[-1].nodes
        for at in reversed(range(len(nodes))):
            made = nodes[at]
            if not isinstance(made, (n.Alloc, n.View)) or getattr(made, "source", "") == tile.name:
                return
            if made.name == tile.name:
                break
        else:
            return
        self.names.discard(tile.name)
        name = self.fresh(wanted)
        nodes[at] = replace(made, name=name)
        del self.tiles[tile.name]
        if tile.name in self.homes:
            self.homes[name] = self.homes.pop(tile.name)
        tile.name = name
        self.tiles[name] = tile

    # --- statements -------------------------------------------------------------------------------

    def emit(self, kind: type[Node], /, **fields: Any) -> Node:
        """Add a statement; tile operations outside any scale open the dispatched one."""
        if fields.get("impl") is not None:
            check_implementation(kind.__name__, fields["impl"])
        node = kind(**fields, span=self.span())
        self.open_implied()
        if self.parallel and kind not in _ELEMENTWISE:
            raise ProgramError(
                f"{kind.__name__.lower()} inside T.Parallel",
                advice="T.Parallel takes elementwise code only",
            )
        self.check(node)
        self.bodies[-1].nodes.append(node)
        return node

    def expand(self, request: Request, forced: str | None, *operands: Any, **options: Any) -> bool:
        """Read the body of an implementation written in ``T`` in place of a statement: of the one that is
        forced, or of the cheapest. While a body is read, its own statements do not become it again."""
        ways = CANDIDATES[request.primitive]
        if forced is None:
            within = {n: way for n, way in ways.items() if way.body is not None and n not in self.expanding}
            found = prices(request) if within else {}
            forced = next((name for name in found if name not in self.expanding), None)
        way = ways.get(forced or "")
        if way is None or way.body is None:
            return False
        if way.name in self.expanding:
            raise ProgramError(
                f"implementation '{way.name}' of {request.primitive.lower()} is made of itself",
                advice="use another one inside it: impl=",
            )
        taken = inspect.signature(way.body).parameters
        given = {word: value for word, value in options.items() if word in taken}
        self.expanding.append(way.name)
        self.reader.call(self.place, way.body, *operands, **given)
        self.expanding.remove(way.name)
        return True

    def store(self, kind: type[Node], /, **fields: Any) -> None:
        self.check_visible(self.tiles[fields["target"]])
        elementwise(self, fields["target"], fields["index"], fields["value"])
        self.emit(kind, **fields)

    def check(self, node: Node) -> None:
        """Check that every value and tile the statement uses is known at this scale."""
        for expr in n.expressions(node):
            self.check_expr(expr)
        for _, region in n.regions(node):
            if region.source in self.tiles:
                self.check_visible(self.tiles[region.source])

    def check_expr(self, expr: Expr) -> None:
        for node in self._unknown(expr):
            if isinstance(node, Symbol):
                raise ProgramError(
                    f"'{node.name}' changes in a loop or branch and is used after it",
                    advice="use it inside, or keep it in a tile",
                )
            raise ProgramError(
                f"a rank or coordinate of scale '{node.scale}' is used at scale '{self.scale}'",
                advice=f'use it inside with T.Scale("{node.scale}")',
            )

    def is_known(self, expr: Expr, more: Collection[str] = (), ranks: bool = True) -> bool:
        """Return whether a value means something here: its variables (or ``more``) live, its ranks are of
        this scale."""
        unknown = (node for node in self._unknown(expr) if ranks or isinstance(node, Symbol))
        return all(isinstance(node, Symbol) and node.name in more for node in unknown)

    def _unknown(self, expr: Expr) -> Iterator[Symbol | Coord | Rank]:
        """Yield variables that are out of scope, ranks and coordinates of smaller scales."""
        for node in walk(expr):
            if isinstance(node, (Coord, Rank)) and self.depth(node.scale) > self.depth(self.scale):
                yield node
            if isinstance(node, Symbol) and node.name not in self.symbols and not self.in_scope(node.name):
                yield node

    def leave_kernel(self, what: str) -> None:
        """End a unit here: allowed where no larger unit goes on after it."""
        if len(self.scales) > 1:
            raise ProgramError(
                f"{what}, inside T.Scale(\"{self.scale}\"): the '{self.enclosing}' around it would go on",
                advice="put what follows in the region under 'if'",
            )
        self.left = what

    def in_scope(self, name: str) -> bool:
        return any(name in body.variables for body in self.bodies)

    def check_visible(self, tile: Tile) -> None:
        if self.depth(tile.scale) > self.depth(self.scale) and self.scales:
            what = "view" if tile.is_view else "tile"
            advice = f'use it inside with T.Scale("{tile.scale}")'
            if tile.is_view:
                advice = f"use '{tile.storage.name}' here, or {advice}"
            raise ProgramError(
                f"'{tile.name}' is a {what} of scale '{tile.scale}', used at scale '{self.scale}'",
                advice=advice,
            )
        home = self.homes.get(tile.storage.name)
        if home is not None and all(s.number != home for s in self.scales):
            raise ProgramError(
                f"'{tile.name}' lived in a {self.plan.dispatch} that has finished",
                advice="keep both uses in one region, or allocate it at a larger scale or pass through a "
                "tensor",
            )

    # --- bodies and regions -----------------------------------------------------------------------

    @contextmanager
    def body(self, *variables: str) -> Iterator[Body]:
        """Statements read inside go to a new list."""
        opened = Body(variables=set(variables))
        self.bodies.append(opened)
        yield opened  # after an error the builder is thrown away, or restored from a snapshot
        self.close_implied()
        self.bodies.pop()

    @contextmanager
    def inside(self, kind: type[Node], /, *variables: str, **fields: Any) -> Iterator[None]:
        """Statements read inside become the body of a statement, which has variables of its own."""
        span = self.span()
        with self.body(*variables) as body:
            yield
        self.append(kind(**fields, body=tuple(body.nodes), span=span))  # type: ignore[call-arg]

    def append(self, node: Node) -> None:
        self.check(node)
        self.bodies[-1].nodes.append(node)

    def enter_scale(self, scale: str, implied: bool = False) -> OpenScale:
        if self.left and not self.scales:
            raise ProgramError(
                f"a region follows one that units left: {self.left}",
                advice="put the rest of the first region under 'if' instead of leaving it",
            )
        self.regions += 1
        self.bodies.append(Body())
        opened = OpenScale(scale, self.regions, implied, len(self.bodies))
        self.scales.append(opened)
        return opened

    def leave_scale(self, span: Span | None) -> None:
        opened = self.scales.pop()
        body = tuple(self.bodies.pop().nodes)
        self.bodies[-1].nodes.append(n.ScaleRegion(opened.scale, body, span=span))

    def open_implied(self) -> None:
        """Statements of a kernel outside every T.Scale run at the dispatched scale."""
        if not self.scales:
            self.enter_scale(self.plan.dispatch, implied=True)

    def close_implied(self) -> None:
        if self.scales and self.scales[-1].implied and self.scales[-1].body_depth == len(self.bodies):
            self.leave_scale(self.bodies[-1].nodes[0].span if self.bodies[-1].nodes else self.span())

    def snapshot(self) -> dict[str, Any]:
        """Return the state to return to if what follows must be read again."""
        bodies = [(b, list(b.nodes), set(b.variables)) for b in self.bodies]
        rest = {name: getattr(self, name).copy() for name in _RESTORED}
        return {"bodies": bodies, "regions": self.regions, "left": self.left, **rest}

    def restore(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)
        for body, nodes, variables in state["bodies"]:  # others hold on to the same bodies
            body.nodes, body.variables = list(nodes), set(variables)
        self.bodies = [body for body, _, _ in state["bodies"]]


_RESTORED = ("scales", "parallel", "names", "tiles", "homes", "placements", "open", "asked", "symbols")
_ELEMENTWISE = {n.Store, n.Atomic, n.Let, n.If, n.Loop, n.Check, n.Print}


def located(error: MegatileError, place: Place | None) -> MegatileError:
    """Return the error with a place, if it has none."""
    if error.place is None and place is not None:
        error.place = place
        error.args = (error.message, place, error.advice)
    return error
