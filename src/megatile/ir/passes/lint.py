"""Mistakes that show in the text of a Program; every rule yields (message, span, advice)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from megatile.core.expr import Applied, Expr, walk
from megatile.ir import nodes as n
from megatile.ir.expr import Load
from megatile.ir.passes.coverage import unreached
from megatile.ir.passes.pipeline import Finding, pipeline_conflicts, touched
from megatile.ir.program import Program, bindings


class Text:
    """A Program's statements in order, and which storage its names mean."""

    def __init__(self, program: Program):
        self.program, self.table, self.nodes = program, bindings(program), list(n.walk(program.body))
        self.base = {name: binding.base for name, binding in self.table.items()}
        self.tensors = {p.name for p in program.params}

    def writes(self, node: n.Node) -> set[str]:
        return touched(node, "write", self.table)

    def reads(self, node: n.Node) -> set[str]:
        return touched(node, "read", self.table)


Rule = Callable[[Text], Iterator[Finding]]


def find_mistakes(program: Program) -> Iterator[Finding]:
    """Yield what makes a Program wrong."""
    yield from pipeline_conflicts(program)
    text = Text(program)
    yield from (finding for rule in MISTAKES for finding in rule(text))


def find_warnings(program: Program) -> Iterator[Finding]:
    """Yield what is allowed but hardly meant."""
    text = Text(program)
    yield from (finding for rule in WARNINGS for finding in rule(text))
    yield from unreached(program)


def reduced_accumulator(text: Text) -> Iterator[Finding]:
    """An all-reduce inside the loop that accumulates into the same tile sums what was already summed."""
    for loop in n.each(n.Loop, text.program.body):
        inside = list(n.walk(loop.body))
        for node in n.each(n.Collective, loop.body):
            tile = text.base[node.to[0].source]
            reduces = node.kind in ("allreduce", "scatter_view")
            if reduces and _accumulates(inside, tile, text) and not _starts_anew(inside, tile, text.base):
                yield (
                    f"T.allreduce reduces an accumulator carried by loop '{loop.var}': '{tile}' is summed "
                    f"again and again",
                    node.span,
                    "move it after the loop, or clear the tile in every iteration",
                )


def _accumulates(inside: list[n.Node], tile: str, text: Text) -> bool:
    base = text.base
    return any(
        (isinstance(m, n.Gemm) and base[m.c.source] == tile and not m.clear)
        or (isinstance(m, n.Store) and base[m.target] == tile and tile in text.reads(m))
        or (isinstance(m, n.Reduce) and base[m.to.source] == tile and not m.clear)
        for m in inside
    )


def _starts_anew(inside: list[n.Node], tile: str, base: dict[str, str]) -> bool:
    return any(
        (isinstance(m, (n.Fill, n.Copy)) and base[m.to.source] == tile)
        or (isinstance(m, n.Gemm) and base[m.c.source] == tile and m.clear)
        or (isinstance(m, n.Alloc) and m.name == tile)
        for m in inside
    )


def reversed_copy(text: Text) -> Iterator[Finding]:
    """A tile that nothing writes is copied to a tensor: the order of TileLang."""
    written = {name for node in text.nodes for name in text.writes(node)}
    for node in n.each(n.Copy, text.program.body):
        source, to = text.base[node.source.source], text.base[node.to.source]
        if source not in text.tensors | written and to in text.tensors:
            yield (
                f"T.copy from '{source}', which nothing writes, to tensor '{to}': the order looks reversed",
                node.span,
                f"the destination comes first: T.copy({node.source.source}, {node.to.source}[...])",
            )


def written_input(text: Text) -> Iterator[Finding]:
    """Yield a statement that writes an argument declared as T.Input."""
    inputs = {p.name for p in text.program.params if p.is_input}
    for node in text.nodes:
        for name in sorted(text.writes(node) & inputs):
            yield (
                f"'{name}' is an input (T.Input) and is written",
                node.span,
                "the destination comes first: T.copy(to, source); an argument to be written is a T.Tensor",
            )


