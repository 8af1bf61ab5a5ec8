"""Programs of one device as TileLang kernels: the same statements, in its words."""

from __future__ import annotations

import keyword
import math
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from megatile.core.errors import MegatileError
from megatile.core.expr import OPERATORS, Const, Expr, Symbol, constant, known, simplify
from megatile.ir import nodes as n
from megatile.ir.expr import Coord, Load, Rank
from megatile.ir.passes.resolve_views import without_views
from megatile.ir.program import Program, base_name, bindings
from megatile.targets.common.errors import CompileError
from megatile.targets.common.scalars import lets
from megatile.targets.cuda.fragments import is_whole
from megatile.targets.cuda.scope import threads

DTYPES = {
    "f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "f8e4m3": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2", "i64": "int64", "i32": "int32", "i16": "int16", "i8": "int8", "u64": "uint64",
    "u32": "uint32", "u16": "uint16", "u8": "uint8", "bool": "bool", "int": "int32", "float": "float32",
}  # fmt: skip
_AXES = "xyz"
_FUNCTIONS = {"select": "if_then_else"}
_TAKEN = {"T", "tilelang", *keyword.kwlist, *dir(__builtins__)}


def dtype(name: str) -> str:
    if name not in DTYPES:
        raise CompileError(
            f"TileLang has no element type for '{name}'", advice="use f32, f16, bf16 or integers"
        )
    return DTYPES[name]


class TileLangWriter:
    def __init__(self, program: Program):
        self.program, self.launch = program, program.launch
        self.shapes = {name: binding.shape for name, binding in bindings(program).items()}
        self.lines: list[str] = []
        self.depth = 0
        self.names: dict[str, str] = {}
        gemms = [x for x in n.walk(program.body) if isinstance(x, n.Gemm)]
        self.factors = {r.source for x in gemms for r in (x.a, x.b)}
        self.sums = {x.c.source for x in gemms}
        self.fragments: set[str] = set()
        """Fragments of sums lie otherwise than TileLang wants factors: those are copied to shared memory."""

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
        for scale in self.launch.scales[: self.launch.depth("block") - 1]:
            if scale.count > 1:
                raise CompileError(
                    f"'{program.name}' has {scale.count} units of scale '{scale.name}', and a TileLang "
                    "kernel is one grid of blocks",
                    advice="use one device without clusters",
                )
        for axis in range(len(self.launch.extents("block"))):
            self.names[f"@{axis}"] = f"b{_AXES[axis]}" if axis < len(_AXES) else f"b{axis}"
        self.add(f"def {self.name(program.name)}(")
        for p in program.params:
            self.add(f'    {self.name(p.name)}: T.Tensor({self.shape(p.shape)}, "{dtype(p.dtype)}"),')
        self.block("):", lambda: self.top(program.body))
        return _HEAD.format(name=program.name) + "\n@T.prim_func\n" + "\n".join(self.lines) + "\n"

    def shape(self, shape: tuple[Any, ...]) -> str:
        return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"

    def top(self, body: tuple[n.Node, ...]) -> None:
        """The regions of the device: each a kernel."""
        for node in body:
            if isinstance(node, n.ScaleRegion) and node.scale == "block":
                self.kernel(node)
            elif isinstance(node, n.ScaleRegion) and self.launch.depth(node.scale) < self.launch.depth(
                "block"
            ):
                self.top(node.body)
            elif not isinstance(node, n.Hint):
                self.refuse(node, "stands outside the blocks")

    def kernel(self, node: n.ScaleRegion) -> None:
        extents = self.launch.extents("block")
        if len(extents) > len(_AXES):
            self.refuse(node, f"has a grid of {len(extents)} dimensions, and TileLang has three")
        bound = [self.names[f"@{axis}"] for axis in range(len(extents))]
        count = threads(self.launch, self.launch.depth("block"))
        head = f"with T.Kernel({', '.join(map(str, extents))}, threads={count}) as "
        self.block(
            head + (f"({', '.join(bound)}):" if len(bound) > 1 else f"{bound[0]}:"),
            lambda: self.region(node.body),
        )

    def region(self, body: tuple[n.Node, ...]) -> None:
        mine = n.own_statements(body)
        counts = Counter(node.name for node in mine if isinstance(node, (n.Let, n.ReadScalar)))
        for name, kind in lets(body).items():
            if counts[name] > 1:
                self.add(f'{self.name(name)} = T.alloc_var("{dtype(kind)}")')
        self.body(body)

    def body(self, body: tuple[n.Node, ...]) -> None:
        for node in body:
            rule = _RULES.get(type(node))
            try:
                if rule is None:
                    self.refuse(node, "has no counterpart")
                else:
                    rule(self, node)
            except MegatileError as error:
                error.place = error.place or node.place
                raise

    def refuse(self, node: n.Node, why: str) -> None:
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
        if isinstance(expr, Coord):
            return self.names[f"@{expr.axis}"] if expr.scale == "block" else "0"
        if isinstance(expr, Rank):
            return self.rank(expr, outer)
        if isinstance(expr, Load):
            return f"{self.name(base_name(expr.source))}[{', '.join(self.value(i) for i in expr.index)}]"
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

    def rank(self, expr: Rank, outer: int) -> str:
        result: Expr = Const(0)
        for scale in self.launch.scales[self.launch.depth(expr.within) : self.launch.depth(expr.scale)]:
            if scale.count == 1:
                continue
            index: Expr = Const(0)
            below = 1
            for axis, extent in enumerate(scale.extents):
                if scale.name != "block":
                    raise CompileError(
                        f"the rank at scale '{expr.scale}' is unknown here", advice="use blocks"
                    )
                index = index + Coord(scale.name, axis) * below
                below *= extent
            result = result * scale.count + index
        return self.value(simplify(result), outer)

    # --- regions ----------------------------------------------------------------------------------

    def whole(self, region: n.Region) -> bool:
        return is_whole(region, self.shapes[region.source])

    def part(self, region: n.Region, other: n.Region | None = None) -> str:
        """A tile or tensor by its name, or the slices of it that are meant; only where they begin, if the
        other side of a copy is a whole tile as large."""
        name, shape = self.name(base_name(region.source)), self.shapes[region.source]
        if self.whole(region):
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


