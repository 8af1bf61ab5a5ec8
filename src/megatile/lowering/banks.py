"""Lanes in memories: those that want different words of one bank take turns; those that want elements far
apart move a sector each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod

from megatile.core.expr import Const, Expr, Symbol, known, linear, rebuild, simplify, substitute, symbols
from megatile.hda.model import MemoryLayer
from megatile.ir import nodes as n
from megatile.lowering.swizzle import exchanged


def degree(
    memory: MemoryLayer,
    extents: Sequence[int],
    index: Sequence[Expr],
    width: int,
    loops: Sequence[tuple[str, Expr]],
    swizzled: bool = False,
) -> int:
    """Return how many turns the lanes of one access take in a tile of ``extents`` elements of ``width``
    bytes; lanes are neighbouring iterations, the last loop runs fastest. 1 where the data decide the
    index."""
    counts = [known(extent) for _, extent in loops]
    if not memory.banks or not loops or None in counts:
        return 1
    wanted: dict[int, set[int]] = {}
    named = [(name, count or 1) for (name, _), count in zip(loops, counts, strict=True)]
    for open_terms, at in _places(extents, index, named, memory.banks):
        if open_terms:
            return 1
        word = (exchanged(at, extents[-1], width) if swizzled else at) * width // memory.bank
        wanted.setdefault(word % memory.banks, set()).add(word)
    return max(len(words) for words in wanted.values())


def sectors(
    sector: int,
    extents: Sequence[int],
    index: Sequence[Expr],
    width: int,
    loops: Sequence[tuple[str, int]],
    lanes: int,
) -> tuple[int, int]:
    """Return how many sectors ``lanes`` neighbours touch, and the fewest that hold as many elements.
    Elements that the data decide lie in a sector each."""
    touched, elements = set(), set()
    for base, at in _places(extents, index, loops, lanes):
        touched.add((base, at * width // sector))
        elements.add((base, at))
    return len(touched), -(-len(elements) * width // sector)


Terms = tuple[tuple[str, int], ...]


def _places(
    extents: Sequence[int], index: Sequence[Expr], loops: Sequence[tuple[str, int]], lanes: int
) -> Iterator[tuple[Terms, int]]:
    """Yield the elements of a tile, counted from its first, that neighbouring iterations take: of each the
    terms that are no numbers, and the rest."""
    strides = [prod(extents[d + 1 :]) for d in range(len(extents))]
    address = simplify(sum((rebuild(i, _plain) * s for i, s in zip(index, strides, strict=True)), Const(0)))
    terms, first = linear(address)
    names = {name for name, _ in loops}
    moving = {term: factor for term, factor in terms.items() if symbols(term) & names}
    fixed = _shown({term: factor for term, factor in terms.items() if term not in moving})
    for lane in range(min(lanes, prod(count for _, count in loops))):
        values, rest = {}, lane
        for name, count in reversed(loops):
            rest, values[name] = divmod(rest, count)
        if all(isinstance(term, Symbol) for term in moving):
            yield fixed, first + sum(factor * values[str(term)] for term, factor in moving.items())
        else:
            found, at = linear(simplify(substitute(address, values)))
            yield _shown(found), at


def _shown(terms: Mapping[Expr, int]) -> Terms:
    return tuple(sorted((str(term), factor) for term, factor in terms.items()))


def fetch_turns(
    memory: MemoryLayer, extents: Sequence[int], width: int, fetch: tuple[int, int], swizzled: bool = False
) -> int:
    """Return how many times longer rows of a tile take, read together for a product, than from different
    banks."""
    rows, size = min(fetch[0], extents[-2] if len(extents) > 1 else 1), fetch[1]
    pitch, banks = extents[-1], memory.banks or 1
    wanted: dict[int, set[int]] = {}
    for row in range(rows):
        at = row * pitch
        first = (exchanged(at, pitch, width) if swizzled else at) * width // memory.bank
        for word in range(first, first + max(1, size // memory.bank)):
            wanted.setdefault(word % banks, set()).add(word)
    least = -(-rows * size // (memory.bank * banks))
    return max(len(words) for words in wanted.values()) // max(1, least)


def _plain(part: Expr) -> Expr:
    """Replace numbers that are the same in all iterations by 0: they shift all lanes equally."""
    return part if isinstance(part, (Const, Symbol)) or part.children() else Const(0)


def arranged(nodes: Iterable[n.Node]) -> set[str]:
    """Return tiles whose layout a hint arranges so that lanes do not meet: swizzled or padded."""
    found = set()
    for node in nodes:
        if isinstance(node, n.Hint) and node.word == "annotate_layout":
            pairs = (pair.partition(": ") for pair in node.text.split(", "))
            found |= {tile for tile, _, layout in pairs if "swizzle" in layout or "padded" in layout}
    return found
