"""The operations of a Program, declared once: typed frozen fields, their reads and writes, their source span.

A field is a *read*, a *write* or an *update* (both) when its metadata says so; verifier, hazard
analysis, printer and parser all follow from these declarations.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from megatile.core.cached import cached_in_owner
from megatile.core.errors import Place
from megatile.core.expr import Const, Expr
from megatile.core.placement import Layout
from megatile.ir.expr import Load, loads


@dataclass(frozen=True)
class Span:
    """Where in the user's source a statement stands (line and column counted from 1)."""

    file: str
    line: int
    column: int = 1

    @cached_in_owner
    def place(self) -> Place:
        return Place(
            self.file, self.line, self.column, snippet=linecache.getline(self.file, self.line) or None
        )


@dataclass(frozen=True)
class Dim:
    """One dimension of a region: ``extent`` elements from ``start``, or one index if ``extent`` is None.

    Anchored dimensions may reach over the edge: reads give zero there, writes are dropped. The edge is
    that of the named tile, or ``limits``, the first element and the one after the last.
    """

    start: Expr
    extent: Expr | None = None
    anchored: bool = False
    limits: tuple[Expr, Expr] | None = None


@dataclass(frozen=True)
class Region:
    """A box of a tensor, tile or view. ``along`` names a view whose origin is added to the anchors."""

    source: str
    dims: tuple[Dim, ...]
    along: str | None = None

    @property
    def extents(self) -> tuple[Expr, ...]:
        return tuple(d.extent for d in self.dims if d.extent is not None)

    def expressions(self) -> Iterator[Expr]:
        for dim in self.dims:
            yield dim.start
            if dim.extent is not None:
                yield dim.extent
            yield from dim.limits or ()


def accessed(how: str) -> Any:
    return field(metadata={"access": how})


@dataclass(frozen=True, kw_only=True)
class Node:
    """A statement. Spans do not take part in comparison: text carries none."""

    span: Span | None = field(default=None, compare=False, repr=False)
    choice: Any = field(default=None, compare=False, repr=False)
    """What was chosen to do it, and why; a comment in the text."""

    @property
    def place(self) -> Place | None:
        """Where it stands, for errors."""
        return self.span.place() if self.span else None