# --- statements -----------------------------------------------------------------------------------

_RULES: dict[type[n.Node], Callable[[TileLangWriter, Any], None]] = {}
rule = n.registrar(_RULES)


@rule(n.Alloc)
def _alloc(out: TileLangWriter, node: n.Alloc) -> None:
    if node.flag or node.scale != "block":
        out.refuse(node, f"of scale '{node.scale}' {'as a flag ' * node.flag}has no counterpart")
    fragment = node.level == "registers" and (node.name in out.sums or node.name not in out.factors)
    size = f'({out.shape(node.shape)}, "{dtype(node.dtype)}")'
    out.add(f"{out.name(node.name)} = T.alloc_{'fragment' if fragment else 'shared'}{size}")
    if fragment and node.name in out.factors:
        out.fragments.add(node.name)
        out.add(f"{out.name(f'{node.name}_shared')} = T.alloc_shared{size}")


@rule(n.Copy)
def _copy(out: TileLangWriter, node: n.Copy) -> None:
    if node.dst is not None or node.src is not None:
        out.refuse(node, "between units has no counterpart")
    out.add(f"T.copy({out.part(node.source, node.to)}, {out.part(node.to, node.source)})")


@rule(n.Gemm)
def _gemm(out: TileLangWriter, node: n.Gemm) -> None:
    flags = [
        f"{word}=True"
        for word, set_ in (
            ("transpose_A", node.transpose_a), ("transpose_B", node.transpose_b), ("clear_accum", node.clear),
        )
        if set_
    ]  # fmt: skip
    if node.policy != "Square":
        flags.append(f"policy=T.GemmWarpPolicy.{node.policy}")
    factors = []
    for region in (node.a, node.b):
        shared = region.source in out.fragments
        if shared and not out.whole(region):
            out.refuse(node, "of a part of a fragment has no counterpart")
        factors.append(out.name(f"{region.source}_shared") if shared else out.part(region))
        if shared:
            out.add(f"T.copy({out.part(region)}, {factors[-1]})")
    out.add(f"T.gemm({', '.join([*factors, out.part(node.c), *flags])})")


@rule(n.Fill)
def _fill(out: TileLangWriter, node: n.Fill) -> None:
    zero = constant(node.value) == 0
    out.add(
        f"T.clear({out.part(node.to)})" if zero else f"T.fill({out.part(node.to)}, {out.value(node.value)})"
    )


@rule(n.Reduce)
def _reduce(out: TileLangWriter, node: n.Reduce) -> None:
    if node.op == "prod":
        raise CompileError(
            "TileLang has no T.reduce_prod",
            place=node.place,
            advice="multiply in a loop: for i in T.serial(n)",
        )
    kept = "" if node.clear else ", clear=False"
    out.add(f"T.reduce_{node.op}({out.part(node.source)}, {out.part(node.to)}, dim={node.dim}{kept})")


