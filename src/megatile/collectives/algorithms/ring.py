"""Rings: bandwidth-optimal, one way, both ways, over every link or every network card, in chunks that follow
one another."""

from __future__ import annotations

from megatile.collectives.blocks import Blocks
from megatile.collectives.decompositions import gen_hamilton_circle, most_rings, partial_rings
from megatile.collectives.decompositions.graph import rings_on_graph
from megatile.collectives.job import REDUCING
from megatile.collectives.phases.chain import along_tree, heap
from megatile.collectives.phases.ring import Ring
from megatile.collectives.rank_groups import RankGroup, all_ranks, along_cycles, bidirectional
from megatile.collectives.registry import ON_NODES, ON_ONE_NETWORK, algorithm, needs
from megatile.collectives.writer import Writer, is_rank
from megatile.core.expr import Expr, select, unit
from megatile.plan.build import Handle, Part
from megatile.plan.model import Channel

OPERATIONS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "send_recv", "barrier")


@algorithm("ring", *OPERATIONS)
def ring(w: Writer, chunks: int = 1) -> None:
    """Each rank talks to the next one: 2(n-1) steps of a block for an all-reduce, every link equally used.

    On a network of cables (a cube mesh) the data goes round as many rings as these allow, along the cables.
    """
    everybody = all_ranks(w.job.ranks)
    match w.job.operation:
        case "send_recv":
            shift(w)
        case "barrier":
            pass_token(w)
        case "broadcast" | "reduce":
            w.put_root_data()
            along_tree(w, heap(everybody, w.job.root, arity=1), Blocks(w.job.count, chunks), w.own)
        case _:
            rings = rings_on_graph(w.job.ranks, w.job.cables) if w.job.cables else ()
            write_rings(w, along_cycles(rings) if rings else everybody, chunks)


@algorithm("ring_bidirectional", "all_reduce", "reduce_scatter", "all_gather")
def ring_bidirectional(w: Writer, chunks: int = 1) -> None:
    """Send half of the data around the ring each way, so that both directions of every link are used."""
    write_rings(w, bidirectional(all_ranks(w.job.ranks)), chunks)


def write_rings(w: Writer, group: RankGroup, chunks: int) -> None:
    """Write the job on the rings of a group that holds all ranks."""
    slots = slots_between(chunks) if len(w.job.nesting) > 1 else None
    Ring(w, group, w.blocks, chunks, slots).write()


def slots_between(chunks: int) -> int:
    """Return messages in flight on rings over several nodes, where a step takes long: eight, as libraries
    have."""
    return max(8, 2 * chunks)


def shift(w: Writer) -> None:
    """Every rank sends to the next one; with a ``peer``, only the root sends, to that rank."""
    job, everything, place = w.job, w.whole(w.own), w.whole(w.output)
    if job.peer is None:
        channel = w.channel("shift", (unit - 1) % job.ranks, job.count)
        w.send(channel, everything, (unit + 1) % job.ranks)
        w.copy(place, w.receive(channel, place))
        return
    channel = w.channel("shift", job.root, job.count)
    with w.when(is_rank(job.root)):
        w.send(channel, everything, job.peer)
    with w.when(is_rank(job.peer)):
        w.copy(place, w.receive(channel, place))


def pass_token(w: Writer) -> None:
    """Every rank passes one element on, twice round the ring: then all ranks have begun."""
    n, token = w.job.ranks, w.tile("token", (1,))
    channel = w.channel("ring", (unit - 1) % n, 1)
    w.builder.compute("fill", token, value=0)
    with w.loop(0, 2 * (n - 1)):
        w.send(channel, token, (unit + 1) % n)
        w.copy(token, w.receive(channel, token))


MAX_MESH_RANKS = 128
"""Ranks of the n-1 rings of a full mesh: the Plan grows with their square."""


ON_MESH = needs(
    ON_ONE_NETWORK, (lambda job: 3 <= job.ranks <= MAX_MESH_RANKS, f"is for 3 to {MAX_MESH_RANKS} ranks")
)


@algorithm("hamilton", "all_reduce", "reduce_scatter", "all_gather", unfit=ON_MESH)
def hamilton(w: Writer, chunks: int = 1) -> None:
    """n-1 rings at once, each over its own links of a full mesh."""
    write_rings(w, along_cycles(gen_hamilton_circle(w.job.ranks)), chunks)


@algorithm("multi_ring", "all_reduce", "reduce_scatter", "all_gather", unfit=ON_MESH)
def multi_ring(w: Writer, rings: int = 2, chunks: int = 1) -> None:
    """Several rings that share no link, each with its part of the data; at most as many as there are."""
    write_rings(w, along_cycles(partial_rings(w.job.ranks, min(rings, most_rings(w.job.ranks)))), chunks)


@algorithm("ring_naive", "all_reduce")
def ring_naive(w: Writer) -> None:
    """Whole buffers go round; n-1 steps of the whole size. The ring kernel of ``ccl.yaml`` does the same."""
    n = w.job.ranks
    blocks = Blocks(w.job.count, w.pieces(w.job.count))
    channel = w.channel("ring", (unit - 1) % n, blocks.most)
    near = w.near("near", blocks.most)
    with w.loop(0, blocks.parts, "piece") as number:
        mine, result = (blocks.part(x, number) for x in (w.own, w.sums))
        total = result
        if near is not None:
            mine = total = w.load(near, mine)
        w.send(channel, mine, (unit + 1) % n)
        if n > 2:
            _step(w, channel, mine, total, n, True)
        if n > 3:
            with w.loop(1, n - 2):
                _step(w, channel, total, total, n, True)
        _step(w, channel, mine if n == 2 else total, total, n, False)
        if near is not None:
            w.copy(result, total)


