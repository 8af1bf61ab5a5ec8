"""Warp groups as roles: ``with T.ws(0):`` for each, with tiles of its own and mbarriers for flags."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from megatile.core.expr import Const, Expr, binary, constant, known, linear, rebuild, simplify
from megatile.core.placement import Partial, Replicate
from megatile.ir import nodes as n
from megatile.ir.expr import Coord, Rank
from megatile.ir.passes.driver import rewrite_expressions
from megatile.ir.program import Program, base_name
from megatile.targets.tilelang.units import dtype

if TYPE_CHECKING:
    from megatile.targets.tilelang.writer import TileLangWriter

_THREADS = 128
"""Threads of a warp group."""


class Roles:
    """What the roles of a block need beside its statements."""

    def __init__(self, program: Program):
        launch = program.launch
        names = [s.name for s in launch.scales]
        self.count = launch.count("warpgroup", "block") if "warpgroup" in names else 1
        self.role: int | None = None
        self.chosen = 0
        """The copy of tiles that statements of the block mean."""
        self.copied: set[str] = set()
        """Tiles that each role has a copy of."""
        self.flags: dict[tuple[str, int], set[int]] = {}
        """Flags (of a role), and the roles that signal them."""
        self.shared_flags: set[str] = set()
        for node in n.walk(program.body):
            if isinstance(node, n.Alloc):
                own = node.scale == "warpgroup" or any(
                    view.scale == "warpgroup" and isinstance(view.layout, (Replicate, Partial))
                    for chain in node.parts
                    for view in chain
                )
                if own:
                    self.copied.add(node.name)
                if node.flag and node.level != "hbm":
                    self.shared_flags.add(node.name)
        for node in n.walk(program.body):
            if isinstance(node, n.ScaleRegion) and node.scale == "warpgroup":
                for role in range(self.count):
                    for one in n.walk(specialised(node.body, role)):
                        if isinstance(one, n.Signal) and one.flag in self.shared_flags:
                            owner = self._owner(one.flag, one.dst, role)
                            self.flags.setdefault((one.flag, owner), set()).add(role)

    def _owner(self, flag: str, peer: Expr | None, role: int) -> int:
        if flag not in self.copied:
            return 0
        found = role if peer is None else known(simplify(peer))
        return -1 if found is None else int(found)

    def names(self, name: str) -> list[str]:
        return [f"{name}_{role}" for role in range(self.count)] if name in self.copied else [name]

    def copy(self, name: str) -> str:
        """Return the tile that a statement means."""
        if name not in self.copied:
            return name
        return f"{name}_{self.chosen if self.role is None else self.role}"

    def copies_of(self, node: n.Node) -> Iterator[int]:
        """Yield how often a statement of the block is written: for each copy of a tile that it writes."""
        leaf = not isinstance(node, (n.Loop, n.If, n.ScaleRegion, n.Alloc))
        written = {base_name(r.source) for x in n.walk((node,)) for k, r in n.regions(x) if k != "read"}
        for number in range(self.count if leaf and self.role is None and written & self.copied else 1):
            self.chosen = number
            yield number
        self.chosen = 0

    # --- flags ------------------------------------------------------------------------------------

    def allocated(self, out: TileLangWriter, node: n.Alloc) -> bool:
        """Declare mbarriers for a flag."""
        if node.name not in self.shared_flags:
            return False
        for owner in range(self.count) if node.name in self.copied else (0,):
            givers = self.flags.get((node.name, owner))
            if givers:
                counts = f"[{_THREADS * len(givers)}] * {node.shape[0]}"
                out.add(f"{out.name(f'{node.name}@{owner}')} = T.alloc_barrier({counts})")
        if len(node.shape) != 1 or (node.name, -1) in self.flags:
            out.refuse(node, "as a flag of several dimensions, or of an unknown role, has no counterpart")
        return True

    def signalled(self, out: TileLangWriter, node: n.Signal) -> bool:
        if node.flag not in self.shared_flags:
            return False
        if self.role is None or constant(node.amount) != 1:
            out.refuse(node, "of a block, or of more than one, has no counterpart")
        owner = self._owner(node.flag, node.dst, self.role)
        out.add(f"T.barrier_arrive({out.name(f'{node.flag}@{owner}')}[{out.value(node.index[0])}])")
        return True

    def waited(self, out: TileLangWriter, node: n.Wait) -> bool:
        if node.flag not in self.shared_flags:
            return False
        if self.role is None:
            out.refuse(node, "of a block has no counterpart")
        owner = self._owner(node.flag, None, self.role)
        givers = len(self.flags.get((node.flag, owner), ()))
        if not givers:
            out.refuse(node, "for a flag that no role signals has no counterpart")
        value = node.value if givers == 1 else binary("//", node.value, Const(givers))
        _, offset = linear(value)
        parity = simplify((value + (1 if offset % 2 == 0 else -1)) % 2)
        barrier = f"{out.name(f'{node.flag}@{owner}')}[{out.value(node.index[0])}]"
        out.add(f"T.barrier_wait({barrier}, {out.value(parity)})")
        return True

    def put(self, out: TileLangWriter, node: n.Copy) -> None:
        """A copy into another role's tile."""
        peer = node.dst if node.dst is not None else node.src
        other = known(simplify(peer)) if peer is not None else None
        mine = self.role
        if other is None:
            out.refuse(node, "to a role that is not known has no counterpart")
        sides: list[Any] = []
        for region, theirs in ((node.source, node.src is not None), (node.to, node.dst is not None)):
            self.role = int(other) if theirs else mine
            sides.append(out.part(region))
        self.role = mine
        out.add(f"T.copy({', '.join(sides)})")


