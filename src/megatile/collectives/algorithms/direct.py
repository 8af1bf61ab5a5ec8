"""Every rank to every other: one step on a full mesh or a switch, crowded on anything thinner."""

from __future__ import annotations

from megatile.collectives.algorithms.ring import shift
from megatile.collectives.blocks import Blocks, piece
from megatile.collectives.phases.exchange import Direct
from megatile.collectives.rank_groups import all_ranks, beyond
from megatile.collectives.registry import algorithm
from megatile.collectives.writer import Writer, is_rank
from megatile.core.expr import IntLike, eq, expr, member, select, unit
from megatile.plan.build import Part

OPERATIONS = (
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "broadcast",
    "reduce",
    "all_to_all",
    "gather",
    "scatter",
    "send_recv",
)


@algorithm("direct", *OPERATIONS)
def direct(w: Writer) -> None:
    """Every rank sends straight to every other that needs it."""
    match w.job.operation:
        case "all_reduce" | "reduce_scatter" | "all_gather":
            Direct(w, all_ranks(w.job.ranks), w.blocks).write()
        case "all_to_all":
            all_to_all(w)
        case "broadcast" | "scatter":
            from_root(w)
        case "reduce" | "gather":
            to_root(w)
        case _:
            shift(w)


def all_to_all(w: Writer) -> None:
    """Block j of rank i becomes block i of rank j. Peers by distance between nodes, then inside them, so that
    ranks of a node do not begin with one remote peer."""
    n, blocks, nesting = w.job.ranks, w.blocks, w.job.nesting
    arrivals = arriving(w)
    source = beyond(nesting, member + 1, back=True)
    channel = w.channel("pairs", source, blocks.most, members=n - 1, slots=1)

    def given(to: IntLike) -> Part:
        return (
            piece(w.own, blocks.start(to), w.job.sent(unit, to)) if w.job.splits else blocks.part(w.own, to)
        )

    def got(back: IntLike) -> Part:
        if w.job.splits:
            return piece(w.output, arrivals.start(back), w.job.sent(back, unit))
        return arrivals.part(w.output, back)

    if w.out_of_place:
        w.copy(got(unit), given(unit))
    with w.loop(0, n - 1) as step:
        to = beyond(nesting, step + 1)
        w.send(channel, given(to), to, step)
    with w.loop(0, n - 1) as step:
        place = got(beyond(nesting, step + 1, back=True))
        w.copy(place, w.receive(channel, place, step))


def arriving(w: Writer) -> Blocks:
    """Return where the blocks of an all-to-all go: they are all as long as mine."""
    n, blocks = w.job.ranks, w.blocks
    if w.job.count % n == 0:
        return blocks
    return Blocks(expr(blocks.length(unit)) * n, n, 0, blocks.most * n)


def from_root(w: Writer) -> None:
    """Broadcast (everything) or scatter (a block each)."""
    n, root, scatter = w.job.ranks, w.job.root, w.job.operation == "scatter"
    most = w.blocks.most if scatter else w.job.count
    channel = w.channel("from_root", select(eq(unit, root), -1, root), most)
    place = w.result()

    def spread() -> None:
        with w.loop(1, n) as step:
            to = (step + root) % n
            what = w.blocks.part(w.own, to) if scatter else w.whole(w.own)
            w.send(channel, what, to)
        if w.out_of_place:
            mine = w.blocks.part(w.own, root) if scatter else w.whole(w.own)
            w.copy(piece(w.output, 0, mine.shape[0]), mine)

    w.either(is_rank(root), spread, lambda: w.copy(place, w.receive(channel, place)))


def to_root(w: Writer) -> None:
    """Reduce (everything) or gather (a block each)."""
    n, root, gather = w.job.ranks, w.job.root, w.job.operation == "gather"
    most = w.blocks.most if gather else w.job.count
    source = select(eq(unit, root), (root + 1 + member) % n, -1)
    channel = w.channel("to_root", source, most, members=n - 1, slots=1)
    mine = w.contribution() if gather else w.whole(w.own)

    def collect() -> None:
        if gather and w.out_of_place:
            w.copy(w.blocks.part(w.output, root), piece(w.own, 0, w.blocks.length(root)))
        if gather:
            with w.loop(0, n - 1) as step:
                place = w.blocks.part(w.output, (root + 1 + step) % n)
                w.copy(place, w.receive(channel, place, step))
            return
        total = w.whole(w.sums)
        w.reduce(total, mine, w.receive(channel, mine, 0))
        if n > 2:
            with w.loop(1, n - 1) as step:
                w.reduce(total, total, w.receive(channel, mine, step))

    w.either(is_rank(root), collect, lambda: w.send(channel, mine, root, (unit - root - 1) % n))


@algorithm("one_shot", "all_reduce")
def one_shot(w: Writer) -> None:
    """Every rank sends everything to every other, which adds it all up: one step, n - 1 times the bytes."""
    n, mine, total = w.job.ranks, w.whole(w.own), w.whole(w.sums)
    channel = w.channel("shots", (unit - 1 - member) % n, w.job.count, members=n - 1, slots=1)
    with w.loop(0, n - 1) as step:
        w.send(channel, mine, (unit + 1 + step) % n, step)
    w.reduce(total, mine, w.receive(channel, mine, 0))
    if n > 2:
        with w.loop(1, n - 1) as step:
            w.reduce(total, total, w.receive(channel, mine, step))


@algorithm("pairwise", "all_to_all")
def pairwise(w: Writer) -> None:
    """One partner at a time, so that no rank is sent to by two at once."""
    n, blocks, arrivals = w.job.ranks, w.blocks, arriving(w)
    channel = w.channel("pairs", (unit - 1 - member) % n, blocks.most, members=n - 1, slots=1)
    kept = w.tile("kept", (max(1, w.job.count),)) if not w.out_of_place else w.own
    if not w.out_of_place:
        # What arrives would overwrite what is still to be sent.
        w.copy(kept, w.own)
    w.copy(arrivals.part(w.output, unit), blocks.part(kept, unit))
    with w.loop(0, n - 1) as step:
        to = (unit + 1 + step) % n
        w.send(channel, blocks.part(kept, to), to, step)
        place = arrivals.part(w.output, (unit - 1 - step) % n)
        w.copy(place, w.receive(channel, place, step))