@dataclass(frozen=True)
class Alloc(Node):
    """One tile per unit of ``scale`` in memory layer ``level``; flags start at zero.

    ``parts``, of a Program without views: how units of smaller scales see it. ``versions`` and ``slices``,
    where tiles are placed: for as many steps of a pipeline, and for as many units that have a copy each.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    level: str
    scale: str
    flag: bool = False
    parts: tuple[Chain, ...] = ()
    versions: int = 1
    slices: int = 1


@dataclass(frozen=True)
class View(Node):
    """``name`` is how a unit of ``scale`` sees ``source`` under a layout."""

    name: str
    source: str
    layout: Layout
    scale: str


Chain = tuple[View, ...]
"""Views one inside the other, outermost first."""


@dataclass(frozen=True)
class Reshape(Node):
    """``name`` is the elements of ``source``, in their order in memory, with another shape or dtype."""

    name: str
    source: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Let(Node):
    """A scalar variable gets a value (again)."""

    name: str
    value: Expr


@dataclass(frozen=True)
class ReadScalar(Node):
    """A number from a tile, at most ``bound``, becomes usable in extents, trip counts and peers."""

    name: str
    value: Expr
    bound: int | None = None


@dataclass(frozen=True)
class Copy(Node):
    """Elements of ``source`` to ``to``, converted; ``dst`` puts into that unit's tile, ``src`` gets from
    it. ``scale``, here and below: of the region whose units are meant, if not the innermost one."""

    to: Region = accessed("write")
    source: Region = accessed("read")
    dst: Expr | None = None
    src: Expr | None = None
    axis: int | None = None
    impl: str | None = None
    scale: str | None = None


@dataclass(frozen=True)
class Gemm(Node):
    """``c += a @ b`` (after transposition; ``clear`` starts from zero)."""

    a: Region = accessed("read")
    b: Region = accessed("read")
    c: Region = accessed("update")
    transpose_a: bool = False
    transpose_b: bool = False
    clear: bool = False
    policy: str = "Square"
    impl: str | None = None


@dataclass(frozen=True)
class Fill(Node):
    """Every element of ``to`` becomes ``value``."""

    to: Region = accessed("write")
    value: Expr = field(default=Const(0))
    impl: str | None = None


@dataclass(frozen=True)
class Reduce(Node):
    """Reduction of ``source`` over ``dim`` into ``to``; without ``clear`` it continues from ``to``."""

    op: str
    source: Region = accessed("read")
    to: Region = accessed("update")
    dim: int = 0
    clear: bool = True
    impl: str | None = None


@dataclass(frozen=True)
class Cumsum(Node):
    """Running sum of ``source`` over ``dim``."""

    source: Region = accessed("read")
    to: Region = accessed("write")
    dim: int = 0
    reverse: bool = False
    impl: str | None = None


@dataclass(frozen=True)
class Store(Node):
    """One element (of every iteration, inside a parallel loop) gets a value."""

    target: str
    index: tuple[Expr, ...]
    value: Expr


@dataclass(frozen=True)
class Atomic(Node):
    """One element is combined with a value, indivisibly; ``result`` is the variable that gets the old one.

    ``op`` is add, max, min, and, or, xor, exchange, or cas, which stores the value only where ``expected``
    is. Those with a result order what units did before them: each sees what those before it had done.
    ``dst``: whose it is.
    """

    op: str
    target: str
    index: tuple[Expr, ...]
    value: Expr
    expected: Expr | None = None
    result: str | None = None
    dst: Expr | None = None
    axis: int | None = None
    scale: str | None = None


@dataclass(frozen=True)
class AtomicRegion(Node):
    """Every element of ``to`` (of unit ``dst``) is combined with its element of ``source``, each
    indivisibly."""

    op: str
    to: Region = accessed("update")
    source: Region = accessed("read")
    dst: Expr | None = None
    axis: int | None = None
    scale: str | None = None


@dataclass(frozen=True)
class Barrier(Node):
    """All units of ``scale`` below the enclosing unit meet; release and acquire.

    ``units``: these ranks only, or so many of any rank. Barriers of different ``name`` or ``group`` are
    different.
    """

    scale: str
    axis: int | None = None
    name: str = ""
    group: Expr | None = None
    units: int | tuple[int, ...] | None = None


@dataclass(frozen=True)
class Fence(Node):
    """This unit's earlier puts, to whomever (to units of ``scale`` and smaller ones), are done before what it
    does next."""

    scale: str | None = None


@dataclass(frozen=True)
class Signal(Node):
    """The flag of unit ``dst`` counts up, after this unit's earlier puts to it."""

    flag: str
    index: tuple[Expr, ...]
    dst: Expr | None = None
    amount: Expr = Const(1)
    axis: int | None = None
    scale: str | None = None


@dataclass(frozen=True)
class Wait(Node):
    """Until this unit's flag is at least ``value``; with ``phase``, which is the number of signals that end a
    phase, until the phase of parity ``value`` has ended."""

    flag: str
    index: tuple[Expr, ...]
    value: Expr
    phase: int | None = None


@dataclass(frozen=True)
class Collective(Node):
    """``kind`` over the units of ``scale``; ``fn`` is an associative function of two tuples of scalars."""

    kind: str
    scale: str
    to: tuple[Region, ...] = accessed("write")
    source: tuple[Region, ...] = accessed("read")
    op: str = "sum"
    fn: Merge | None = None
    root: Expr = Const(0)
    dim: int = 0
    axis: int | None = None
    algorithm: str | None = None
    impl: str | None = None


WITHOUT_LIBRARY = ("shared", "multicast", "gets", "local")
"""What does a collective besides the library's algorithms: see the pass that chooses them."""
PLANNER_NAMES = {
    "allreduce": "all_reduce", "allgather": "all_gather", "gather_view": "all_gather",
    "reduce_scatter": "reduce_scatter", "scatter_view": "reduce_scatter", "all_to_all": "all_to_all",
    "broadcast": "broadcast",
}  # fmt: skip
"""Kinds of a collective, as the planner calls them."""


@dataclass(frozen=True)
class Merge:
    """A user's associative function as expressions: ``results`` of ``left`` and ``right`` elements.

    Operand ``n`` is the variable ``a<n>`` of the left tuple and ``b<n>`` of the right one.
    """

    name: str
    results: tuple[Expr, ...]


@dataclass(frozen=True)
class Print(Node):
    """Show text and values for one unit, or for all."""

    text: str
    values: tuple[Expr | Region, ...] = ()
    unit: Expr | None = None


@dataclass(frozen=True)
class Check(Node):
    """The run stops if the condition is false."""

    condition: Expr
    text: str = ""


@dataclass(frozen=True)
class Breakpoint(Node):
    """Stop in the debugger hook when this unit's rank is ``unit`` (every unit if None); show these values."""

    unit: Expr | None = None
    names: tuple[str, ...] = ()
    values: tuple[Expr, ...] = ()