def _step(w: Writer, channel: Channel, mine: Part, total: Part, n: int, on: bool) -> None:
    message = w.receive(channel, total)
    if on:
        w.send(channel, message, (unit + 1) % n)
    w.reduce(total, mine, message)


# --- rings that leave a node through a different network card each, as many as a node has ranks ---

MAX_RAIL_RANKS = 1024
"""Ranks of rings over rails: each rank has commands of its own."""


ON_RAILS = needs(
    ON_NODES, (lambda job: job.ranks <= MAX_RAIL_RANKS, f"is for at most {MAX_RAIL_RANKS} ranks")
)


# Rings on all rails at once need many channels; libraries run the small path on one or few.
@algorithm("rail_rings", "all_reduce", "reduce_scatter", "all_gather", unfit=ON_RAILS)
def rail_rings(w: Writer, chunks: int = 1, lag: int = 0) -> None:
    """One ring per rank of a node; each enters and leaves nodes on its own rail.

    A message between nodes takes about as long as ``lag`` steps inside one; rings that wait for one are taken
    that much later, so that they do not hold up the others.
    """
    inside, nodes = w.job.nesting
    group = along_cycles([rail_order(inside, nodes, lane) for lane in range(inside)])
    if lag:
        # Messages between nodes wait for their turn: as many rounds as they are handled later.
        slots = max(slots_between(chunks), chunks * (lag + 2))
        staggered(Ring(w, group, w.blocks, chunks, slots), inside, lag)
    else:
        write_rings(w, group, chunks)


def rail_order(inside: int, nodes: int, lane: int) -> list[int]:
    """Even nodes from the lane's rank on, odd nodes back to it: messages between nodes stay on one rail."""
    order = []
    for node in range(nodes):
        ranks = [(lane + i) % inside for i in range(inside)]
        order += [node * inside + r for r in (ranks if node % 2 == 0 else reversed(ranks))]
    return order


# A unit handles its lanes in a fixed order. Lanes cross between nodes at different units, so in every step a
# lane of a unit has just crossed; taking lane by lane, all units would wait for it in every step. Here a lane
# that has crossed f times is handled ``f * lag`` rounds later, the order in which its messages arrive
# if a crossing takes as long as ``lag`` steps inside a node.
def staggered(ring: Ring, inside: int, lag: int) -> None:
    """Do the job on all lanes; every ``inside`` positions a lane enters another node."""
    w, n = ring.writer, ring.group.size
    reducing = n - 1 if w.job.operation in REDUCING else 0
    steps = reducing + (n - 1 if w.job.operation != "reduce_scatter" else 0)
    if reducing:
        ring.begin_reduction(w.own)
    else:
        w.put_contribution()
        ring.begin_gathering(w.sums, w.own if w.out_of_place else None)
    with w.loop(0, steps + lag * -(-steps // inside), "round") as now, ring.every() as (lane, chunk):
        seat = ring.group.lane(lane).me % inside
        step, due = _step_of(now, seat, inside, lag)
        if reducing:
            with w.when(due & (step < n - 1)):
                _reduce(ring, step, lane, chunk, on=steps > reducing)
        if steps > reducing:
            with w.when(due & (step >= reducing) & (step < steps)):
                _gather(ring, w.sums, step - reducing, lane, chunk)


def _step_of(now: Expr, seat: Expr, inside: int, lag: int) -> tuple[Expr, Expr]:
    """Return the step that a lane does in round ``now``, and whether it does one.

    Position ``seat`` of a node gets what began in its own node for ``seat`` steps; then ``inside`` steps of
    each node before it, each after a pause of ``lag`` rounds.
    """
    since = now - seat
    crossings, within = since // (inside + lag), since % (inside + lag)
    step = select(since < 0, now, seat + crossings * inside + within - lag)
    return step, (since < 0) | (within >= lag)


def _reduce(ring: Ring, step: Expr, lane: Expr, chunk: Expr, on: bool) -> None:
    """Add mine to what comes and send it on, the last one only if ``on``: else it is the result."""
    w, last = ring.writer, ring.group.size - 2
    mine, total = (ring.piece(x, step + 2, lane, chunk) for x in (w.own, w.sums))
    message = ring.receive(mine, lane)

    def send_on() -> None:
        w.reduce(total, mine, message)
        ring.send(total, lane)

    if on:
        send_on()
        return
    result = ring.piece(w.output, step + 2, lane, chunk, local=True) if w.out_of_place else total
    w.either(step < last, send_on, lambda: w.reduce(result, mine, message))


def _gather(ring: Ring, sums: Handle, step: Expr, lane: Expr, chunk: Expr) -> None:
    place = ring.piece(sums, step + 1, lane, chunk)
    message = ring.receive(place, lane)
    with ring.writer.when(step < ring.group.size - 2):
        ring.send(message, lane)
    ring.writer.copy(place, message)
