"""A Program as text. The text is Python syntax and parses back (``megatile.ir.parser``) to an equal Program.

``x[s::n]`` is n elements from s, ``anchor(s, n)`` the same but allowed over the edge, a plain index is one
element; ``along(x[...], v)`` adds the origin of view v to the anchors. Without views, ``x.device[...]`` is
the device's own part of x, as ``part("device", layout)`` declares it, and ``clip(s, n, low, high)`` is n
elements from s, of which those outside low..high read as zero and are not written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any

from megatile.core import placement as lay
from megatile.core.expr import Expr
from megatile.ir import nodes as n
from megatile.ir.launch import ROOT, Launch, Param

if TYPE_CHECKING:
    from megatile.ir.program import Program


def _dim(dim: n.Dim) -> str:
    if dim.extent is None:
        return dim.start.text()
    if dim.limits is not None:
        return f"clip({', '.join(e.text() for e in (dim.start, dim.extent, *dim.limits))})"
    if dim.anchored:
        return f"anchor({dim.start.text()}, {dim.extent.text()})"
    return f"{dim.start.text()}::{dim.extent.text()}"


def show_region(region: n.Region) -> str:
    text = f"{region.source}[{', '.join(_dim(d) for d in region.dims)}]"
    return f"along({text}, {region.along})" if region.along else text


def show_layout(layout: lay.Layout) -> str:
    return _LAYOUT[type(layout)](layout)


_LAYOUT: dict[type, Callable[[Any], str]] = {
    lay.Shard: lambda v: f"shard({v.dim})" if v.axis is None else f"shard({v.dim}, {v.axis})",
    lay.Replicate: lambda v: "replica()",
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
    if isinstance(value, tuple) and value and all(isinstance(v, n.View) for v in value):
        return _part(value)
    if isinstance(value, tuple):
        inner = ", ".join(_value(v) for v in value)
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if isinstance(value, Expr):
        return value.text()
    if type(value) in _LAYOUT:
        return show_layout(value)
    return f'"{value}"' if isinstance(value, str) and value.isidentifier() else repr(value)


def _arguments(node: n.Node, skip: tuple[str, ...] = ()) -> str:
    parts = []
    for f in fields(node):
        value = getattr(node, f.name)
        if f.name in (*n.NOT_ITS_OWN, *skip):
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
    stages += f", fresh={_value(node.fresh)}" if node.fresh else ""
    bounds = f"{node.start.text()}, {node.stop.text()}, {node.step.text()}"
    return f"for {node.var} in {node.kind}({bounds}{stages}):"


_HEADS: dict[type[n.Node], Callable[[Any], str]] = {
    n.Alloc: _named,
    n.View: _named,
    n.Reshape: _named,
    n.ReadScalar: _named,
    n.Let: lambda s: f"{s.name} = {s.value.text()}",
    n.Store: lambda s: f"{s.target}[{', '.join(i.text() for i in s.index)}] = {s.value.text()}",
    n.ScaleRegion: lambda s: f"with scale({_arguments(s)}):",
    n.Loop: _loop,
    n.Parallel: lambda s: (
        f"for {', '.join(s.vars)} in {'in_step' if s.in_step else 'parallel'}"
        f"({', '.join(e.text() for e in s.extents)}):"
    ),
    n.If: lambda s: f"if {s.condition.text()}:",
    n.Break: lambda s: "break",
    n.Continue: lambda s: "continue",
    n.Return: lambda s: "return",
}


def show_node(node: n.Node) -> str:
    """Return the first line of a statement."""
    return _HEADS.get(type(node), _plain)(node)


def _lines(body: tuple[n.Node, ...], depth: int) -> Iterator[str]:
    if not body:
        yield "    " * depth + "pass"
    for node in body:
        yield "    " * depth + show_node(node) + (f"  # {node.choice}" if node.choice is not None else "")
        for name, inner in n.bodies(node):
            if name == "orelse":
                if not inner:
                    continue
                yield "    " * depth + "else:"
            yield from _lines(inner, depth + 1)


def _part(chain: n.Chain) -> str:
    return f"part({', '.join(f'{_value(view.scale)}, {show_layout(view.layout)}' for view in chain)})"


def _param(param: Param) -> str:
    text = f"{param.dtype}[{', '.join(map(str, param.shape))}]"
    parts = "".join(f" @ {_part(chain)}" for chain in param.parts)
    parts += f" @ home({', '.join(map(_value, param.home))})" if param.home else ""
    return f"{param.name}: {f'input[{text}]' if param.is_input else text}{parts}"


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
    if launch.device_scale not in ("device", launch.host):
        parts.append(f'device_scale="{launch.device_scale}"')
    return f"launch({', '.join(parts)})"


def show(program: Program) -> str:
    """Return the whole Program as text."""
    lines = [f"def {program.name}({', '.join(map(_param, program.params))}):"]
    if program.machine:
        lines.append(f'    machine("{program.machine}")')
    if program.padded:
        lines.append("    padded()")
    if program.symbols:
        lines.append(f"    symbols({', '.join(program.symbols)})")
    lines.append("    " + _launch(program.launch))
    lines.extend(_lines(program.body, 1))
    return "\n".join(lines) + "\n"