@dataclass(frozen=True)
class Hint(Node):
    """How a target may do what is said elsewhere (a swizzle, a layout); data never depends on it."""

    word: str
    text: str = ""


@dataclass(frozen=True)
class ScaleRegion(Node):
    """The body on every unit of ``scale`` below the current one; one region is one phase. ``phase``, where
    phases are ordered: its number, if it starts instances; ``after``: the phases that it waits for."""

    scale: str
    body: tuple[Node, ...] = ()
    phase: int = 0
    after: tuple[int, ...] = ()


@dataclass(frozen=True)
class Break(Node):
    """The innermost loop ends."""


@dataclass(frozen=True)
class Continue(Node):
    """The innermost loop goes on with its next iteration."""


@dataclass(frozen=True)
class Return(Node):
    """The unit has done all of its region."""


@dataclass(frozen=True)
class Loop(Node):
    """``kind``: serial, unroll, vectorized, pipelined, persistent, or bounded (a ``while``). ``fresh`` (once
    tiles are placed): the tiles that get a new version in each iteration."""

    kind: str
    var: str
    start: Expr
    stop: Expr
    step: Expr = Const(1)
    stages: int = 1
    body: tuple[Node, ...] = ()
    fresh: tuple[str, ...] = ()


@dataclass(frozen=True)
class Parallel(Node):
    """Elementwise code: all iterations at once, none depending on another; ``in_step`` (threads of a block),
    every statement is done by all before the next begins, so that they may."""

    vars: tuple[str, ...]
    extents: tuple[Expr, ...]
    body: tuple[Node, ...] = ()
    in_step: bool = False


@dataclass(frozen=True)
class If(Node):
    condition: Expr
    body: tuple[Node, ...] = ()
    orelse: tuple[Node, ...] = ()


STATEMENTS: dict[str, type[Node]] = {
    kind.__name__: kind
    for kind in (
        Alloc, View, Reshape, Let, ReadScalar, Copy, Gemm, Fill, Reduce, Cumsum, Store, Atomic,
        AtomicRegion, Barrier, Fence, Signal, Wait, Collective, Print, Check, Breakpoint, Hint, Break,
        Continue, Return, ScaleRegion, Loop, Parallel, If,
    )
}  # fmt: skip


N = TypeVar("N", bound=Node)


def registrar(table: dict[type[Node], Any]) -> Callable[..., Callable[[Any], Any]]:
    """``@rule(kind, ...)`` puts a function into a table of what kinds of statements mean or become."""

    def rule(*kinds: type[Node]) -> Callable[[Any], Any]:
        def register(function: Any) -> Any:
            table.update(dict.fromkeys(kinds, function))
            return function

        return register

    return rule


class _Fields(dict[type[Node], Any]):
    """What is asked of the fields of a kind of statement, found once."""

    def __init__(self, find: Callable[[type[Node]], Any]):
        self.find = find

    def __missing__(self, kind: type[Node]) -> Any:
        self[kind] = self.find(kind)
        return self[kind]


_BODIES = _Fields(lambda kind: [f.name for f in fields(kind) if f.name in ("body", "orelse")])
"""The fields that hold statements."""


def bodies(node: Node) -> list[tuple[str, tuple[Node, ...]]]:
    """Return the statement lists inside a statement, by field name."""
    names = _BODIES[type(node)]
    return [(name, getattr(node, name)) for name in names] if names else []


def with_bodies(node: Node, change: Callable[[tuple[Node, ...]], tuple[Node, ...]]) -> Node:
    """Return the statement with every statement list inside it changed."""
    after: dict[str, Any] = {}
    for name, part in bodies(node):
        changed = change(part)
        if changed is not part:
            after[name] = changed
    return replace(node, **after) if after else node


def walk(body: tuple[Node, ...], leave: tuple[type[Node], ...] = ()) -> Iterator[Node]:
    """Yield every statement, in the order of the text; those inside kinds to ``leave`` are left out."""
    for node in body:
        yield node
        for _, inner in bodies(node) if not isinstance(node, leave) else ():
            yield from walk(inner, leave)


def with_scales(
    body: tuple[Node, ...], scale: str, leave: tuple[type[Node], ...] = ()
) -> Iterator[tuple[str, Node]]:
    """As ``walk``, with the scale whose units run each statement; ``scale`` is that of the body."""
    for node in body:
        yield scale, node
        for _, inner in bodies(node) if not isinstance(node, leave) else ():
            yield from with_scales(inner, node.scale if isinstance(node, ScaleRegion) else scale, leave)


