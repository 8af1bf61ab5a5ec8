"""Mistakes that show in the text of a Program; every rule yields (message, span, advice)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from megatile.core.expr import Applied, walk
from megatile.ir import nodes as n
from megatile.ir.expr import Load
from megatile.ir.nodes import Span
from megatile.ir.passes.pipeline import pipeline_conflicts
from megatile.ir.program import Program, bindings

Finding = tuple[str, "Span | None", str]
Rule = Callable[[Program], Iterator[Finding]]


def find_mistakes(program: Program) -> Iterator[Finding]:
    """What makes a Program wrong."""
    for rule in MISTAKES:
        yield from rule(program)


def find_warnings(program: Program) -> Iterator[Finding]:
    """What is allowed but hardly meant."""
    for rule in WARNINGS:
        yield from rule(program)


def _writes(node: n.Node, base: dict[str, str]) -> set[str]:
    return {base[r.source] for kind, r in n.regions(node) if kind != "read"}


def _reads(node: n.Node, base: dict[str, str]) -> set[str]:
    return {base[r.source] for kind, r in n.regions(node) if kind != "write"}


def _bases(program: Program) -> dict[str, str]:
    return {name: b.base for name, b in bindings(program).items()}


def reduced_accumulator(program: Program) -> Iterator[Finding]:
    """An all-reduce inside the loop that accumulates into the same tile sums what was already summed."""
    base = _bases(program)
    for loop in n.walk(program.body):
        if not isinstance(loop, n.Loop):
            continue
        inside = list(n.walk(loop.body))
        for node in inside:
            if not isinstance(node, n.Collective) or node.kind not in ("allreduce", "scatter_view"):
                continue
            tile = base[node.to[0].source]
            if _accumulates(inside, tile, base) and not _starts_anew(inside, tile, base):
                yield (
                    f"T.allreduce reduces an accumulator carried by loop '{loop.var}': '{tile}' is summed "
                    f"again and again",
                    node.span,
                    "move it after the loop, or clear the tile in every iteration",
                )


def _accumulates(inside: list[n.Node], tile: str, base: dict[str, str]) -> bool:
    return any(
        (isinstance(m, n.Gemm) and base[m.c.source] == tile and not m.clear)
        or (isinstance(m, n.Store) and base[m.target] == tile and tile in _reads(m, base))
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


def reversed_copy(program: Program) -> Iterator[Finding]:
    """A tile that nothing writes is copied to a tensor: the order of TileLang."""
    base = _bases(program)
    tensors = {p.name for p in program.params}
    nodes = list(n.walk(program.body))
    written = {name for node in nodes for name in _writes(node, base)}
    for node in nodes:
        if not isinstance(node, n.Copy):
            continue
        source, to = base[node.source.source], base[node.to.source]
        if source not in tensors and source not in written and to in tensors:
            yield (
                f"T.copy from '{source}', which nothing writes, to tensor '{to}': the order looks reversed",
                node.span,
                f"the destination comes first: T.copy({node.source.source}, {node.to.source}[...])",
            )


def written_input(program: Program) -> Iterator[Finding]:
    """A statement that writes an argument declared as T.Input."""
    base, inputs = _bases(program), {p.name for p in program.params if p.is_input}
    for node in n.walk(program.body):
        for name in sorted(_writes(node, base) & inputs):
            yield (
                f"'{name}' is an input (T.Input) and is written",
                node.span,
                "the destination comes first: T.copy(to, source); an argument to be written is a T.Tensor",
            )


def overwritten_argument(program: Program) -> Iterator[Finding]:
    """A tile that only holds a constant is copied over a tensor, and then used as if it held data: the order
    of TileLang."""
    base = _bases(program)
    tensors, nodes = {p.name for p in program.params}, list(n.walk(program.body))
    for at, node in enumerate(nodes):
        if not isinstance(node, n.Copy) or base[node.to.source] not in tensors:
            continue
        tile = base[node.source.source]
        before = [m for m in nodes[:at] if tile in _writes(m, base)]
        if tile in tensors or not before or not all(isinstance(m, n.Fill) for m in before):
            continue
        after = nodes[at + 1 :]
        filled = any(isinstance(m, n.Copy) and base[m.to.source] == tile for m in after)
        if filled or any(tile in _reads(m, base) and not isinstance(m, n.Copy) for m in after):
            yield (
                f"T.copy overwrites tensor '{base[node.to.source]}' with '{tile}', which is only filled so "
                f"far and used afterwards: the order looks reversed",
                node.span,
                f"the destination comes first: T.copy({node.source.source}, {node.to.source}[...])",
            )


def nothing_written(program: Program) -> Iterator[Finding]:
    """Copies and products that end in tiles: no argument gets a result."""
    base, nodes = _bases(program), list(n.walk(program.body))
    written = {name for node in nodes for name in _writes(node, base)}
    copies = [node for node in nodes if isinstance(node, n.Copy)]
    shown = any(isinstance(node, (n.Print, n.Check, n.Breakpoint)) for node in nodes)
    if copies and not shown and not written & {p.name for p in program.params}:
        last = copies[-1]
        yield (
            "nothing is written to any argument: what the program computes is lost",
            last.span,
            f"the destination comes first: T.copy({last.source.source}, {last.to.source}) writes "
            f"'{last.source.source}'",
        )


def dropped_maximum(program: Program) -> Iterator[Finding]:
    """A running maximum is saved, filled again, and the saved one used only to rescale."""
    base = _bases(program)
    for loop in n.walk(program.body):
        if not isinstance(loop, n.Loop):
            continue
        saved: dict[str, str] = {}
        filled: dict[str, n.Fill] = {}
        for node in n.walk(loop.body):
            if isinstance(node, n.Copy):
                saved[base[node.source.source]] = base[node.to.source]
            elif isinstance(node, n.Fill) and base[node.to.source] in saved:
                filled[base[node.to.source]] = node
            elif isinstance(node, n.Reduce) and node.op == "max" and base[node.to.source] in filled:
                tile = base[node.to.source]
                if _rescales(loop, tile, saved[tile], base) and not _merges(loop, tile, saved[tile], base):
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
    for node in n.walk(loop.body):
        for expr in n.expressions(node):
            for part in walk(expr):
                if isinstance(part, Applied) and part.operator in ("exp", "exp2"):
                    used = {base[x.source] for x in walk(part) if isinstance(x, Load)}
                    if {tile, previous} <= used:
                        return True
    return False


def _merges(loop: n.Loop, tile: str, previous: str, base: dict[str, str]) -> bool:
    return any(
        isinstance(m, n.Store) and base[m.target] == tile and previous in _reads(m, base)
        for m in n.walk(loop.body)
    )


def merge_without_maximum(program: Program) -> Iterator[Finding]:
    """``lse_merge`` of something that never was a logarithm (an argument as it comes may be one)."""
    base = _bases(program)
    tensors = {p.name for p in program.params}
    nodes = list(n.walk(program.body))
    for node in nodes:
        if not isinstance(node, n.Collective) or node.fn is None or node.fn.name != "lse_merge":
            continue
        feeding = {base[node.source[1].source]}
        while True:
            more = {
                r
                for m in nodes
                for r in _reads(m, base)
                if isinstance(m, n.Copy) and _writes(m, base) & feeding
            }
            if more <= feeding:
                break
            feeding |= more
        writers = [m for m in nodes if _writes(m, base) & feeding]
        given = feeding & tensors and all(isinstance(m, (n.Copy, n.Collective)) for m in writers)
        if not given and not any(_takes_log(m) for m in writers):
            yield (
                f"T.lse_merge merges '{base[node.source[1].source]}', which is no logarithm: the maximum "
                f"is missing",
                node.span,
                "store lse = log2(sum) + max * scale before the merge",
            )


def _takes_log(node: n.Node) -> bool:
    return any(
        isinstance(part, Applied) and part.operator in ("log", "log2")
        for e in n.expressions(node)
        for part in walk(e)
    )


MISTAKES: tuple[Rule, ...] = (pipeline_conflicts, reversed_copy, written_input)
WARNINGS: tuple[Rule, ...] = (
    reduced_accumulator,
    dropped_maximum,
    merge_without_maximum,
    overwritten_argument,
    nothing_written,
)