def overwritten_argument(text: Text) -> Iterator[Finding]:
    """A tile that only holds a constant is copied over a tensor, and then used as if it held data: the order
    of TileLang."""
    base, tensors = text.base, text.tensors
    for at, node in enumerate(text.nodes):
        if not isinstance(node, n.Copy) or base[node.to.source] not in tensors:
            continue
        tile = base[node.source.source]
        before = [m for m in text.nodes[:at] if tile in text.writes(m)]
        if tile in tensors or not before or not all(isinstance(m, n.Fill) for m in before):
            continue
        after = text.nodes[at + 1 :]
        filled = any(isinstance(m, n.Copy) and base[m.to.source] == tile for m in after)
        if filled or any(tile in text.reads(m) and not isinstance(m, n.Copy) for m in after):
            yield (
                f"T.copy overwrites tensor '{base[node.to.source]}' with '{tile}', which is only filled so "
                f"far and used afterwards: the order looks reversed",
                node.span,
                f"the destination comes first: T.copy({node.source.source}, {node.to.source}[...])",
            )


def nothing_written(text: Text) -> Iterator[Finding]:
    """Copies and products that end in tiles: no argument gets a result."""
    written = {name for node in text.nodes for name in text.writes(node)}
    shown = any(isinstance(node, (n.Print, n.Check, n.Breakpoint)) for node in text.nodes)
    copies = list(n.each(n.Copy, text.program.body))
    if copies and not shown and not written & text.tensors:
        last = copies[-1]
        yield (
            "nothing is written to any argument: what the program computes is lost",
            last.span,
            f"the destination comes first: T.copy({last.source.source}, {last.to.source}) writes "
            f"'{last.source.source}'",
        )


def dropped_maximum(text: Text) -> Iterator[Finding]:
    """A running maximum is saved, filled again, and the saved one used only to rescale."""
    base = text.base
    for loop in n.each(n.Loop, text.program.body):
        saved: dict[str, str] = {}
        filled: dict[str, n.Fill] = {}
        for node in n.walk(loop.body):
            if isinstance(node, n.Copy):
                saved[base[node.source.source]] = base[node.to.source]
            elif isinstance(node, n.Fill) and base[node.to.source] in saved:
                filled[base[node.to.source]] = node
            elif isinstance(node, n.Reduce) and node.op == "max" and base[node.to.source] in filled:
                tile = base[node.to.source]
                if _rescales(loop, tile, saved[tile], base) and not _merges(loop, tile, saved[tile], text):
                    yield (
                        f"the running maximum in '{tile}' is dropped: it is filled again after it was "
                        f"saved in "
                        f"'{saved[tile]}'",
                        filled[tile].span,
                        f"leave this T.fill out: T.reduce_max(..., clear=False) keeps max(prev, cur), or "
                        f"write "
                        f"{tile}[i] = T.max({saved[tile]}[i], {tile}[i])",
                    )


def _rescales(loop: n.Loop, tile: str, previous: str, base: dict[str, str]) -> bool:
    return any(
        {tile, previous} <= {base[x.source] for x in walk(part) if isinstance(x, Load)}
        for node in n.walk(loop.body)
        for part in _applied(node, "exp", "exp2")
    )


def _merges(loop: n.Loop, tile: str, previous: str, text: Text) -> bool:
    stores = n.each(n.Store, loop.body)
    return any(text.base[m.target] == tile and previous in text.reads(m) for m in stores)


def merge_without_maximum(text: Text) -> Iterator[Finding]:
    """``lse_merge`` of something that never was a logarithm (an argument as it comes may be one)."""
    copies = list(n.each(n.Copy, text.program.body))
    for node in n.each(n.Collective, text.program.body):
        if node.fn is None or node.fn.name != "lse_merge":
            continue
        feeding, more = set[str](), {text.base[node.source[1].source]}
        while more > feeding:
            feeding = more
            more = feeding.union(*(text.reads(m) for m in copies if text.writes(m) & feeding))
        writers = [m for m in text.nodes if text.writes(m) & feeding]
        given = feeding & text.tensors and all(isinstance(m, (n.Copy, n.Collective)) for m in writers)
        if not given and not any(_applied(m, "log", "log2") for m in writers):
            yield (
                f"T.lse_merge merges '{text.base[node.source[1].source]}', which is not a logarithm: the "
                "maximum is missing",
                node.span,
                "store lse = log2(sum) + max * scale before the merge",
            )


def _applied(node: n.Node, *operators: str) -> list[Expr]:
    """Return where a statement applies one of these operators."""
    parts = (part for e in n.expressions(node) for part in walk(e))
    return [part for part in parts if isinstance(part, Applied) and part.operator in operators]


MISTAKES: tuple[Rule, ...] = (reversed_copy, written_input)
WARNINGS: tuple[Rule, ...] = (
    reduced_accumulator,
    dropped_maximum,
    merge_without_maximum,
    overwritten_argument,
    nothing_written,
)
