"""``T.Kernel`` in TileLang's spelling; a program may have several, one after the other."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import partial, reduce
from itertools import product
from linecache import getline
from typing import Any

from megatile.compat.tilelang import buffers as b
from megatile.compat.tilelang.reducers import check_finalized
from megatile.compat.tilelang.temporaries import with_temporaries
from megatile.compat.tilelang.threads import get_thread_binding, thread_variables, with_threads
from megatile.core.errors import Place
from megatile.core.expr import Expr, rebuild
from megatile.ir import nodes as n
from megatile.ir.expr import Coord, Load, Rank
from megatile.ir.launch import ROOT, Param
from megatile.ir.passes.driver import rewrite_expressions, rewrite_nodes
from megatile.language.tile import loops
from megatile.language.tile.builder import Body, current
from megatile.language.tile.errors import ProgramError
from megatile.language.tile.launch import CLUSTER_SIZE, clusters_of, instance_of, launch_of
from megatile.language.tile.memory import memory_layer
from megatile.language.tile.program import finished
from megatile.language.tile.scalars import Coordinate, Value, as_expr, operate


class Layout:
    """Where elements lie in memory; data does not depend on it."""

    name = "layout"

    def __init__(self, shape: Any = (), forward: Any = None, *_: Any, **__: Any):
        self.shape, self.forward = shape, forward


LAYOUTS = {
    name: type(name, (Layout,), {"name": name})
    for name in "make_swizzled_layout make_volta_swizzled_layout make_wgmma_swizzled_layout "
    "make_linear_layout make_full_bank_swizzled_layout make_half_bank_swizzled_layout "
    "make_quarter_bank_swizzled_layout Layout Fragment make_cutlass_metadata_layout "
    "make_mma_swizzle_layout make_tcgen05mma_swizzled_layout make_gemm_fragment_8x8".split()
}
"""By TileLang's names."""


def hint(word: str) -> Any:
    """A function that keeps its word and arguments as a statement that changes no data."""

    def keep(*arguments: Any, **keywords: Any) -> None:
        texts = [_text(a) for a in arguments] + [f"{k}={_text(v)}" for k, v in keywords.items()]
        current().emit(n.Hint, word=word, text=", ".join(texts))

    keep.__name__ = word
    keep.__doc__ = f"``T.{word}``: how it is to be done, not what."
    return keep


class LayoutError(ProgramError, ValueError):
    """A layout that puts two elements into one place."""


MAX_PLACES = 1 << 16
"""Elements of a layout that is looked through for two in one place; larger ones are taken as they are."""


def annotate_layout(layouts: Any, *_: Any, **__: Any) -> None:
    """``T.annotate_layout({tile: layout})``: where elements lie; no two of a shared tile in one place."""
    for tile, layout in layouts.items():
        shape = [b.resolved(e, current().bound) for e in b.extents_of(getattr(layout, "shape", ()))]
        forward = getattr(layout, "forward", None)
        if callable(forward) and all(isinstance(e, int) for e in shape) and tile.scope() == "shared.dyn":
            _check_injective(tile.name, shape, forward)
    hint("annotate_layout")(layouts)


def _check_injective(name: str, shape: list[int], forward: Any) -> None:
    if math.prod(shape) > MAX_PLACES:
        return
    found: dict[Any, tuple[int, ...]] = {}
    for index in product(*map(range, shape)):
        place = forward(*index)
        place = tuple(place) if isinstance(place, (list, tuple)) else (place,)
        if not all(isinstance(p, int) for p in place):
            return
        if place in found:
            raise LayoutError(
                f"the layout of shared buffer `{name}` must be injective: {found[place]} and {index} both "
                f"map to physical coordinates {place}",
                advice="give each element a place of its own",
            )
        found[place] = index


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{_text(k)}: {_text(v)}" for k, v in value.items())
    name = getattr(value, "name", None)
    return (
        str(name)
        if isinstance(name, str)
        else str(value)
        if isinstance(value, (int, float, str, bool))
        else type(value).__name__
    )


