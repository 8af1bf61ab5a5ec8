"""``T.Kernel`` in TileLang's spelling; a program may have several, one after the other."""

from __future__ import annotations

import math
from typing import Any

from megatile.compat.tilelang import buffers as b
from megatile.compat.tilelang.hints import hint
from megatile.compat.tilelang.threads import get_thread_binding, thread_variables, with_threads
from megatile.ir import nodes as n
from megatile.ir.expr import Coord
from megatile.ir.launch import Param
from megatile.ir.passes.driver import rewrite_expressions, rewrite_nodes
from megatile.language.tile.builder import Body, current
from megatile.language.tile.errors import ProgramError
from megatile.language.tile.launch import instance_of, launch_of
from megatile.language.tile.memory import memory_layer
from megatile.language.tile.program import finished
from megatile.language.tile.scalars import Coordinate, Value


class Kernel:
    """``with T.Kernel(gx, gy, threads=128) as (bx, by):``."""

    def __init__(self, *grid: Any, threads: Any = None, is_cpu: bool = False, prelude: Any = None,
                 cluster_dims: Any = None):  # fmt: skip
        self.grid = grid
        self.threads = threads
        self.cluster = () if cluster_dims is None else b.extents_of(cluster_dims)

    def __enter__(self) -> Any:
        builder, state = current(), b.state()
        if state.shapes is not None:
            raise ProgramError("the launch is reached", advice="every array's shape is known")
        grid = tuple(b.resolved(e, builder.bound) for e in self.grid) or (1,)
        for extent in grid:
            if isinstance(extent, Value):
                raise ProgramError(
                    f"the launch has the unknown extent {extent!r}",
                    advice="give it by name, or call with arrays whose shapes show it",
                )
        threads = 128 if self.threads is None else self.threads
        state.threads = tuple(int(b.resolved(e, builder.bound)) for e in b.extents_of(threads))
        scales: dict[str, Any] = {"device": state.ranks} if state.ranks > 1 else {}
        scales |= {"block": tuple(int(e) for e in grid), "threads": math.prod(state.threads)}
        builder.instance = instance_of(builder.machine, scales)
        builder.launch = launch_of(builder.instance)
        builder.bodies[0].variables |= set(builder.bound)
        builder.names |= set(builder.bound)
        for name in thread_variables(state.threads):
            builder.names.add(name)
            builder.bodies[0].variables.add(name)
        dispatch = builder.launch.dispatch
        extents = builder.launch.extents(dispatch)
        coords = tuple(Value(Coord(dispatch, a)) for a in range(len(extents)))
        self.coords = Coordinate(Coord(dispatch, 0)) if len(coords) == 1 else coords
        state.coords, state.grid = coords, extents  # type: ignore[attr-defined]
        if self.cluster:
            hint("cluster_dims")(*self.cluster)
        return self.coords

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None:
            current().close_implied()
            self.finish()

    def finish(self) -> None:
        """The statements so far are one Program; the builder is ready for the next launch."""
        builder, state = current(), b.state()
        body = tuple(builder.bodies[0].nodes)
        if builder.bound:
            body = rewrite_nodes(body, lambda node: with_numbers(node, builder.bound))
        state.home = builder.launch.dispatch if builder.launch else state.home
        state.registers = memory_layer(builder, "l0")
        state.arrivals = {one.tile.name: min(one.counts) for one in state.barriers}
        body = with_threads(body, state)
        leading: tuple[int, ...] = ()
        if state.ranks > 1:
            from megatile.compat.tilelang.onesided import with_ranks

            body, leading = with_ranks(body, state), (state.ranks,)
        builder.bodies[0].nodes = list(body)
        used = {region.source for node in n.walk(body) for _, region in n.regions(node)}
        used |= {node.source for node in n.walk(body) if isinstance(node, n.Reshape)}
        params = tuple(
            Param(name, (*leading, *tensor.shape), tensor.dtype)
            for name, tensor in state.tensors.items()
            if name in used
        )
        state.programs.append(finished(builder, params))
        state.local, state.barriers = [], []
        builder.launch = builder.instance = None
        builder.bodies, builder.scales, builder.homes, builder.placements = [Body()], [], {}, {}


ClusterKernel = Kernel


def with_numbers(node: n.Node, bound: dict[str, int]) -> n.Node:
    """Expressions made before their symbolic extents were known, with the numbers put in."""
    return rewrite_expressions(node, lambda e: b.substituted(e, bound))


def get_thread_bindings() -> list[Value]:
    return [get_thread_binding(d) for d in range(len(b.state().threads))]


def get_block_binding(dim: int = 0) -> Any:
    return b.state().coords[dim]  # type: ignore[attr-defined]


def get_block_bindings() -> list[Any]:
    return list(b.state().coords)  # type: ignore[attr-defined]


def get_thread_extent(dim: int = 0) -> int:
    return b.state().threads[dim]


def get_block_extent(dim: int = 0) -> int:
    return int(b.state().grid[dim])  # type: ignore[attr-defined]