def specialised(body: tuple[n.Node, ...], role: int) -> tuple[n.Node, ...]:
    """Return the statements that one warp group does."""

    def number(expr: Expr) -> Expr:
        mine = isinstance(expr, (Rank, Coord)) and expr.scale == "warpgroup"
        return Const(role) if mine else expr

    found: list[n.Node] = []
    for node in body:
        node = rewrite_expressions(node, lambda e: simplify(rebuild(e, number)))
        if isinstance(node, n.If) and constant(node.condition) is not None:
            found += specialised(node.body if constant(node.condition) else node.orelse, role)
        else:
            found.append(n.with_bodies(node, lambda part: specialised(part, role)))
    return tuple(found)


def written_roles(out: TileLangWriter, node: n.ScaleRegion) -> None:
    """The roles of a block, between two places where its warp groups meet."""
    roles = out.roles
    outer, out.scales = out.scales, (*out.scales, "warpgroup")
    for one in n.walk(node.body):
        if isinstance(one, n.Alloc):
            out.allocate(one)
    segment: list[n.Node] = []
    for one in node.body:
        if isinstance(one, n.Alloc):
            continue
        if isinstance(one, n.Barrier) and one.scale == "warpgroup":
            _segment(out, segment)
            segment = []
        elif isinstance(one, n.Collective):
            _segment(out, segment)
            segment = []
            _allreduce(out, one)
        else:
            segment.append(one)
    _segment(out, segment)
    out.scales = outer
    roles.role = None
    out.units.group = None


def _segment(out: TileLangWriter, body: list[n.Node]) -> None:
    if not body:
        return
    for role in range(out.roles.count):
        mine = specialised(_without_allocs(tuple(body)), role)
        out.roles.role = out.units.group = role
        if mine:
            out.block(f"with T.ws({role}):", lambda mine=mine: out.region(mine))  # type: ignore[misc]
    out.roles.role = out.units.group = None
    out.add("T.sync_threads()")


def _without_allocs(body: tuple[n.Node, ...]) -> tuple[n.Node, ...]:
    kept = (n.with_bodies(one, _without_allocs) for one in body if not isinstance(one, n.Alloc))
    return tuple(kept)


def _allreduce(out: TileLangWriter, node: n.Collective) -> None:
    """Through shared memory, where each role puts its tile."""
    if node.kind != "allreduce" or node.fn is not None or node.op not in ("sum", "max", "min"):
        out.refuse(node, f"'{node.kind}' of warp groups has no counterpart")
    region, roles = node.source[0], out.roles
    base = base_name(region.source)
    if base not in roles.copied:
        out.refuse(node, "of tiles that the roles share has no counterpart")
    extents = [out.value(e) for e in region.extents]
    kind = out.kinds[region.source]
    staged = [out.name(f"{base}_of_{role}_{len(out.lines)}") for role in range(roles.count)]
    for name in staged:
        out.add(f'{name} = T.alloc_shared(({", ".join(extents)},), "{dtype(kind)}")')
    for role, name in enumerate(staged):
        roles.role = role
        out.block(f"with T.ws({role}):", lambda name=name: out.add(f"T.copy({out.part(region)}, {name})"))  # type: ignore[misc]
    out.add("T.sync_threads()")
    names = [f"i{d}" for d in range(len(extents))]
    index = ", ".join(names)
    parts = [f"{name}[{index}]" for name in staged]
    total = " + ".join(parts)
    if node.op != "sum":
        total = parts[0]
        for part in parts[1:]:
            total = f"T.{node.op}({total}, {part})"
    to = node.to[0]
    for role in range(roles.count):
        roles.role = role
        starts = iter(names)
        place = ", ".join(
            out.value(d.start)
            if d.extent is None
            else next(starts)
            if known(d.start) == 0
            else f"{out.value(d.start, 8)} + {next(starts)}"
            for d in to.dims
        )
        with_role = f"with T.ws({role}):"
        target = f"{out.tile(to.source)}[{place}] = {total}"

        def body(target: str = target) -> None:
            out.block(f"for {index} in T.Parallel({', '.join(extents)}):", lambda: out.add(target))

        out.block(with_role, body)
    roles.role = None
    out.add("T.sync_threads()")
