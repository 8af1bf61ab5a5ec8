"""The kernels of a device, one after the other: grids of blocks, and single blocks for its own statements."""

from __future__ import annotations

from dataclasses import dataclass, field

from megatile.core.expr import Call, Const, Expr, Symbol, constant, rebuild, simplify
from megatile.ir import nodes as n
from megatile.ir.expr import has_loads
from megatile.ir.launch import ROOT, Launch
from megatile.ir.passes.driver import rewrite_expressions, rewrite_nodes
from megatile.targets.common.errors import CompileError

MAX_UNROLLED_KERNELS = 256
"""Launches of one program; a loop of a device over more grids is refused."""


@dataclass
class DeviceKernel:
    """Statements of one launch."""

    body: tuple[n.Node, ...]
    blocks: bool
    """Whether blocks run them, not the device."""
    scales: tuple[str, ...]
    conditions: tuple[Expr, ...] = ()


@dataclass
class Kernels:
    """Divides the statements of a Program."""

    launch: Launch
    found: list[DeviceKernel] = field(default_factory=list)
    allocs: list[n.Alloc] = field(default_factory=list)
    """Tiles of the device itself."""

    def of(self, body: tuple[n.Node, ...]) -> list[DeviceKernel]:
        self._body(body, (ROOT,), ())
        return self.found

    def _has_grid(self, node: n.Node) -> bool:
        return any(isinstance(x, n.ScaleRegion) and self._is_grid(x) for x in n.walk((node,)))

    def _is_grid(self, node: n.ScaleRegion) -> bool:
        depth = self.launch.depth(node.scale)
        device = self.launch.depth("device") if "device" in [s.name for s in self.launch.scales] else 0
        return device < depth <= self.launch.depth("block")

    def _body(self, body: tuple[n.Node, ...], scales: tuple[str, ...], conditions: tuple[Expr, ...]) -> None:
        values: dict[str, Expr] = {}
        for node in body:
            if values:
                node = _bound(node, values)
            if isinstance(node, n.Hint):
                continue
            if isinstance(node, n.Alloc):
                self.allocs.append(node)
                continue
            if isinstance(node, n.Let) and not has_loads(node.value):
                values[node.name] = node.value
            elif isinstance(node, n.ScaleRegion) and self._is_grid(node):
                self._grid(node, scales, conditions)
            elif isinstance(node, n.ScaleRegion):
                self._body(node.body, (*scales, node.scale), conditions)
            elif self._has_grid(node):
                self._around(node, scales, conditions)
            else:
                self._alone(node, scales, conditions)

    def _grid(self, node: n.ScaleRegion, scales: tuple[str, ...], conditions: tuple[Expr, ...]) -> None:
        inner = (*scales, node.scale)
        if node.scale == "block":
            self.found.append(DeviceKernel(node.body, True, inner, conditions))
            return
        regions: list[tuple[n.Node, ...]] = []
        for one in node.body:  # of a cluster: only regions of its blocks
            if not isinstance(one, n.ScaleRegion) or one.scale != "block":
                raise CompileError(
                    f"{type(one).__name__} at scale '{node.scale}' has no counterpart in TileLang",
                    place=one.place,
                    advice='write it for the blocks: with T.Scale("block")',
                )
            regions.append(one.body)
        self.found.append(DeviceKernel(_met(regions), True, (*inner, "block"), conditions))

    def _around(self, node: n.Node, scales: tuple[str, ...], conditions: tuple[Expr, ...]) -> None:
        """A loop or branch of the device around grids."""
        if isinstance(node, n.If):
            self._body(node.body, scales, (*conditions, node.condition))
            if node.orelse:
                self._body(node.orelse, scales, (*conditions, Call("not", (node.condition,), "bool")))
            return
        ends = (node.start, node.stop, node.step) if isinstance(node, n.Loop) else ()
        bounds = [number for e in ends if (number := constant(simplify(e))) is not None]
        if len(bounds) < 3 or len(range(*map(int, bounds))) > MAX_UNROLLED_KERNELS:
            raise CompileError(
                "a loop of a device over grids, of unknown length, has no counterpart in TileLang",
                place=node.place,
                advice='write the loop inside with T.Scale("block")',
            )
        assert isinstance(node, n.Loop)
        for number in range(*map(int, bounds)):
            rounds = tuple(_bound(one, {node.var: Const(number)}) for one in node.body)
            self._body(rounds, scales, conditions)

    def _alone(self, node: n.Node, scales: tuple[str, ...], conditions: tuple[Expr, ...]) -> None:
        """A statement of the device itself joins those before it."""
        last = self.found[-1] if self.found else None
        if last is not None and not last.blocks and last.scales == scales and last.conditions == conditions:
            last.body = (*last.body, node)
        else:
            self.found.append(DeviceKernel((node,), False, scales, conditions))


def _met(regions: list[tuple[n.Node, ...]]) -> tuple[n.Node, ...]:
    """Join the regions of a cluster's blocks, with the barriers that hardware needs.

    Blocks meet between regions, before the first put to another block, which must have started and be done
    with tiles whose memory the target shares, and after the last one, which must not find it ended.
    """
    body: list[n.Node] = []
    for statements in regions:
        if body:
            body.append(n.Barrier("block", span=body[-1].span))
        body += statements
    puts = [at for at, one in enumerate(body) if _puts_to_a_block(one)]
    if puts:
        first, last = puts[0], puts[-1]
        if not any(isinstance(one, n.Barrier) and one.scale == "block" for one in body[last + 1 :]):
            body.append(n.Barrier("block", span=body[last].span))
        if first == 0 or not isinstance(body[first - 1], n.Barrier):
            body.insert(first, n.Barrier("block", span=body[first].span))
    return tuple(body)


def _puts_to_a_block(node: n.Node) -> bool:
    return any(
        isinstance(one, n.Copy)
        and (one.dst is not None or one.src is not None)
        and (one.scale or scale) == "block"
        for scale, one in n.with_scales((node,), "block")
    )


def _bound(node: n.Node, values: dict[str, Expr]) -> n.Node:
    """Return a statement with numbers in place of variables."""

    def change(expr: Expr) -> Expr:
        return simplify(
            rebuild(expr, lambda e: values[e.name] if isinstance(e, Symbol) and e.name in values else e)
        )

    [changed] = rewrite_nodes((node,), lambda one: rewrite_expressions(one, change))
    return changed