@rule(n.Cumsum)
def _cumsum(out: TileLangWriter, node: n.Cumsum) -> None:
    turned = ", reverse=True" if node.reverse else ""
    out.add(f"T.cumsum({out.part(node.source)}, {out.part(node.to)}, dim={node.dim}{turned})")


@rule(n.Store)
def _store(out: TileLangWriter, node: n.Store) -> None:
    place = f"{out.name(base_name(node.target))}[{', '.join(map(out.value, node.index))}]"
    out.add(f"{place} = {out.value(node.value)}")


@rule(n.Let, n.ReadScalar)
def _let(out: TileLangWriter, node: Any) -> None:
    out.add(f"{out.name(node.name)} = {out.value(node.value)}")


@rule(n.Atomic)
def _atomic(out: TileLangWriter, node: n.Atomic) -> None:
    if node.op not in ("add", "max", "min") or node.dst is not None:
        out.refuse(node, f"'{node.op}' has no counterpart")
    place = f"{out.name(base_name(node.target))}[{', '.join(map(out.value, node.index))}]"
    call = f"T.atomic_{node.op}({place}, {out.value(node.value)}"
    if node.result is None:
        out.add(f"{call})")
    else:
        out.add(f"{out.name(node.result)} = {call}, return_prev=True)")


@rule(n.AtomicRegion)
def _atomic_region(out: TileLangWriter, node: n.AtomicRegion) -> None:
    if node.op != "add" or node.dst is not None:
        out.refuse(node, f"'{node.op}' has no counterpart")
    out.add(f"T.atomic_add({out.part(node.to, node.source)}, {out.part(node.source, node.to)})")


@rule(n.Parallel)
def _parallel(out: TileLangWriter, node: n.Parallel) -> None:
    if node.in_step:
        out.refuse(node, "of threads in step has no counterpart")
    names, extents = ", ".join(map(out.name, node.vars)), ", ".join(map(out.value, node.extents))
    out.block(f"for {names} in T.Parallel({extents}):", lambda: out.body(node.body))


@rule(n.If)
def _if(out: TileLangWriter, node: n.If) -> None:
    out.block(f"if {out.value(node.condition)}:", lambda: out.body(node.body))
    if node.orelse:
        out.block("else:", lambda: out.body(node.orelse))


@rule(n.Loop)
def _loop(out: TileLangWriter, node: n.Loop) -> None:
    if node.kind == "bounded":
        out.refuse(node, "without a known number of steps has no counterpart")
    word = {"pipelined": "Pipelined", "persistent": "serial"}.get(node.kind, node.kind)
    start, step = (constant(simplify(e)) for e in (node.start, node.step))
    bounds = [out.value(node.start), out.value(node.stop)] if start != 0 else [out.value(node.stop)]
    if step != 1:
        if word != "serial":
            out.refuse(node, f"in steps of {out.value(node.step)} has no counterpart")
        bounds = [out.value(e) for e in (node.start, node.stop, node.step)]
    if word == "Pipelined":
        known = start is not None and constant(simplify(node.stop)) is not None
        if not known and node.stages > 1:  # which TileLang 0.1 does not lower for sm_80
            out.add(f"# num_stages={node.stages} in the program; its number of steps is known only here")
        bounds.append(f"num_stages={node.stages if known else 1}")
    out.block(f"for {out.name(node.var)} in T.{word}({', '.join(bounds)}):", lambda: out.body(node.body))


@rule(n.Check)
def _check(out: TileLangWriter, node: n.Check) -> None:
    out.add(f"T.device_assert({out.value(node.condition)}, {node.text!r})")


@rule(n.Hint)
def _hint(out: TileLangWriter, node: n.Hint) -> None:
    if node.word == "use_swizzle":
        out.add(f"T.use_swizzle({node.text})")
    else:
        _comment(out, node)


@rule(n.Print, n.Breakpoint)
def _comment(out: TileLangWriter, node: n.Node) -> None:
    """What data does not depend on."""
    where = f" of {Path(node.span.file).name}:{node.span.line}" if node.span else ""
    out.add(f"# {type(node).__name__}{where} is left out")


_HEAD = '''"""TileLang kernel of the tile program '{name}', written by megatile; never run on a GPU."""

import tilelang
import tilelang.language as T

'''


def generate_tilelang(program: Program) -> str:
    """The TileLang kernel of a Program, as the text of a Python file."""
    return TileLangWriter(without_views(program)).source()
