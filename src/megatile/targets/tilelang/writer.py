"""The text of a TileLang kernel: names, expressions, regions, and the kernels of a device."""

from __future__ import annotations

import keyword
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from megatile.core.errors import MegatileError
from megatile.core.expr import OPERATORS, Const, Expr, Symbol, known, simplify
from megatile.ir import nodes as n
from megatile.ir.expr import Coord, Load, Rank
from megatile.ir.passes.resolve_views import without_views
from megatile.ir.program import Program, base_name, bindings
from megatile.language.tile.scalars import as_expr
from megatile.targets.common.errors import CompileError
from megatile.targets.common.scalars import lets
from megatile.targets.cuda.fragments import is_whole
from megatile.targets.cuda.scope import threads
from megatile.targets.tilelang.kernels import DeviceKernel, Kernels
from megatile.targets.tilelang.peers import with_puts
from megatile.targets.tilelang.roles import Roles
from megatile.targets.tilelang.statements import RULES
from megatile.targets.tilelang.units import Places, Units, dtype

_AXES = "xyz"
_FUNCTIONS = {"select": "if_then_else"}
_TAKEN = {"T", "tilelang", *keyword.kwlist, *dir(__builtins__)}


class TileLangWriter:
    def __init__(self, program: Program, unknown: dict[str, tuple[Any, ...]]):
        self.program, self.launch = program, program.launch
        self.unknown = unknown
        self.shapes = {name: binding.shape for name, binding in bindings(program).items()}
        self.kinds = {name: binding.dtype for name, binding in bindings(program).items()}
        self.lines: list[str] = []
        self.depth = 0
        self.names: dict[str, str] = {}
        gemms = [x for x in n.walk(program.body) if isinstance(x, n.Gemm)]
        self.factors = {r.source for x in gemms for r in (x.a, x.b)}
        self.sums = {x.c.source for x in gemms}
        self.fragments: set[str] = set()
        """Fragments of sums lie otherwise than TileLang wants factors: those are copied to shared memory."""
        self.registers: set[str] = set()
        """Tiles without an address."""
        self.units = Units(self.launch)
        self.places = Places(program, self.units)
        self.roles = Roles(program)
        self.workspace: dict[str, n.Alloc] = {}
        """Tiles of a device: tensors that the caller makes."""
        self.scales: tuple[str, ...] = ()
        """The scales around the statement being written, largest first."""
        self.single = False
        """Whether statements of a device are being written, for one block."""
        for key, name in (("@rank", "rank"), ("@thread", "tx")):
            self.names[key] = name

    # --- text -------------------------------------------------------------------------------------

    def add(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    def name(self, name: str) -> str:
        if name not in self.names:
            plain = re.sub(r"\W", "_", name)
            while plain in _TAKEN or plain in self.names.values():
                plain += "_"
            self.names[name] = plain
        return self.names[name]

    def block(self, head: str, body: Callable[[], None]) -> None:
        self.add(head)
        self.depth += 1
        before = len(self.lines)
        body()
        if not any(not line.lstrip().startswith("#") for line in self.lines[before:]):
            self.add("pass")
        self.depth -= 1

    # --- the whole --------------------------------------------------------------------------------

    def source(self) -> str:
        program = self.program
        if all(scale.name != "block" for scale in self.launch.scales):
            raise CompileError(
                f"'{program.name}' has no blocks", advice="build it for a GPU: machine='hgx-a100'"
            )
        for axis in range(len(self.units.grid)):
            self.names[f"@{axis}"] = f"b{_AXES[axis]}" if axis < len(_AXES) else f"b{axis}"
        kernels = Kernels(self.launch)
        launches = kernels.of(program.body)
        for alloc in kernels.allocs:
            self.allocate(alloc)
        self.depth = 1
        for one in launches:
            self.kernel(one)
        body, self.lines, self.depth = self.lines, [], 0
        for symbol in program.symbols:
            self.add(f'{self.name(symbol)} = T.dynamic("{symbol}")')
        if program.symbols:
            self.lines += ["", ""]
        self.add("@T.prim_func")
        self.add(f"def {self.name(program.name)}(")
        for p in program.params:
            shape = self.places.shape(p.name, p.shape)
            self.add(f'    {self.name(p.name)}: T.Tensor({self.shape(shape)}, "{dtype(p.dtype)}"),')
        for made in self.workspace.values():
            self.add(
                f'    {self.name(made.name)}: T.Tensor({self.shape(made.shape)}, "{dtype(made.dtype)}"),'
            )
        self.add("):")
        return self.head() + "\n".join([*self.lines, *body]) + "\n"

    def head(self) -> str:
        text = _HEAD.format(name=self.program.name)
        if self.units.ranks == 1:
            return text + "\n"
        divided = {self.name(p.name): self.places.divided(p.name) for p in self.program.params}
        made = tuple(self.name(name) for name in self.workspace)
        return (
            f"{text}RANKS = {self.units.ranks}\n"
            f"DIVIDED = {divided}  # dimension of which a rank has its part; None: whole\n"
            f"WORKSPACE = {made}  # symmetric tensors of zeros, made by tilelang.tensor\n\n\n"
        )

    def shape(self, shape: tuple[Any, ...]) -> str:
        names = {symbol: self.name(symbol) for symbol in self.program.symbols}
        return f"({', '.join(str(names.get(e, e)) for e in shape)}{',' if len(shape) == 1 else ''})"

    def kernel(self, one: DeviceKernel) -> None:
        """Write one launch: of the grid, or of a single block for statements of a device."""
        count = threads(self.launch, self.launch.depth("block"))
        grid = self.units.grid if one.blocks else (1,)
        if len(grid) > len(_AXES):
            self.refuse(one.body[0], f"has a grid of {len(grid)} dimensions, but TileLang has at most three")
        if one.blocks and self.units.cluster:
            words = f", cluster_dims={(*self.units.cluster, 1, 1)[:3]}"
        else:
            words = ""
        bound = [self.names[f"@{axis}"] for axis in range(len(grid))]
        extents = self.grid_text(grid) if one.blocks else ["1"]
        roles = one.blocks and any(
            isinstance(x, n.ScaleRegion) and x.scale == "warpgroup" for x in n.walk(one.body)
        )
        count = (
            128 * self.launch.count("warpgroup", "block") if roles else max(count, 1) if one.blocks else 128
        )
        head = f"with T.Kernel({', '.join(extents)}, threads={count}{words}) as "
        self.scales = one.scales
        self.single = not one.blocks
        self.block(
            head + (f"({', '.join(bound)}):" if len(bound) > 1 else f"{bound[0]}:"),
            lambda: self.launched(one),
        )

    def grid_text(self, grid: tuple[int, ...]) -> list[str]:
        if set(self.unknown) - {"block"} or (self.unknown and self.units.cluster):
            raise CompileError(
                f"'{self.program.name}' has clusters or devices of symbolic extents",
                advice="give shapes: mt.export(prog, 'tilelang', *shapes)",
            )
        if "block" in self.unknown:
            return [self.value(as_expr(extent)) for extent in self.unknown["block"]]
        return [str(extent) for extent in grid]

    def launched(self, one: DeviceKernel) -> None:
        before = len(self.lines)
        body = one.body
        for condition in reversed(one.conditions):
            body = (n.If(condition, body, span=body[0].span if body else None),)
        self.region(body)
        used = "\n".join(self.lines[before:])
        for key, word in (("@thread", "T.get_thread_binding(0)"), ("@rank", "T.get_rank()")):
            if key in self.names and re.search(rf"\b{self.names[key]}\b", used):
                self.lines.insert(before, "    " * self.depth + f"{self.names[key]} = {word}")

    def region(self, body: tuple[n.Node, ...]) -> None:
        mine = n.own_statements(body)
        counts = Counter(node.name for node in mine if isinstance(node, (n.Let, n.ReadScalar)))
        for name, kind in lets(body).items():
            if counts[name] > 1:
                self.add(f'{self.name(name)} = T.alloc_var("{dtype(kind)}")')
        self.body(body)

    def body(self, body: tuple[n.Node, ...]) -> None:
        for node in body:
            rule = RULES.get(type(node))
            try:
                if rule is None:
                    self.refuse(node, "has no counterpart")
                else:
                    for _ in self.roles.copies_of(node):
                        rule(self, node)
            except MegatileError as error:
                error.place = error.place or node.place
                raise

    def allocate(self, node: n.Alloc) -> None:
        RULES[n.Alloc](self, node)

    def refuse(self, node: n.Node, why: str) -> NoReturn:
        what = f"T.Scale('{node.scale}')" if isinstance(node, n.ScaleRegion) else type(node).__name__
        raise CompileError(
            f"{what} {why} in a TileLang kernel",
            place=node.place,
            advice="mt.export(prog, 'cuda') may take it",
        )

    # --- expressions ------------------------------------------------------------------------------

    def value(self, expr: Expr, outer: int = 0) -> str:
        if isinstance(expr, Const):
            return self.constant(expr, outer)
        if isinstance(expr, Symbol):
            return self.name(expr.name)
        if isinstance(expr, (Coord, Rank)):
            return self.value(self.units.plain(expr), outer)
        if isinstance(expr, Load):
            return self.element(expr.source, expr.index)
        op = getattr(expr, "operator", None)
        if op is None:
            raise CompileError("a table of numbers cannot be written in TileLang", advice="use arithmetic")
        return self.applied(expr, op, outer)

    def applied(self, expr: Any, op: str, outer: int) -> str:
        args = expr.args
        if op == "cast":
            return f'T.Cast("{dtype(expr.dtype)}", {self.value(args[0])})'
        if op == "bitcast":
            return f'T.reinterpret({self.value(args[0])}, "{dtype(expr.dtype)}")'
        own = OPERATORS[op].binding
        if op == "**":
            return f"T.power({', '.join(map(self.value, args))})"
        if not own:
            return f"T.{_FUNCTIONS.get(op, op)}({', '.join(map(self.value, args))})"
        if op in ("neg", "not"):
            sign = "-" if op == "neg" else "not "
            plain = f"{sign}{self.value(args[0], own)}"
        else:
            plain = f"{self.value(args[0], own + (own == 4))} {op} {self.value(args[1], own + 1)}"
        return f"({plain})" if own < outer else plain

    def constant(self, expr: Const, outer: int) -> str:
        number = expr.value
        if isinstance(number, float) and not math.isfinite(number):
            kind = dtype(expr.dtype)
            if math.isnan(number):
                raise CompileError("NaN cannot be written in TileLang", advice="compute it: 0 / 0")
            text = f'T.infinity("{kind}")'
            return text if number > 0 else f"(-{text})" if outer > 9 else f"-{text}"
        return f"({number!r})" if outer > 9 and number < 0 else repr(number)

    def element(self, source: str, index: tuple[Expr, ...]) -> str:
        """Return one element of a tensor or tile."""
        local = self.places.local(source, index)
        return f"{self.tile(source)}[{', '.join(self.value(i) for i in local)}]"

    def tile(self, source: str) -> str:
        """Return a tensor, a tile, or a role's copy of it, by name."""
        return self.name(self.roles.copy(base_name(source)))

    # --- regions ----------------------------------------------------------------------------------

    def whole(self, region: n.Region) -> bool:
        region = self.places.region(region)
        return is_whole(region, self.places.shape(region.source, self.shapes[region.source]))

    def part(self, region: n.Region, other: n.Region | None = None) -> str:
        """Return a tile or tensor by its name, or the slices of it that are meant; only where they begin, if
        the other side of a copy is a whole tile as large."""
        region = self.places.region(region)
        name, shape = self.tile(region.source), self.places.shape(region.source, self.shapes[region.source])
        if is_whole(region, shape):
            return name
        for dim, extent in zip(region.dims, shape, strict=True):
            if dim.limits is not None and [known(e) for e in dim.limits] != [0, extent]:
                raise CompileError(
                    f"a view of '{base_name(region.source)}' whose parts are not equally long cannot be "
                    "written in TileLang",
                    advice="write the slices themselves",
                )
        extents = tuple(d.extent for d in region.dims)
        if other is not None and self.whole(other) and extents == other.extents:
            return f"{name}[{', '.join(self.value(d.start) for d in region.dims)}]"
        parts = (
            f"{self.value(d.start)} : {self.value(simplify(d.start + d.extent))}"
            if d.extent is not None
            else self.value(d.start)
            for d in region.dims
        )
        return f"{name}[{', '.join(parts)}]"


_HEAD = '''"""TileLang kernel of the tile program '{name}', written by megatile; never run on a GPU."""

import tilelang
import tilelang.language as T

'''


def generate_tilelang(program: Program, unknown: Mapping[str, tuple[Any, ...]] | None = None) -> str:
    """Return the TileLang kernel of a Program, as the text of a Python file.

    ``unknown``: extents of the launch that depend on symbolic extents.
    """
    return TileLangWriter(with_puts(without_views(program)), dict(unknown or {})).source()
