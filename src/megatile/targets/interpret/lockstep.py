"""Blocks of a launch that do not talk to each other, in lockstep: every statement once, on arrays that have
the grid of the launch in front.

Which launches qualify is read off the text (``independent``). Mistakes are watched for: two units touch one
element, an index is outside, or something is read unwritten. Then everything is put back and the units run
one by one, which says what is wrong and where.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from megatile.core.dtypes import accumulator, dtype, numpy_dtype
from megatile.core.expr import Const, Expr, Symbol
from megatile.core.operations import OPERATIONS, REDUCTIONS, cast
from megatile.core.progress import tell
from megatile.ir import nodes as n
from megatile.ir.expr import Load
from megatile.targets.interpret.errors import RunError
from megatile.targets.interpret.resolve import Axis
from megatile.targets.interpret.storage import StoredArray
from megatile.targets.interpret.windows import (
    Doubt,
    GridIndex,
    LockstepTile,
    Watch,
    products,
    put_at,
    window_of,
)

if TYPE_CHECKING:
    from megatile.targets.interpret.machine import Interpreter

CHUNK_BYTES = 1 << 26
"""Tiles of the units that run at once."""


class Lockstep:
    """All units of a region; ``vars`` (first those of ``outer``, as of loops around the region), ``path`` and
    ``shape`` are what expressions are evaluated in."""

    def __init__(self, machine: Interpreter, node: n.ScaleRegion, outer: dict[str, Any]):
        self.machine, self.node, self.outer = machine, node, outer
        self.scales = machine.launch.scales[: machine.launch.depth(node.scale)]
        self.vars: dict[str, Any] = {}
        self.tiles: dict[str, LockstepTile] = {}
        self.watch: dict[str, Watch] = {}
        self.names: tuple[str, ...] = ()
        self.extents: tuple[int, ...] = ()
        self.mask: Any = None
        """For which units and iterations an expression is being evaluated; None: for all."""

    def run(self) -> bool:
        """Run all units; False, with everything as before, if one makes a mistake, to be told one by one."""
        saved = {
            name: (s.array.copy(), None if s.written is None else s.written.copy())
            for name, s in self._tensors()
            if name not in self.machine.sharing.constant
        }
        try:
            chunks = list(self._chunks())
            for number, grid in enumerate(chunks):
                tell(f"running {self.machine.program.name}", number, len(chunks))
                self._enter(grid)
                self.body(self.node.body)
        except (Doubt, RunError):  # which the units then meet again, one by one
            for name, storage in self._tensors():
                if name in saved:
                    storage.array[...], storage.written = saved[name]
            return False
        return True

    def _tensors(self) -> Iterator[tuple[str, StoredArray]]:
        places = self.machine.places
        return ((p.name, places.frame[p.name, ()]) for p in self.machine.program.params)

    def _chunks(self) -> Iterator[list[tuple[int, int]]]:
        """Yield the grid, its slowest dimension first, in pieces whose tiles are not too large."""
        extents = [e for scale in self.scales for e in reversed(scale.extents)]
        allocs = [one for one in n.walk(self.node.body) if isinstance(one, n.Alloc)]
        each = sum(math.prod(a.shape) * numpy_dtype(a.dtype).itemsize for a in allocs)
        longest = max(range(len(extents)), key=lambda d: extents[d])
        rest = math.prod(extents) // extents[longest]
        most = max(CHUNK_BYTES // max(each * rest, 1), 1)
        for low in range(0, extents[longest], most):
            pieces = [(0, e) for e in extents]
            pieces[longest] = (low, min(low + most, extents[longest]))
            yield pieces

    def _enter(self, pieces: list[tuple[int, int]]) -> None:
        self.grid = tuple(high - low for low, high in pieces)
        rank, at = len(pieces), 0
        self._indices: list[tuple[list[Any], tuple[int, ...]]] = []
        for scale in self.scales:
            coords = []
            for _ in scale.extents:
                shape = [1] * rank
                shape[at] = -1
                coords.append(np.arange(*pieces[at]).reshape(shape))
                at += 1
            self._indices.append((list(reversed(coords)), scale.extents))
        flat: Any = 0
        for coords, extents in self._indices:
            flat = flat * math.prod(extents) + GridIndex(coords, extents).flat
        self.numbers = np.broadcast_to(flat, self.grid)
        self.vars, self.tiles = dict(self.outer), {}
        self._iterate((), ())

    def _iterate(self, names: tuple[str, ...], extents: tuple[int, ...]) -> None:
        """Elementwise iterations stand behind the grid."""
        self.names, self.extents = names, extents
        self.shape = (*self.grid, *extents)
        more = (1,) * len(extents)
        self.path = tuple(
            GridIndex([c.reshape(c.shape + more) for c in coords], own) for coords, own in self._indices
        )
        for d, (name, extent) in enumerate(zip(names, extents, strict=True)):
            shape = [1] * len(self.shape)
            shape[len(self.grid) + d] = extent
            self.vars[name] = np.arange(extent).reshape(shape)

    def value(self, expr: Expr) -> Any:
        return expr.value if isinstance(expr, Const) else self.machine.compile(expr)(self)

    def divided(self, chosen: Any, *sides: Callable[[Any], Any]) -> list[Any]:
        """Return each side, computed for the units and iterations where the condition holds, or does not."""
        outer, found = self.mask, []
        for mine, side in zip((chosen, np.logical_not(chosen)), sides, strict=True):
            self.mask = mine if outer is None else outer & mine
            found.append(side(self))
        self.mask = outer
        return found

    def body(self, body: tuple[n.Node, ...]) -> None:
        for node in body:
            self.machine.steps, self.machine.running = self.machine.steps + 1, node
            _STATEMENTS[type(node)](self, node)

    # --- statements ---------------------------------------------------------------------------------

    def alloc(self, node: n.Alloc) -> None:
        self.tiles[node.name] = LockstepTile(node.shape, node.dtype, len(self.grid))

    def let(self, node: n.Let) -> None:
        self.vars[node.name] = self.value(node.value)

    def loop(self, node: n.Loop) -> None:
        start, stop, step = (int(self.value(e)) for e in (node.start, node.stop, node.step))
        if step == 0:
            raise Doubt
        for index in range(start, stop, step):
            self.machine.check_time()
            self.vars[node.var] = index
            self.body(node.body)

    def parallel(self, node: n.Parallel) -> None:
        extents = tuple(int(self.value(e)) for e in node.extents)
        if any(e < 0 for e in extents):
            raise Doubt
        before = {name: v for name, v in self.vars.items() if isinstance(v, np.ndarray)}
        for name, value in before.items():
            self.vars[name] = value.reshape(value.shape + (1,) * len(extents))
        if 0 not in extents:
            self._iterate(node.vars, extents)
            self.body(node.body)
        self._iterate((), ())
        self.vars |= before

    def store(self, node: n.Store) -> None:
        value = np.asarray(self.value(node.value))
        tile = self.tiles.get(node.target)
        whole = tile is not None and self._is_whole(node.index, tile.shape)
        if tile is not None and whole:
            self._set(tile, self._grown(value, len(self.grid) + len(self.extents)))
            return
        array, index, valid = self._elements(node.target, node.index, write=True)
        data = cast(np.broadcast_to(value, self.shape), self._dtype(node.target))
        array[index] = data if valid is None else data[valid]

    def copy(self, node: n.Copy) -> None:
        source, target = self.read(node.source), self._extents(node.to)
        self.write(node.to, self._reshaped(source, self._extents(node.source), target))

    def fill(self, node: n.Fill) -> None:
        value = np.asarray(self.value(node.value))
        extents = self._extents(node.to)
        grid = value.shape if value.ndim else (1,) * len(self.grid)
        self.write(node.to, np.broadcast_to(value.reshape(grid + (1,) * len(extents)), (*grid, *extents)))

    def gemm(self, node: n.Gemm) -> None:
        a, b = self._matrix(node.a), self._matrix(node.b)
        a = a.swapaxes(-1, -2) if node.transpose_a else a
        b = b.swapaxes(-1, -2) if node.transpose_b else b
        extents = self._extents(node.c)
        if a.shape[-1] != b.shape[-2] or (a.shape[-2], b.shape[-1]) != extents[-2:]:
            raise Doubt
        tile, wide = self.tiles.get(node.c.source), numpy_dtype(accumulator(dtype(a.dtype)))
        if tile is not None and not node.clear and tile.shape == extents and numpy_dtype(tile.dtype) == wide:
            if not tile.written.all():
                raise Doubt
            tile.add_product(a.astype(wide), b.astype(wide))
            return
        result = products(a, b)
        if not node.clear:
            result += self._matrix(node.c).astype(result.dtype, copy=False)
        self.write(node.c, result.reshape(result.shape[:-2] + extents) if len(extents) > 2 else result)

    def _matrix(self, region: n.Region) -> Any:
        data, extents = self.read(region), self._extents(region)
        return data.reshape(data.shape[: len(self.grid)] + extents[-2:])

    def reduce(self, node: n.Reduce) -> None:
        data, extents = self.read(node.source), self._extents(node.to)
        result = OPERATIONS[node.op].meaning(data, axis=node.dim - len(self._extents(node.source)))
        result = result.reshape(result.shape[: len(self.grid)] + extents)
        if not node.clear:
            old = self.read(node.to).astype(result.dtype)
            result = OPERATIONS[REDUCTIONS[node.op.removeprefix("abs")]].meaning(result, old)
        self.write(node.to, result)

    def cumsum(self, node: n.Cumsum) -> None:
        axis = node.dim - len(self._extents(node.source))
        result = OPERATIONS["cumsum"].meaning(self.read(node.source), axis=axis, reverse=node.reverse)
        self.write(node.to, result)

    # --- regions ------------------------------------------------------------------------------------

    def _dtype(self, name: str) -> str:
        tile = self.tiles.get(name)
        return tile.dtype if tile is not None else self._storage(name).dtype

    def _storage(self, name: str) -> StoredArray:
        return self.machine.places.frame[name, ()]

    def _extents(self, region: n.Region) -> tuple[int, ...]:
        return tuple(int(self.value(e)) for e in region.extents)

    def _reshaped(self, data: Any, mine: tuple[int, ...], wanted: tuple[int, ...]) -> Any:
        if mine == wanted:
            return data
        if [e for e in mine if e != 1] != [e for e in wanted if e != 1]:
            raise Doubt
        return data.reshape(data.shape[: len(self.grid)] + wanted)

    def read(self, region: n.Region) -> Any:
        """Return the elements of a region, the grid in front (1 where all units read the same)."""
        tile = self.tiles.get(region.source)
        if tile is None:
            return self._box(region, write=None)
        index, inside = self._tile_index(region, tile)
        everywhere = (Ellipsis, *index)
        if not inside or not tile.written[everywhere].all():
            raise Doubt
        return tile.array[everywhere]

    def write(self, region: n.Region, data: Any) -> None:
        tile = self.tiles.get(region.source)
        if tile is None:
            self._box(region, write=cast(data, self._dtype(region.source)))
            return
        index, inside = self._tile_index(region, tile)
        if not inside:
            raise Doubt
        if data.shape[len(self.grid) :] == tile.shape and all(isinstance(i, slice) for i in index):
            self._set(tile, data)
            return
        self._own(tile)
        everywhere = (Ellipsis, *index)
        tile.array[everywhere] = cast(data, tile.dtype)
        tile.written[everywhere] = True

    def _set(self, tile: LockstepTile, data: Any) -> None:
        """The whole tile becomes ``data``, which may be a window on a tensor that nothing writes."""
        array = cast(data, tile.dtype)
        window = array is data or array.base is not None
        tile.array, tile.owned = (
            (array.copy() if window and not self._is_constant(data) else array),
            not window,
        )
        tile.written[...] = True

    def _is_constant(self, data: Any) -> bool:
        return any(
            np.may_share_memory(data, s.array)
            for name, s in self._tensors()
            if name in self.machine.sharing.constant
        )

    def _own(self, tile: LockstepTile) -> None:
        """Every unit's own elements, to be changed in place."""
        full = (*self.grid, *tile.shape)
        if tile.array is None:
            tile.array = np.zeros(full, numpy_dtype(tile.dtype))
        elif not tile.owned or tile.array.shape != full:
            tile.array = np.broadcast_to(tile.array, full).copy()
        tile.owned = True

    def _tile_index(self, region: n.Region, tile: LockstepTile) -> tuple[tuple[Any, ...], bool]:
        index: list[Any] = []
        inside = True
        for dim, length in zip(region.dims, tile.shape, strict=True):
            start = int(self.value(dim.start))
            size = 1 if dim.extent is None else int(self.value(dim.extent))
            inside = inside and start >= 0 and start + size <= length
            index.append(start if dim.extent is None else slice(start, start + size))
        return tuple(index), inside

    def _box(self, region: n.Region, write: Any) -> Any:
        """Return a region of a tensor for every unit: a strided window where it is inside, else its
        elements."""
        array, extents = self._storage(region.source).array[0], self._extents(region)
        starts = [np.asarray(self.value(d.start)) for d in region.dims]
        sizes = [None if d.extent is None else int(self.value(d.extent)) for d in region.dims]
        fits = [
            s.min() >= 0 and s.max() + (1 if z is None else z) <= length
            for s, z, length in zip(starts, sizes, array.shape, strict=True)
        ]
        inside = all(fits)
        if inside and all(z != 0 for z in sizes):
            view = window_of(array, starts, sizes, self.grid, keep=write is not None)
            if view is not None:
                self._watched(
                    region.source, lambda a: window_of(a, starts, sizes, self.grid, True), write is not None
                )
                if write is None:
                    return view if region.source in self.machine.sharing.constant else view.copy()
                view[...] = write
                return None
        for number, (fit, start, size, length) in enumerate(
            zip(fits, starts, sizes, array.shape, strict=True)
        ):
            if not fit and size is not None and region.source not in self.machine.padded:
                self._over_the_edge(region, number, start, size, length)
        return self._points(region.source, array, starts, sizes, extents, write)

    def _over_the_edge(self, region: n.Region, number: int, start: Any, size: int, length: int) -> None:
        """Beyond tensors are zeros, unless the run is strict; a slice that reaches there is noted."""
        anchored, first = (
            region.dims[number].anchored,
            int(start[(start < 0) | (start + size > length)].flat[0]),
        )
        outside = bool(size) and bool(((start >= length) | (start + size <= 0)).any())
        if self.machine.strict_bounds and (outside or not anchored):
            raise Doubt
        if not anchored:
            self.machine.access.note_edge(
                region, Axis(number, first, size, False), (first, first + size), length
            )

    def _points(
        self, name: str, array: Any, starts: list[Any], sizes: list[Any], extents: tuple[int, ...], write: Any
    ) -> Any:
        """Return a region by the indices of its elements; over the edge are zeros."""
        shape, rank, at = (*self.grid, *extents), len(extents), 0
        index, valid = [], np.ones(shape, bool)
        for start, size, length in zip(starts, sizes, array.shape, strict=True):
            base = start.reshape(start.shape + (1,) * rank) if start.ndim else start
            if size is not None:
                base = base + np.arange(size).reshape((-1,) + (1,) * (rank - at - 1))
                at += 1
            elif name not in self.machine.padded and (start.min() < 0 or start.max() >= length):
                raise Doubt
            valid &= (base >= 0) & (base < length)
            index.append(np.broadcast_to(base, shape))
        picked = tuple(i[valid] for i in index)
        owner = np.broadcast_to(self.numbers.reshape(self.grid + (1,) * rank), shape)[valid]
        self._watched(
            name, lambda a: a[picked], write is not None, owner, lambda a, v: a.__setitem__(picked, v)
        )
        if write is not None:
            array[picked] = np.broadcast_to(write, shape)[valid]
            return None
        data = np.zeros(shape, array.dtype)
        data[valid] = array[picked]
        return data

    # --- elements -----------------------------------------------------------------------------------

    def _grown(self, value: Any, rank: int) -> Any:
        value = value if value.ndim == rank else value.reshape((1,) * (rank - value.ndim) + value.shape)
        return np.broadcast_to(value, value.shape[: len(self.grid)] + self.extents)

    def _is_whole(self, index: tuple[Expr, ...], shape: tuple[int, ...]) -> bool:
        """Return whether iterations go over all of a tile, dimension by dimension."""
        names = tuple(i.name if isinstance(i, Symbol) else "" for i in index)
        return bool(self.names) and names == self.names and shape == self.extents

    def load(self, expr: Load) -> Any:
        tile = self.tiles.get(expr.source)
        if tile is not None and self._is_whole(expr.index, tile.shape) and tile.written.all():
            return tile.array
        array, index, valid = self._elements(expr.source, expr.index, write=False)
        data = array[index]
        if valid is not None:
            found = np.zeros(valid.shape, data.dtype)
            found[valid] = data
            return found
        return data.item() if data.ndim == 0 and data.dtype.kind in "iub" else data

    def _elements(self, name: str, index: tuple[Expr, ...], write: bool) -> tuple[Any, tuple[Any, ...], Any]:
        """Return an array, where in it the elements of all units and iterations are, and which of them there
        are (None: all)."""
        tile = self.tiles.get(name)
        values = [np.asarray(self.value(i)) for i in index]
        lengths = tile.shape if tile is not None else self._storage(name).shape
        inside = [(v >= 0) & (v < length) for v, length in zip(values, lengths, strict=True)]
        valid = self.mask
        if name in self.machine.padded and not all(map(np.all, inside)):
            valid = reduce(np.logical_and, inside, True if valid is None else valid)
        if not all(np.all(i if valid is None else i | ~valid) for i in inside):
            raise Doubt
        places = [
            np.arange(e).reshape((-1,) + (1,) * (len(self.shape) - d - 1)) for d, e in enumerate(self.grid)
        ]
        picked = tuple(values) if tile is None else (*places, *values)
        full = np.broadcast_shapes(self.shape, *(v.shape for v in values)) if write else self.shape
        if tile is None or valid is not None:
            picked = tuple(np.broadcast_to(v, full) for v in picked)
        if valid is not None:
            valid = np.broadcast_to(valid, full)
            picked = tuple(v[valid] for v in picked)
        if tile is None:
            owner = np.broadcast_to(self.numbers.reshape(self.grid + ((1,) * len(self.extents))), full)
            owner = owner if valid is None else owner[valid]
            self._watched(name, lambda a: a[picked], write, owner, put_at(picked))
            return self._storage(name).array[0], picked, valid
        self._own(tile)
        same = all(set(v.shape[: len(self.grid)]) <= {1} for v in values)
        if write and not same:
            tile.written = np.broadcast_to(tile.written, (*self.grid, *tile.shape)).copy()
        alone = tile.written.shape != tile.array.shape  # all units have written the same
        seen = (
            tuple(np.zeros_like(p) for p in picked[: len(self.grid)]) if alone else picked[: len(self.grid)]
        )
        seen += picked[len(self.grid) :]
        if write:
            tile.written[seen] = True
        elif not tile.written[seen].all():
            raise Doubt
        return tile.array, picked, valid

    def _watched(
        self, name: str, at: Callable[[Any], Any], write: bool, owner: Any = None, put: Any = None
    ) -> None:
        """Note who touches the elements; two units may not, if one of them writes. Reads need values."""
        if not self.machine.checks:
            return
        written = self._storage(name).written
        if written is not None:
            if not write and not at(written[0]).all():
                raise Doubt
            if write:
                (put or (lambda a, v: at(a).__setitem__(..., v)))(written[0], True)
        if name in self.machine.sharing.constant:
            return
        watch = self.watch.get(name)
        if watch is None:
            watch = self.watch[name] = Watch(self._storage(name).shape)
        if owner is None:
            window = at(watch.writer)
            owner = np.broadcast_to(
                self.numbers.reshape(self.grid + (1,) * (window.ndim - len(self.grid))), window.shape
            )
        watch.touch(at, owner, write, put or (lambda a, v: at(a).__setitem__(..., v)))


_STATEMENTS: dict[type[n.Node], Callable[[Lockstep, Any], None]] = {
    n.Alloc: Lockstep.alloc,
    n.Let: Lockstep.let,
    n.Loop: Lockstep.loop,
    n.Parallel: Lockstep.parallel,
    n.Store: Lockstep.store,
    n.Copy: Lockstep.copy,
    n.Fill: Lockstep.fill,
    n.Gemm: Lockstep.gemm,
    n.Reduce: Lockstep.reduce,
    n.Cumsum: Lockstep.cumsum,
}
