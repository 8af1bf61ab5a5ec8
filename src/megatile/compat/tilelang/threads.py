"""Threads by number, and the roles that conditions on them give to parts of a block.

    x = T.get_thread_binding(); C[x] = A[x] + B[x]
    ->  for thread_x in in_step(threads): C[thread_x] = ...     every statement done by all threads together

    if x < 128: producer, with tile operations      with scale("warp"):
    else: consumer                              ->      if rank == 0: producer
                                                        if rank == 4: consumer

Tiles and variables that each thread has for itself get leading dimensions of threads. Tile operations are
done once for their role, and see the variables of its first thread: those of all are equal there. A kernel
that names no threads is left as it is: its local tiles belong to the block.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from megatile.compat.tilelang import buffers as b
from megatile.core.expr import Binary, Expr, Symbol as Var, expr as integer, rebuild, simplify, symbols, walk
from megatile.ir import nodes as n
from megatile.ir.expr import Coord, Load, Rank, has_loads
from megatile.ir.passes.driver import rewrite_expressions, rewrite_nodes
from megatile.language.tile.errors import ProgramError
from megatile.language.tile.scalars import Value

if TYPE_CHECKING:
    from megatile.compat.tilelang.buffers import KernelState

_LANES = (n.Store, n.Atomic, n.Let, n.If, n.Loop, n.Check, n.Print)
WARP = 32
"""Threads of a warp."""
WARP_GROUP = 128
"""Threads of a warp group."""


def thread_variables(threads: tuple[int, ...]) -> tuple[str, ...]:
    return tuple(f"thread_{axis}" for axis in "xyz"[: len(threads)])


def with_threads(body: tuple[n.Node, ...], state: KernelState) -> tuple[n.Node, ...]:
    """The statements, with those that depend on the thread in loops over the threads, or in roles."""
    names = set(thread_variables(state.threads))
    if not any(symbols(e) & names for node in n.walk(body) for e in n.expressions(node)):
        return body
    threads = _Threads(state)
    everyone = Role(np.arange(threads.count), None)
    return tuple(
        replace(node, body=threads.region(node.body, everyone)) if isinstance(node, n.ScaleRegion) else node
        for node in body
    )


@dataclass(frozen=True)
class Role:
    """The threads that run some statements, and the condition they meet (None: all threads)."""

    members: np.ndarray
    condition: Expr | None

    @property
    def first(self) -> int:
        return int(self.members[0])


class _Threads:
    def __init__(self, state: KernelState):
        self.state = state
        self.names = thread_variables(state.threads)
        self.count = int(np.prod(state.threads))
        self.extents = tuple(integer(extent) for extent in state.threads)
        self.own = tuple(Var(name) for name in self.names)
        self.private = state.private
        self.ranks = {tile.name: len(tile.shape) for tile in state.local}
        """Dimensions of those tiles; an access with more names its thread."""
        self.kept: dict[str, str] = {}
        """Variables that differ between threads, and the tiles that hold them."""
        self.made: list[n.Node] = []

    # --- what differs between threads -------------------------------------------------------------

    def varies(self, node: n.Node) -> bool:
        return any(self.depends(e) for m in n.walk((node,)) for e in n.expressions(m)) or any(
            region.source in self.private for m in n.walk((node,)) for _, region in n.regions(m)
        )

    def depends(self, expr: Expr) -> bool:
        return bool(symbols(expr) & {*self.names, *self.kept})

    def private_access(self, node: n.Node) -> n.Node:
        """Tiles of each thread get dimensions of threads, and every access its own index there."""

        def load(expr: Expr) -> Expr:
            if isinstance(expr, Load) and self.ranks.get(expr.source) == len(expr.index):
                return replace(expr, index=(*self.own, *expr.index))
            if isinstance(expr, Var) and expr.name in self.kept:
                return Load(self.kept[expr.name], self.own, _stored(expr.dtype))
            return expr

        node = rewrite_expressions(node, lambda e: rebuild(e, load))
        if isinstance(node, n.Alloc) and node.name in self.private:
            return replace(node, shape=(*self.state.threads, *node.shape))
        if isinstance(node, (n.Store, n.Atomic)) and node.target in self.private:
            return replace(node, index=(*self.own, *node.index))
        return node

    def is_lane(self, node: n.Node) -> bool:
        """Whether threads may do a statement for themselves; a signal or wait is done once, for its role."""
        names = {getattr(node, "result", None), getattr(node, "var", None)}
        return isinstance(node, _LANES) and not names & self.state.ordering

    def elementwise(self, node: n.Node) -> tuple[list[n.Node], tuple[n.Node, ...]]:
        """The tiles made inside a statement, and the statement without them; each thread fills its own tiles
        element by element."""
        allocs = [self.private_access(m) for m in n.walk((node,)) if isinstance(m, n.Alloc)]

        def stores(m: n.Node) -> n.Node:
            if m is node or not isinstance(m, n.Fill) or m.to.source not in self.private:
                return m
            spans = [(f"{m.to.source}_{d}", dim) for d, dim in enumerate(m.to.dims)]
            index = tuple(d.start if d.extent is None else Binary("+", d.start, Var(v)) for v, d in spans)
            inner: n.Node = n.Store(m.to.source, index, m.value, span=m.span)
            for name, dim in reversed(spans):
                if dim.extent is not None:
                    inner = n.Loop("serial", name, integer(0), dim.extent, body=(inner,), span=m.span)
            return inner

        return allocs, rewrite_nodes(_without_allocs((node,)), stores)

    # --- statements -------------------------------------------------------------------------------

    def region(self, body: tuple[n.Node, ...], role: Role) -> tuple[n.Node, ...]:
        result = self.body(body, role)
        return (*self.made, *result)

    def body(self, body: tuple[n.Node, ...], role: Role) -> tuple[n.Node, ...]:
        result: list[n.Node] = []
        roles: list[tuple[Role, tuple[n.Node, ...]]] = []
        for node in body:
            parts = self.roles_of(node, role)
            if parts is not None:
                roles += parts
                continue
            result += self.together(roles)
            roles = []
            result += self.statement(node, role)
        return (*result, *self.together(roles))

    def statement(self, node: n.Node, role: Role) -> list[n.Node]:
        if isinstance(node, n.Alloc):
            return [self.private_access(node)]
        if not self.varies(node):
            return list(rewrite_nodes((node,), lambda m: self.arrival(m, role)))
        if isinstance(node, n.Let):
            return self.let(node, role)
        if isinstance(node, n.Atomic) and node.result and node.result not in self.state.ordering:
            return self.fetched(node, role)
        allocs, elementwise = self.elementwise(node)
        if all(self.is_lane(m) for m in n.walk(elementwise)):
            changed = rewrite_nodes(elementwise, self.private_access)
            return [*allocs, *(self.in_step(one, role) for one in changed)]
        if self.orders(node) and any(
            symbols(e) & set(self.names) for m in n.walk((node,)) for e in n.expressions(m)
        ):
            return [self.in_turn(rewrite_nodes((node,), self.private_access)[0], role)]
        node = self.private_access(node)
        if isinstance(node, n.Fill) and node.to.source in self.private:
            every = tuple(n.Dim(integer(0), integer(extent)) for extent in self.state.threads)
            return [replace(node, to=replace(node.to, dims=(*every, *node.to.dims)))]
        node = self.of_first(node, role)
        if isinstance(node, n.Parallel):
            inner = rewrite_nodes(node.body, lambda m: self.of_first(self.private_access(m), role))
            return [replace(node, body=inner)]
        return [replace(node, **{name: self.body(part, role) for name, part in n.bodies(node)})]  # type: ignore[arg-type]

    def arrival(self, node: n.Node, role: Role) -> n.Node:
        """Every thread of a role arrives at its barriers."""
        if not isinstance(node, n.Signal) or node.flag not in self.state.arrivals:
            return node
        return replace(node, amount=integer(min(self.state.arrivals[node.flag], len(role.members))))

    def let(self, node: n.Let, role: Role) -> list[n.Node]:
        """A variable that differs between threads is kept in a tile of theirs."""
        value = self.private_access(node)
        tile = self.tile_of(node.name, node.value.dtype, node)
        return [self.in_step(n.Store(tile, self.own, value.value, span=node.span), role)]  # type: ignore[attr-defined]

    def fetched(self, node: n.Atomic, role: Role) -> list[n.Node]:
        """The old value that each thread gets is kept in a tile of theirs."""
        assert node.result is not None
        dtype = b.current().tiles[node.target].dtype
        value = self.private_access(node)
        tile = self.tile_of(node.result, dtype, node)
        stored = n.Store(tile, self.own, Var(node.result, dtype), span=node.span)
        both: tuple[n.Node, ...] = (value, stored)
        if role.condition is not None:
            both = (n.If(role.condition, both, span=node.span),)
        return [n.Parallel(self.names, self.extents, both, in_step=True, span=node.span)]

    def tile_of(self, name: str, dtype: str, node: n.Node) -> str:
        """The tile that holds a variable of each thread."""
        tile = f"{name}_of_threads"
        if name not in self.kept:
            made = n.Alloc(tile, self.state.threads, _stored(dtype), self.state.registers, self.state.home)
            self.made.append(replace(made, span=node.span))
        self.kept[name] = tile
        return tile

    def in_step(self, node: n.Node, role: Role) -> n.Node:
        inner = node if role.condition is None else n.If(role.condition, (node,), span=node.span)
        return n.Parallel(self.names, self.extents, (inner,), in_step=True, span=node.span)

    def orders(self, node: n.Node) -> bool:
        """Whether a statement is signals and waits, with elementwise code around them."""
        inner = list(n.walk((node,)))
        return all(isinstance(m, (*_LANES, n.Break)) for m in inner) and not all(map(self.is_lane, inner))

    def in_turn(self, node: n.Node, role: Role) -> n.Node:
        """The statement of one thread after the other."""
        inner = node if role.condition is None else n.If(role.condition, (node,), span=node.span)
        for name, extent in zip(self.names, self.extents, strict=True):
            inner = n.Loop("serial", name, integer(0), extent, body=(inner,), span=node.span)
        return inner

    def of_first(self, node: n.Node, role: Role) -> n.Node:
        """The statement as the role's first thread sees it."""
        numbers = np.unravel_index(role.first, tuple(reversed(self.state.threads)))
        values = dict(zip(self.names, (int(i) for i in reversed(numbers)), strict=True))

        def first(expr: Expr) -> Expr:
            return integer(values[expr.name]) if isinstance(expr, Var) and expr.name in values else expr

        return rewrite_expressions(node, lambda e: simplify(rebuild(e, first)))

    # --- roles ------------------------------------------------------------------------------------

    def roles_of(self, node: n.Node, role: Role) -> list[tuple[Role, tuple[n.Node, ...]]] | None:
        """The parts of a condition on the thread's number that hold more than elementwise code, or of a loop
        over such parts."""
        if isinstance(node, n.Loop):
            return self.roles_of_loop(node, role)
        if not isinstance(node, n.If) or not symbols(node.condition) or has_loads(node.condition):
            return None
        if not symbols(node.condition) <= set(self.names) or _has_units(node.condition):
            return None
        if all(self.is_lane(m) for m in n.walk((node,))):
            return None
        axes = np.unravel_index(role.members, tuple(reversed(self.state.threads)))
        values = dict(zip(self.names, reversed(axes), strict=True))
        holds = np.broadcast_to(np.asarray(node.condition.evaluate(values), bool), role.members.shape)
        found = []
        for wanted, part in ((True, node.body), (False, node.orelse)):
            members = role.members[holds == wanted]
            if not part or not len(members):
                continue
            condition = node.condition if wanted else Binary("==", node.condition, integer(0))
            if role.condition is not None:
                condition = Binary("and", role.condition, condition, "bool")
            inner = Role(members, condition)
            nested = [self.roles_of(one, inner) for one in part]
            if len(part) == 1 and nested[0] is not None:
                found += nested[0]
            else:
                found.append((inner, part))
        return found

    def roles_of_loop(self, node: n.Loop, role: Role) -> list[tuple[Role, tuple[n.Node, ...]]] | None:
        """A loop in which every statement is that of a role: each role has a loop of its own, and may be in
        another step than the others."""
        head = (node.start, node.stop, node.step)
        kinds = ("serial", "pipelined") if node.stages <= 1 else ("serial",)
        if node.kind not in kinds or any(map(self.depends, head)) or not any(map(_is_if, node.body)):
            return None
        steps: list[n.Let | list[tuple[Role, tuple[n.Node, ...]]]] = []
        for one in node.body:
            parts = None if isinstance(one, n.Let) else self.roles_of(one, role)
            if isinstance(one, n.Let) and not self.varies(one) and not has_loads(one.value):
                steps.append(one)
            elif parts is not None:
                steps.append(parts)
            else:
                return None
        roles = {one.members.tobytes(): one for parts in steps if isinstance(parts, list) for one, _ in parts}
        if len({one.first // WARP for one in roles.values()}) < len(roles):
            return None
        return [(one, (replace(node, kind="serial", body=_of_role(steps, one)),)) for one in roles.values()]

    def together(self, roles: list[tuple[Role, tuple[n.Node, ...]]]) -> list[n.Node]:
        """Roles that follow each other run at once; one alone, or those of one warp, in their order."""
        warps = [role.first // WARP for role, _ in roles]
        bodies = [self.body(part, role) for role, part in roles]
        if len(set(warps)) < 2 or (len(set(warps)) < len(roles) and not _waits(bodies)):
            return [node for body in bodies for node in body]
        merged: dict[int, tuple[n.Node, ...]] = {}
        for warp, body in zip(warps, bodies, strict=True):
            merged[warp] = (*merged.get(warp, ()), *body)
        inside = [m for body in merged.values() for m in n.walk(body)]
        allocs: list[n.Node] = [m for m in inside if isinstance(m, n.Alloc)]
        scale, size = self.unit_of([role for role, _ in roles])
        rank = Rank(scale, self.state.home)
        branches = tuple(
            n.If(
                Binary("==", rank, integer(warp * WARP // size), "bool"),
                _without_allocs(body),
                span=body[0].span,
            )
            for warp, body in merged.items()
        )
        return [*allocs, n.ScaleRegion(scale, branches, span=branches[0].span)]

    def unit_of(self, roles: list[Role]) -> tuple[str, int]:
        """Return the scale whose units are the roles, and its threads: warp groups where each role is one;
        else the first warp of each role does its work."""
        launch, machine = b.current().launch, b.current().machine
        group, warp = machine.scale("warpgroup").name, machine.scale("warp").name
        groups = launch is not None and any(scale.name == group for scale in launch.scales)
        whole = all(len(one.members) == WARP_GROUP and one.first % WARP_GROUP == 0 for one in roles)
        return (group, WARP_GROUP) if groups and whole else (warp, WARP)


def _is_if(node: n.Node) -> bool:
    return isinstance(node, n.If)


def _of_role(steps: list[n.Let | list[tuple[Role, tuple[n.Node, ...]]]], role: Role) -> tuple[n.Node, ...]:
    """The statements of one role, with the variables that all have."""
    found: list[n.Node] = []
    for step in steps:
        if isinstance(step, n.Let):
            found.append(step)
            continue
        for one, part in step:
            if np.array_equal(one.members, role.members):
                found += part
    return tuple(found)


def _has_units(condition: Expr) -> bool:
    """Whether a condition depends on the block or the device, too."""
    return any(isinstance(e, (Coord, Rank)) for e in walk(condition))


def _waits(bodies: list[tuple[n.Node, ...]]) -> bool:
    return any(isinstance(m, n.Wait) for body in bodies for m in n.walk(body))


def _without_allocs(body: tuple[n.Node, ...]) -> tuple[n.Node, ...]:
    return rewrite_nodes(body, lambda m: None if isinstance(m, n.Alloc) else m)


def _stored(dtype: str) -> str:
    return {"int": "i64", "float": "f32"}.get(dtype, dtype)


def get_thread_binding(dim: int = 0) -> Value:
    """The thread's index."""
    state = b.state()
    if dim >= len(state.threads):
        raise ProgramError(
            f"T.get_thread_binding({dim}): the launch has {len(state.threads)} dimensions of threads",
            advice="T.Kernel(..., threads=(x, y))",
        )
    return Value(Var(thread_variables(state.threads)[dim]))
