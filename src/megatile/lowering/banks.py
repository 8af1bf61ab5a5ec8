"""Bank conflicts: lanes that want different words of one bank of a memory take turns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

from megatile.core.expr import Const, Expr, Symbol, known, rebuild, simplify, substitute
from megatile.hda.model import MemoryLayer
from megatile.ir import nodes as n


def degree(
    memory: MemoryLayer,
    extents: Sequence[int],
    index: Sequence[Expr],
    width: int,
    loops: Sequence[tuple[str, Expr]],
) -> int:
    """How many turns the lanes of one access take in a tile of ``extents`` elements of ``width`` bytes; lanes
    are neighbouring iterations, the last loop runs fastest. 1 where the data decide the index."""
    counts = [known(extent) for _, extent in loops]
    if not memory.banks or not loops or None in counts:
        return 1
    strides = [prod(extents[d + 1 :]) for d in range(len(extents))]
    address = simplify(sum((rebuild(i, _plain) * s for i, s in zip(index, strides, strict=True)), Const(0)))
    wanted: dict[int, set[int]] = {}
    for lane in range(min(memory.banks, prod(c or 1 for c in counts))):
        values, rest = {}, lane
        for (name, _), count in zip(reversed(loops), reversed(counts), strict=True):
            rest, values[name] = divmod(rest, count or 1)
        at = known(simplify(substitute(address, values)))
        if at is None:
            return 1
        word = at * width // memory.bank
        wanted.setdefault(word % memory.banks, set()).add(word)
    return max(len(words) for words in wanted.values())


def fetch_turns(memory: MemoryLayer, extents: Sequence[int], width: int, fetch: tuple[int, int]) -> int:
    """How many times longer rows of a tile take, read together for a product, than from different banks."""
    rows, size = min(fetch[0], extents[-2] if len(extents) > 1 else 1), fetch[1]
    pitch, banks = extents[-1] * width, memory.banks or 1
    wanted: dict[int, set[int]] = {}
    for row in range(rows):
        first = row * pitch // memory.bank
        for word in range(first, first + max(1, size // memory.bank)):
            wanted.setdefault(word % banks, set()).add(word)
    least = -(-rows * size // (memory.bank * banks))
    return max(len(words) for words in wanted.values()) // max(1, least)


def _plain(part: Expr) -> Expr:
    """Numbers that are the same for all iterations shift all lanes alike."""
    return part if isinstance(part, (Const, Symbol)) or part.children() else Const(0)


def arranged(nodes: Iterable[n.Node]) -> set[str]:
    """Tiles whose layout a hint arranges so that lanes do not meet: swizzled or padded."""
    found = set()
    for node in nodes:
        if isinstance(node, n.Hint) and node.word == "annotate_layout":
            pairs = (pair.partition(": ") for pair in node.text.split(", "))
            found |= {tile for tile, _, layout in pairs if "swizzle" in layout or "padded" in layout}
    return found