class Kernel:
    """``with T.Kernel(gx, gy, threads=128) as (bx, by):``."""

    def __init__(self, *grid: Any, threads: Any = None, is_cpu: bool = False, prelude: Any = None,
                 cluster_dims: Any = None):  # fmt: skip
        self.grid, self.threads = grid, threads
        given = () if cluster_dims is None else b.extents_of(cluster_dims)
        self.cluster = given if math.prod(given) > 1 else ()
        self.alone = given if not self.cluster else ()

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
        threads = (1 if state.cpu else 128) if self.threads is None else self.threads
        state.threads = tuple(int(b.resolved(e, builder.bound)) for e in b.extents_of(threads))
        scales: dict[str, Any] = {"device": state.ranks} if state.ranks > 1 else {}
        scales |= self.extents(grid) | {"threads": math.prod(state.threads)}
        builder.instance = instance_of(builder.machine, scales)
        builder.launch = launch_of(builder.instance)
        known = {*builder.bound, *thread_variables(state.threads)}
        builder.bodies[0].variables |= known
        builder.names |= known
        dispatch = builder.launch.dispatch
        state.grid = grid if self.cluster else builder.launch.extents(dispatch)
        state.coords = tuple(Value(Coord(dispatch, a)) for a in range(len(state.grid)))
        if self.cluster:
            state.cluster = (*self.cluster, 1, 1, 1)[: len(grid)]
            name = builder.machine.scale("cluster").name
            state.coords = tuple(
                Value(Coord(name, a)) * size + Value(Coord(dispatch, a))
                if size > 1
                else Value(Coord(name, a))
                for a, size in enumerate(state.cluster)
            )
            return state.coords[0] if len(grid) == 1 else state.coords
        state.cluster = ()
        if self.alone:
            hint("cluster_dims")(*self.alone)
        return Coordinate(Coord(dispatch, 0)) if len(state.grid) == 1 else state.coords

    def extents(self, grid: tuple[Any, ...]) -> dict[str, Any]:
        """Units of the block and of larger scales."""
        blocks = tuple(int(e) for e in grid)
        if not self.cluster:
            return {"block": blocks}
        size = (*(int(e) for e in self.cluster), 1, 1, 1)[: len(blocks)]
        return clusters_of({CLUSTER_SIZE: size, "block": blocks})[0]

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None:
            current().close_implied()
            self.finish()

    def finish(self) -> None:
        """The statements so far are one Program; the builder is ready for the next launch."""
        builder, state = current(), b.state()
        check_finalized()
        body = tuple(builder.bodies[0].nodes)
        if builder.bound:
            body = rewrite_nodes(body, lambda node: with_numbers(node, builder.bound))
        state.home = builder.launch.dispatch if builder.launch else state.home
        state.registers = memory_layer(builder, "l0")
        state.arrivals = {one.tile.name: min(one.counts) for one in state.barriers}
        body = with_threads(with_temporaries(body, state.local), state)
        leading: tuple[int, ...] = ()
        if state.ranks > 1:
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


def rank_of_device() -> Expr:
    return Coord(current().machine.scale("device").name, 0)