def own_statements(body: tuple[Node, ...]) -> Iterator[Node]:
    """Return the statements of one unit: not those of regions inside, and of elementwise loops."""
    return walk(body, (ScaleRegion, Parallel))


def written(body: tuple[Node, ...]) -> set[str]:
    """Return the names that statements write."""
    return {region.source for node in walk(body) for kind, region in regions(node) if kind != "read"}


def each(kind: type[N], body: tuple[Node, ...]) -> Iterator[N]:
    """Return every statement of a kind, in the order of the text."""
    return (node for node in walk(body) if isinstance(node, kind))


NOT_ITS_OWN = ("span", "choice", "body", "orelse")
"""Fields that are not what a statement itself says."""


OWN_FIELDS = _Fields(lambda kind: tuple(f.name for f in fields(kind) if f.name not in NOT_ITS_OWN))
"""The names of its fields, without its place in the source and the statements inside it."""
ANNOTATIONS = ("versions", "slices", "fresh", "impl", "algorithm", "phase", "after")
"""Fields in which passes write what they have chosen: no names, scales or expressions."""
_MEANT = _Fields(lambda kind: tuple(name for name in OWN_FIELDS[kind] if name not in ANNOTATIONS))


def only_annotated(before: tuple[Node, ...], after: tuple[Node, ...]) -> bool:
    """Return whether statements are others by their annotations at most."""
    return len(before) == len(after) and all(
        old is new
        or (
            type(old) is type(new)
            and all(getattr(old, name) is getattr(new, name) for name in _MEANT[type(old)])
            and all(only_annotated(getattr(old, name), getattr(new, name)) for name in _BODIES[type(old)])
        )
        for old, new in zip(before, after, strict=True)
    )


EXPRESSION_FIELDS = _Fields(
    lambda kind: [f.name for f in fields(kind) if "Expr" in str(f.type) or "Region" in str(f.type)]
)
"""The fields that hold expressions, or regions with some."""
_ACCESSED = _Fields(
    lambda kind: tuple((f.name, f.metadata["access"]) for f in fields(kind) if "access" in f.metadata)
)
"""The fields that hold regions, with how these are accessed."""


def regions(node: Node) -> Iterator[tuple[str, Region]]:
    """Yield the regions a statement touches itself (not those in its body), single elements among them, each
    with its access."""
    yield from accessed_regions(node)
    for kind, name, index in element_accesses(node):
        yield kind, Region(name, tuple(Dim(i) for i in index))


def accessed_regions(node: Node) -> Iterator[tuple[str, Region]]:
    """Yield the regions that stand in a statement, each with its access."""
    for name, access in _ACCESSED[type(node)]:
        value = getattr(node, name)
        if value is not None:
            for region in value if isinstance(value, tuple) else (value,):
                yield access, region
    if isinstance(node, Print):
        yield from (("read", v) for v in node.values if isinstance(v, Region))


def remote(node: Node) -> str | None:
    """Return the name that a put, a get or an atomic with a destination means in another unit."""
    if getattr(node, "src", None) is not None:
        return node.source.source  # type: ignore[attr-defined]
    if getattr(node, "dst", None) is None or isinstance(node, Signal):
        return None
    return node.target if isinstance(node, Atomic) else node.to.source  # type: ignore[attr-defined]


def element_accesses(node: Node) -> Iterator[tuple[str, str, tuple[Expr, ...]]]:
    """Single elements a statement touches: targets of stores and atomics, and loads in its expressions."""
    if isinstance(node, Store):
        yield "write", node.target, node.index
    elif isinstance(node, Atomic):
        yield "update", node.target, node.index
    elif isinstance(node, (Signal, Wait)):
        yield "update" if isinstance(node, Signal) else "read", node.flag, node.index
    for expr in expressions(node):
        if expr.children() or isinstance(expr, Load):
            for load in loads(expr):
                yield "read", load.source, load.index


def expressions(node: Node) -> Iterator[Expr]:
    """Yield the expressions that stand in a statement itself, those inside its regions included."""
    for name in EXPRESSION_FIELDS[type(node)]:
        yield from _expressions_of(getattr(node, name))


def _expressions_of(value: Any) -> Iterator[Expr]:
    if isinstance(value, Region):
        yield from value.expressions()
    elif isinstance(value, tuple):
        for one in value:
            yield from _expressions_of(one)
    elif isinstance(value, Expr):
        yield value


def whole(name: str, shape: tuple[int, ...]) -> Region:
    """Return the region that is all of a tile."""
    return Region(name, tuple(Dim(Const(0), Const(n)) for n in shape))
