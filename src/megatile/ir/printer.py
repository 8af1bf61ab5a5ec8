"""A Program as text. The text is Python syntax and parses back (``megatile.ir.parser``) to an equal Program.

``x[s::n]`` is n elements from s, ``anchor(s, n)`` the same but allowed over the edge, a plain index is one
element; ``along(x[...], v)`` adds the origin of view v to the anchors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any

from megatile.ir import layout as lay
from megatile.ir import nodes as n
from megatile.ir.expr import OPERATORS, Apply, Const, Coord, Expr, Load, Rank, Var
from megatile.ir.launch import ROOT, Launch, Param

if TYPE_CHECKING:
    from megatile.ir.program import Program


def show_expr(expr: Expr, strength: int = 0) -> str:
    """The expression as Python text, with the parentheses it needs inside an operator of ``strength``."""
    return _EXPR[type(expr)](expr, strength)


def _const(expr: Const, strength: int) -> str:
    value = expr.value
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "(-inf)")
    text = repr(value)
    return f"({text})" if text.startswith("-") and strength else text


def _apply(expr: Apply, strength: int) -> str:
    operator = OPERATORS[expr.op]
    if expr.op == "cast":
        return f'cast({show_expr(expr.args[0])}, "{expr.dtype}")'
    if not operator.symbol:
        return f"{expr.op}({', '.join(show_expr(a) for a in expr.args)})"
    own = operator.strength
    if operator.arity == 1:
        gap = " " if operator.symbol.isalpha() else ""
        text = f"{operator.symbol}{gap}{show_expr(expr.args[0], own + 1)}"
    else:
        left, right = (show_expr(expr.args[0], own + (own == 4)), show_expr(expr.args[1], own + 1))
        if expr.op == "pow":
            left = show_expr(expr.args[0], own + 1)
        text = f"{left} {operator.symbol} {right}"
    return f"({text})" if own < strength else text


_EXPR: dict[type, Callable[[Any, int], str]] = {
    Const: _const,
    Var: lambda e, s: e.name,
    Coord: lambda e, s: f'coord("{e.scale}", {e.axis})',
    Rank: lambda e, s: f'rank("{e.scale}", "{e.within}")',
    Load: lambda e, s: f"{e.source}[{', '.join(show_expr(i) for i in e.index)}]",
    Apply: _apply,
}


def _dim(dim: n.Dim) -> str:
    if dim.extent is None:
        return show_expr(dim.start)
    if dim.anchored:
        limit = f", {show_expr(dim.limit)}" if dim.limit is not None else ""
        return f"anchor({show_expr(dim.start)}, {show_expr(dim.extent)}{limit})"
    return f"{show_expr(dim.start)}::{show_expr(dim.extent)}"


def show_region(region: n.Region) -> str:
    text = f"{region.source}[{', '.join(_dim(d) for d in region.dims)}]"
    return f"along({text}, {region.along})" if region.along else text


def show_layout(layout: lay.Layout) -> str:
    return _LAYOUT[type(layout)](layout)


_LAYOUT: dict[type, Callable[[Any], str]] = {
    lay.Shard: lambda v: f"shard({v.dim})" if v.axis is None else f"shard({v.dim}, {v.axis})",
    lay.Replica: lambda v: "replica()",
    lay.Partial: lambda v: f'partial("{v.op}")',
    lay.Mesh: lambda v: f"mesh({', '.join(show_layout(a) for a in v.axes)})",
    lay.Owner: lambda v: f"owner({', '.join(_owned(s) for s in v.sets)})",
}


def _owned(sets: tuple[tuple[int, ...], ...]) -> str:
    return f"[{', '.join(_indices(s) for s in sets)}]"


def _indices(indices: tuple[int, ...]) -> str:
    """Runs with one step print as a range."""
    if len(indices) > 2:
        step = indices[1] - indices[0]
        if step > 0 and indices == tuple(range(indices[0], indices[-1] + 1, step)):
            return f"span({indices[0]}, {indices[-1] + 1}, {step})"
    return f"[{', '.join(map(str, indices))}]"


def _value(value: Any) -> str:
    if isinstance(value, n.Region):
        return show_region(value)
    if isinstance(value, n.Merge):
        return f'merge("{value.name}", {_value(value.results)})'
    if isinstance(value, tuple):
        inner = ", ".join(_value(v) for v in value)
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if type(value) in _EXPR:
        return show_expr(value)
    if type(value) in _LAYOUT:
        return show_layout(value)
    return f'"{value}"' if isinstance(value, str) and value.isidentifier() else repr(value)


def _arguments(node: n.Node, skip: tuple[str, ...] = ()) -> str:
    parts = []
    for f in fields(node):
        value = getattr(node, f.name)
        if f.name in ("span", "body", "orelse", *skip):
            continue
        if f.default is not MISSING:
            if value != f.default or type(value) is not type(f.default):
                parts.append(f"{f.name}={_value(value)}")
        else:
            parts.append(_value(value))
    return ", ".join(parts)


def _plain(node: n.Node) -> str:
    return f"{type(node).__name__.lower()}({_arguments(node)})"


def _named(node: Any) -> str:
    return f"{node.name} = {type(node).__name__.lower()}({_arguments(node, ('name',))})"


def _loop(node: n.Loop) -> str:
    stages = f", stages={node.stages}" if node.stages != 1 else ""
    bounds = f"{show_expr(node.start)}, {show_expr(node.stop)}, {show_expr(node.step)}"
    return f"for {node.var} in {node.kind}({bounds}{stages}):"


_HEADS: dict[type[n.Node], Callable[[Any], str]] = {
    n.Alloc: _named,
    n.View: _named,
    n.ReadScalar: _named,
    n.Let: lambda s: f"{s.name} = {show_expr(s.value)}",
    n.Store: lambda s: f"{s.target}[{', '.join(map(show_expr, s.index))}] = {show_expr(s.value)}",
    n.Scale: lambda s: f'with scale("{s.scale}"):',
    n.Loop: _loop,
    n.Parallel: lambda s: f"for {', '.join(s.vars)} in parallel({', '.join(map(show_expr, s.extents))}):",
    n.If: lambda s: f"if {show_expr(s.condition)}:",
}


def show_node(node: n.Node) -> str:
    """The first line of a statement."""
    return _HEADS.get(type(node), _plain)(node)


def _lines(body: tuple[n.Node, ...], depth: int) -> Iterator[str]:
    if not body:
        yield "    " * depth + "pass"
    for node in body:
        yield "    " * depth + show_node(node)
        for name, inner in n.bodies(node):
            if name == "orelse":
                if not inner:
                    continue
                yield "    " * depth + "else:"
            yield from _lines(inner, depth + 1)


def _param(param: Param) -> str:
    return f"{param.name}: {param.dtype}[{', '.join(map(str, param.shape))}]"


def _launch(launch: Launch) -> str:
    parts = []
    for scale in launch.scales:
        extents = str(scale.extents[0]) if len(scale.extents) == 1 else str(scale.extents)
        parts.append(f"{scale.name}={extents}" if scale.named else f"{scale.name}=implied({extents})")
    parts.append(f'dispatch="{launch.dispatch}"')
    if launch.slots is not None:
        parts.append(f"slots={launch.slots}")
    if launch.host != ROOT:
        parts.append(f'host="{launch.host}"')
    if launch.resident:
        parts.append("resident=True")
    return f"launch({', '.join(parts)})"


def show(program: Program) -> str:
    """The whole Program as text."""
    lines = [f"def {program.name}({', '.join(map(_param, program.params))}):"]
    if program.machine:
        lines.append(f'    machine("{program.machine}")')
    if program.symbols:
        lines.append(f"    symbols({', '.join(program.symbols)})")
    lines.append("    " + _launch(program.launch))
    lines.extend(_lines(program.body, 1))
    return "\n".join(lines) + "\n"
