"""Which tiles are held in registers: those that every statement takes element by element, as they lie. And
which copies of pipelined loops can be done ahead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from megatile.core.dtypes import itemsize
from megatile.core.expr import Symbol, constant, symbols
from megatile.ir import nodes as n
from megatile.ir.expr import has_loads
from megatile.ir.launch import ROOT
from megatile.ir.program import Program
from megatile.lowering import swizzle
from megatile.targets.common.scalars import lets
from megatile.targets.cuda.layouts import Mma, SharedLayout, grid, mma
from megatile.targets.interpret.places import Name


def is_whole(region: n.Region, shape: tuple[int, ...]) -> bool:
    return all(
        constant(d.start) == 0 and d.extent is not None and constant(d.extent) == size
        for d, size in zip(region.dims, shape, strict=True)
    )


def by_tensor_cores(node: n.Gemm, names: dict[str, Name]) -> bool:
    """Whether tensor cores multiply the factors of a product."""
    return swizzle.by_tensor_cores(
        node, {r.source: names[r.source].binding for r in (node.a, node.b, node.c)}
    )


class Fragments:
    """The layouts of the tiles in registers, by name."""

    def __init__(self, program: Program, names: dict[str, Name], size: Callable[[int], int]):
        self.names, self.size = names, size
        changed = {x.base for x in names.values() if x.binding.owner or x.reshaped is not None}
        self.shapes = {
            a.name: a.shape
            for a in n.walk(program.body)
            if isinstance(a, n.Alloc) and a.level == "registers" and not a.flag and a.shape and all(a.shape)
            and a.name not in changed and size(names[a.name].owner_depth) > 1
        }  # fmt: skip
        found = n.with_scales(program.body, ROOT, (n.Parallel,))
        every = [(node, program.launch.depth(scale)) for scale, node in found]
        for node, depth in every:
            self._visit(node, depth)
        self.group = {name: name for name in self.shapes}
        self.products: list[n.Gemm] = [x for x, _ in every if isinstance(x, n.Gemm)]
        self.reduced = {x.source.source for x, _ in every if isinstance(x, n.Reduce)}
        for node, _ in every:
            self._link(node)
        nests = [x for x, _ in every if isinstance(x, n.Parallel)]
        self.scattered: set[str] = set().union(*map(self._scattered, nests))
        self.layouts = self._layouts()
        for node, _ in every:
            if isinstance(node, n.Reduce) and node.source.source in self.layouts:
                layout = self.layouts[node.source.source]
                if isinstance(layout, Mma) and layout.wide > 1:
                    del self.layouts[node.source.source]
        for gemm in self.products:
            if gemm.a.source in self.layouts and not self._is_factor(gemm):
                del self.layouts[gemm.a.source]

    def _is_factor(self, node: n.Gemm) -> bool:
        """Whether the warps that have rows of the first factor in registers have those of the sums too."""
        a, c = self.layouts[node.a.source], self.layouts.get(node.c.source)
        return (
            isinstance(a, Mma) and isinstance(c, Mma) and by_tensor_cores(node, self.names)
            and (a.wide, a.high, a.busy) == (1, c.high, c.busy)
        )  # fmt: skip

    def _visit(self, node: n.Node, depth: int) -> None:
        """Drop what this statement takes in another way than element by element."""
        inside = n.walk(node.body) if isinstance(node, n.Parallel) else (node,)
        accesses = [(one, region) for one in inside for _, region in n.regions(one)]
        for one, region in accesses:
            shape = self.shapes.get(region.source)
            if shape is None:
                continue
            fits = self.names[region.source].owner_depth == depth
            if isinstance(node, n.Parallel):
                index = tuple(d.start for d in region.dims)
                fits &= index == tuple(Symbol(v) for v in node.vars) and not node.in_step
                fits &= tuple(constant(e) for e in node.extents) == shape
                fits &= not (isinstance(one, n.Atomic) and one.target == region.source)
            else:
                fits &= is_whole(region, shape) and self._suits(one, region, shape)
            if not fits:
                self.shapes.pop(region.source, None)

    def _suits(self, node: n.Node, region: n.Region, shape: tuple[int, ...]) -> bool:
        if isinstance(node, n.Copy):
            return node.dst is None and node.src is None and node.to.source != node.source.source
        if isinstance(node, n.Gemm):
            if region == node.a and not node.transpose_a and region not in (node.b, node.c):
                return len(shape) == 2 and self.names[region.source].binding.dtype in ("f16", "bf16")
            return region == node.c and region not in (node.a, node.b) and len(shape) == 2
        if isinstance(node, n.Reduce):
            return region == node.source and len(shape) == 2 and node.dim == 1
        return isinstance(node, n.Fill)

    def _link(self, node: n.Node) -> None:
        """Tiles that meet in one statement lie the same way."""
        if isinstance(node, n.Parallel):
            touched = {r.source for one in n.walk(node.body) for _, r in n.regions(one)}
        elif isinstance(node, n.Copy):
            touched = {node.to.source, node.source.source}
            if (
                len(touched & set(self.shapes)) == 2
                and self.shapes[node.to.source] != self.shapes[node.source.source]
            ):
                self.shapes.pop(node.to.source, None)
        else:
            return
        held = sorted(touched & set(self.shapes))
        for name in held[1:]:
            first, other = self.group[held[0]], self.group[name]
            self.group = {k: first if v == other else v for k, v in self.group.items()}

    def _scattered(self, node: n.Parallel) -> set[str]:
        """The tiles that a nest takes together with elements of memories along their rows."""
        accesses = [access for one in n.walk(node.body) for access in n.regions(one)]
        regions = [r for _, r in accesses]
        far = [
            r for kind, r in accesses
            if r.source not in self.shapes and not (kind == "read" and self._is_row(r, node.vars[-1]))
        ]  # fmt: skip
        along = {node.vars[-1], *lets(node.body)}
        meets = any(symbols(e) & along for r in far for e in r.expressions())
        return {r.source for r in regions if r.source in self.shapes} if meets else set()

    def _is_row(self, region: n.Region, last: str) -> bool:
        """Whether neighbours of a row read neighbours of a shared tile, which are loaded at once."""
        alloc, dims = self.names[region.source].alloc, region.dims
        if alloc is None or alloc.scale != "block" or itemsize(alloc.dtype) != 4 or alloc.shape[-1] % 4:
            return False
        return dims[-1].start == Symbol(last) and not any(last in symbols(d.start) for d in dims[:-1])

    def _vector(self, members: set[str]) -> int:
        """Elements of 16 bytes."""
        return 16 // min(itemsize(self.names[name].binding.dtype) for name in members)

    def _layouts(self) -> dict[str, SharedLayout]:
        found: dict[str, SharedLayout] = {}
        for name, shape in self.shapes.items():
            members = {k for k in self.shapes if self.group[k] == self.group[name]}
            gemms = [g for g in self.products if g.c.source in members]
            size = self.size(self.names[name].owner_depth)
            fast = bool(gemms) and all(by_tensor_cores(g, self.names) for g in gemms)
            held = any(g.a.source in self.shapes for g in gemms)
            by_warps = mma(shape, size, held or bool(members & self.reduced)) if fast else None
            vector = 1 if gemms or members & self.scattered else self._vector(members)
            found[name] = by_warps or grid(shape, size, vector)
        return found


# --- copies ahead ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Staged:
    """A loop, and the copies of its body that are done ahead."""

    loop: n.Loop
    copies: tuple[n.Copy, ...]


def staged(program: Program, allocs: dict[str, n.Alloc]) -> Iterator[Staged]:
    """Loops whose copies can be done ahead: of tensors they do not write, into tiles of their own."""
    every = list(n.walk(program.body))
    uses = Counter(region.source for node in every for _, region in n.regions(node))
    uses.update(node.source for node in every if isinstance(node, n.Reshape))
    uses.update(name for name, alloc in allocs.items() if alloc.parts)
    tensors = {p.name for p in program.params}
    for node in every:
        by = constant(node.step) if isinstance(node, n.Loop) else None
        if (
            not isinstance(node, n.Loop)
            or node.kind != "pipelined"
            or node.stages < 2
            or by is None
            or by < 1
        ):
            continue
        touched = [(a, r.source) for one in n.walk(node.body) for a, r in n.regions(one)]
        written = {name for access, name in touched if access != "read"}
        own = {name for one in n.walk(node.body) for name in lets((one,))}
        found = []
        for at, one in enumerate(node.body):
            if not isinstance(one, n.Copy) or one.dst is not None or one.src is not None:
                continue
            tile, source = allocs.get(one.to.source), one.source.source
            before = {r.source for x in n.walk(node.body[:at]) for _, r in n.regions(x)}
            inside = [name for _, name in touched if name == one.to.source]
            if (
                tile is None or source not in tensors - written or one.to.source in before
                or len(inside) != uses[one.to.source] or not is_whole(one.to, tile.shape)
                or sum(a != "read" and name == one.to.source for a, name in touched) != 1
                or any(symbols(e) & own or has_loads(e) for e in one.source.expressions())
            ):  # fmt: skip
                continue
            found.append(one)
        if found:
            yield Staged(node, tuple(found))