def with_ranks(body: tuple[n.Node, ...], state: b.KernelState) -> tuple[n.Node, ...]:
    """Every access to a tensor gets the rank it is of; those of a peer have theirs."""
    rank = rank_of_device()
    dims = {name: len(tensor.shape) for name, tensor in state.tensors.items()}
    for node in n.walk(body):
        if isinstance(node, n.Reshape) and node.source in dims:
            dims[node.name] = len(node.shape)

    def load(expr: Expr) -> Expr:
        if isinstance(expr, Load) and dims.get(expr.source) == len(expr.index):
            return replace(expr, index=(rank, *expr.index))
        return expr

    def region(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(region(one) for one in value)
        if isinstance(value, n.Region) and dims.get(value.source) == len(value.dims):
            return replace(value, dims=(n.Dim(rank), *value.dims))
        return value

    def placed(node: n.Node) -> n.Node:
        node = rewrite_expressions(node, lambda e: rebuild(e, load))
        if isinstance(node, n.Reshape) and node.source in dims:
            return replace(node, shape=(state.ranks, *node.shape))
        if isinstance(node, (n.Store, n.Atomic)) and dims.get(node.target) == len(node.index):
            return replace(node, index=(rank, *node.index))
        names = [f.name for f in fields(node) if f.metadata.get("access")]
        return replace(node, **{name: region(getattr(node, name)) for name in names}) if names else node

    return rewrite_nodes(body, placed)


def get_thread_bindings() -> list[Value]:
    return [get_thread_binding(d) for d in range(len(b.state().threads))]


def get_block_binding(dim: int = 0) -> Any:
    return b.state().coords[dim]


def get_block_bindings() -> list[Any]:
    return list(b.state().coords)


def get_thread_extent(dim: int = 0) -> int:
    return b.state().threads[dim]


def get_block_extent(dim: int = 0) -> int:
    return b.state().grid[dim]


# --- Loops in TileLang's spelling ---------------------------------------------------------------------------


def _values(bounds: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(b.resolved(x, b.current().bound) for x in bounds)


def Parallel(*extents: Any, **_: Any) -> Any:
    """``for i, j in T.Parallel(m, n)``: elementwise code."""
    return loops.Parallel(*_values(extents))


def Pipelined(start: Any, stop: Any = None, num_stages: int = 0, order: Any = None, stage: Any = None,
              sync: Any = None, group: Any = None, **_: Any) -> Any:  # fmt: skip
    """A loop whose copies run ahead by ``num_stages``; order, stage, sync and group are kept as a hint."""
    said = {"order": order, "stage": stage, "sync": sync, "group": group}
    if order and len(set(order)) < len(order):
        raise ProgramError(
            f"T.Pipelined: two statements have the same order in order={list(order)}",
            advice="number the statements of the loop 0, 1, 2, …",
        )
    if any(said.values()):
        hint("pipeline")(**{name: str(value) for name, value in said.items() if value})
    bounds = (start,) if stop is None else (start, stop)
    return loops.Pipelined(*_values(bounds), num_stages=max(int(num_stages or 0), 0))


def _counting(loop: Any) -> Any:
    def count(start: Any, stop: Any = None, step: Any = None, *_: Any, **__: Any) -> Any:
        bounds = (start,) if stop is None else (start, stop)
        return loop(*_values(bounds if step is None else (*((0,) + bounds)[-2:], step)))

    count.__name__ = count.__qualname__ = loop.__name__
    return count


serial, unroll, vectorized = map(_counting, (loops.serial, loops.unroll, loops.vectorized))


def grid(*extents: Any) -> Any:
    """``for i, j in T.grid(m, n)``: loops inside each other."""
    bounds = _values(extents)
    return loops.serial(*bounds) if len(bounds) == 1 else loops.PersistentRange(bounds, 1, 0)


def Persistent(domain: Any, wave_size: Any, index: Any, group_size: Any = 8) -> Any:
    """Tiles of an n-dimensional domain, one for each unit and wave."""
    return loops.PersistentRange(tuple(_values(tuple(domain))), wave_size, index)


# --- Barriers and roles of warp groups ----------------------------------------------------------------------


def nothing(*_: Any, **__: Any) -> None:
    """Orders work of the threads of one block (or hints at how), which run in step here."""


def block_rank_in_cluster() -> Any:
    """The number of this block in its cluster."""
    return Value(Rank("block", current().machine.scale("cluster").name)) if b.state().cluster else 0


def block_of_cluster(number: Any) -> Any:
    """The block with this number in the cluster of this one."""
    first = Value(Rank(current().machine.scale("cluster").name, ROOT)) * math.prod(b.state().cluster)
    return first + number


def cluster_sync() -> None:
    """The blocks of a cluster meet, and see what the others have put."""
    if b.state().cluster:
        builder = current()
        builder.open_implied()
        group = Rank(builder.machine.scale("cluster").name, ROOT)
        builder.emit(
            n.Barrier, scale=builder.plan.dispatch, name="cluster", group=group,
            units=math.prod(b.state().cluster),
        )  # fmt: skip


class AssumeError(ProgramError, RuntimeError):
    """An assumption that the arguments of a launch do not meet."""


def assume(condition: Any = True, *_: Any, **__: Any) -> None:
    """What the kernel may rely on; where extents and numbers alone decide, it is checked."""
    b.state().assumed = True
    condition = b.resolved(condition, current().bound)
    if not isinstance(condition, Value) and not condition:
        place = current().place or Place()
        said = re.search(r"assume\((.*)\)", getline(place.file or "", place.line or 0))
        raise AssumeError(
            f"Assume: {said[1] if said else 'the condition'} does not hold",
            advice="call the kernel with arrays that it is written for",
        )


def _element(barrier: Any) -> tuple[b.Barrier, Any]:
    if isinstance(barrier, b.Barrier):
        return barrier, 0
    if isinstance(barrier, b.BarrierElement):
        return barrier.barrier, barrier.index
    raise ProgramError(
        f"{barrier!r} is not a barrier",
        advice="make it with T.alloc_barrier(arrive_count=...), index it with [i]",
    )


def barrier_arrive(mbarrier: Any, cta_id: Any = None, *_: Any, **__: Any) -> None:
    """All threads of this role arrive, at the barrier of block ``cta_id`` of the cluster if it is given; a
    phase ends when its arrivals are complete."""
    one, index = _element(mbarrier)
    amount = min(min(one.counts), math.prod(b.state().threads))
    to = None if cta_id is None or not b.state().cluster else as_expr(block_of_cluster(cta_id))
    current().emit(n.Signal, flag=one.tile.name, index=(as_expr(index),), dst=to, amount=as_expr(amount))


def barrier_wait(mbarrier: Any, parity: Any = 0, *_: Any) -> None:
    """Until the phase of this parity is complete."""
    one, index = _element(mbarrier)
    current().emit(
        n.Wait, flag=one.tile.name, index=(as_expr(index),), value=as_expr(parity), phase=min(one.counts)
    )


@contextmanager
def ws(*groups: int) -> Iterator[None]:
    """``with T.ws(0):`` the statements of warp groups, which are 128 threads each."""
    current().open_implied()
    thread = get_thread_binding(0)
    mine = [operate("and", thread >= 128 * g, thread < 128 * (g + 1)) for g in groups or (0,)]
    with current().inside(n.If, condition=as_expr(reduce(partial(operate, "or"), mine))):
        yield


def tcgen05_mma_arrive(mbar: Any, *_: Any, **__: Any) -> None:
    """The matrix unit arrives when the products before are done: at once."""
    barrier_arrive(mbar)
