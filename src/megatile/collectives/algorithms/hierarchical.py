"""Level by level, inside the smallest groups first, as the machine is nested, or a grid has dimensions."""

from __future__ import annotations

from collections.abc import Sequence

from megatile.collectives.algorithms.in_network import Messages, network_reduces
from megatile.collectives.blocks import Blocks, joined, piece
from megatile.collectives.job import CollectiveError, Job
from megatile.collectives.phases import Phase
from megatile.collectives.phases.chain import along_tree, heap
from megatile.collectives.phases.exchange import Direct, Exchange, Skips, power_below
from megatile.collectives.phases.ring import Ring
from megatile.collectives.rank_groups import RankGroup, along, bidirectional
from megatile.collectives.registry import algorithm, needs
from megatile.collectives.writer import Writer
from megatile.core.errors import did_you_mean
from megatile.core.expr import eq, unit
from megatile.plan.build import Handle

MAX_RING_NODES = 64
"""A level with more members than this is crossed by the network itself if it can, else in log2(n) rounds."""
OVERLAPPED_FROM = 16 << 20
"""Bytes from which an all-reduce overlaps its levels without being asked."""
CHUNK = 4 << 20
"""Bytes of a chunk then; there are 4 to 32."""
INNER = ("auto", "ring", "direct")
OUTER = ("auto", "messages", "in_network")


def two_levels(job: Job) -> bool:
    """Return whether the levels of a job can overlap."""
    return job.operation == "all_reduce" and len(job.nesting) == 2


def overlaps(job: Job, chunks: int = 0) -> bool:
    """Return whether the levels of a job overlap without being asked to."""
    few = two_levels(job) and job.nesting[-1] <= MAX_RING_NODES
    return few and (chunks > 1 or job.nbytes >= OVERLAPPED_FROM)


@algorithm(
    "hierarchical",
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "broadcast",
    "reduce",
    unfit=needs((lambda job: len(job.nesting) > 1, "the ranks are not nested in equal groups")),
)
def hierarchical(
    w: Writer, chunks: int = 0, inner: str = "auto", outer: str = "auto", overlap: bool | None = None
) -> None:
    """Reduce-scatter inside each group, all-reduce between groups, all-gather inside; any number of levels.

    ``inner``: ring or direct; ``outer``: messages, in_network (the outermost network reduces), or auto: that
    is in_network between many groups where the network can, else messages. ``overlap`` (all-reduce over two
    levels): chunks travel between groups while others are exchanged directly inside them; by itself from
    16 MiB on, or where ``chunks`` are asked for, unless ``inner`` or ``outer`` is named. ``chunks=0``: by
    size.
    """
    job = w.job
    for name, value, known in (("inner", inner, INNER), ("outer", outer, OUTER)):
        if value not in known:
            raise CollectiveError(
                f"hierarchical has no {name}='{value}'", advice=did_you_mean(value, known, what=f"{name}s")
            )
    if overlap and not two_levels(job):
        raise CollectiveError(
            "hierarchical overlaps an all_reduce over two levels, "
            f"not {job.operation} over {len(job.nesting)}"
        )
    if overlap and (inner == "ring" or outer == "in_network"):
        raise CollectiveError(
            "hierarchical overlaps direct exchange inside groups with messages between them",
            advice="leave out inner= and outer=, or use overlap=False",
        )
    if overlap is None:
        overlap = inner == outer == "auto" and overlaps(job, chunks)
    if overlap:
        Messages(w, chunks or min(32, max(4, job.nbytes // CHUNK))).write()
        return
    if outer == "auto":
        far = job.nesting[-1] > MAX_RING_NODES and network_reduces(job, -1) is None
        outer = "in_network" if far else "messages"
    nested(w, job.nesting, chunks=max(1, chunks), inner=inner, outer=outer)


def nested(
    w: Writer,
    extents: Sequence[int],
    *,
    chunks: int = 1,
    both_ways: bool = False,
    inner: str = "ring",
    outer: str = "messages",
) -> None:
    """Write the job over a grid of ranks, one phase per dimension, the first dimension being the nearest."""
    groups = list(along([e for e in extents if e > 1]))
    levels = Levels(w, groups, chunks, both_ways, inner, outer)
    levels.rooted() if w.job.operation in ("broadcast", "reduce") else levels.write()


class Levels(Phase):
    """The phases of a nested collective. Buffers are cut again at every level."""

    def __init__(
        self, w: Writer, groups: list[RankGroup], chunks: int, both_ways: bool, inner: str, outer: str
    ):
        self.w = self.writer = w
        self.groups, self.chunks, self.both_ways = groups, chunks, both_ways
        self.inner, self.outer = inner, outer

    def all_reduce(self, own: Handle, sums: Handle) -> None:
        """Reduce-scatter from the inside out; at the outermost level all-reduce; then gather back."""
        w = self.w
        source, cut = own, Blocks(w.job.count, self.groups[0].size)
        phases: list[Ring | Direct] = []
        for group, beyond in zip(self.groups, self.groups[1:], strict=False):
            direct = self.inner == "direct"
            phase = Direct(w, group, cut) if direct else self._ring(group, cut)
            phase.reduce_scatter(source, sums)
            phases.append(phase)
            source, cut = sums, cut.inside(group.me, beyond.size)
        self._all_reduce(self.groups[-1], cut, source)
        for phase in reversed(phases):
            phase.all_gather(sums)

    def _ring(self, group: RankGroup, blocks: Blocks) -> Ring:
        wide = bidirectional(group) if self.both_ways and group.size > 2 else group
        return Ring(self.w, wide, blocks, self.chunks)

    def _all_reduce(self, group: RankGroup, blocks: Blocks, source: Handle) -> None:
        if self.outer == "in_network":
            meeting = unit // (group.size * group.stride) * group.stride + unit % group.stride
            mine, total = (piece(h, blocks.base, blocks.count) for h in (source, self.w.sums))
            self.w.collective("all_reduce", meeting, mine, total)
            return
        if group.size <= MAX_RING_NODES:
            self._ring(group, blocks).all_reduce(source, self.w.sums)
            return
        if source is not self.w.sums:
            everything = (piece(h, blocks.base, blocks.count) for h in (self.w.sums, source))
            self.w.copy(*everything)
        phase = Exchange if power_below(group.size) == group.size else Skips
        phase(self.w, group, blocks).all_reduce(self.w.sums, self.w.sums)

    def _segments(self) -> list[tuple[RankGroup, Blocks]]:
        """From the outside in: contiguous stretches of the ranks' blocks, cut by level."""
        cut: list[tuple[RankGroup, Blocks]] = []
        inside = self.w.job.ranks
        for group in reversed(self.groups):
            inside //= group.size
            around = inside * group.size
            cut.append((group, joined(self.w.blocks, unit // around * around, inside, group.size)))
        return cut

    def reduce_scatter(self, own: Handle, sums: Handle, into: Handle | None = None) -> None:
        """From the outside in, so that rank r ends with block r."""
        *outer, (group, blocks) = self._segments()
        for other, cut in outer:
            self._ring(other, cut).reduce_scatter(own, sums)
            own = sums
        self._ring(group, blocks).reduce_scatter(own, sums, into)

    def all_gather(self, sums: Handle, own: Handle | None = None) -> None:
        for group, blocks in reversed(self._segments()):
            self._ring(group, blocks).all_gather(sums)

    def rooted(self) -> None:
        """Broadcast from the outside in, reduce from the inside out; the root's coordinates lead."""
        w, root = self.w, self.w.job.root
        parts = Blocks(w.job.count, self.chunks)
        w.put_root_data()
        source = w.own
        for group in reversed(self.groups) if w.job.operation == "broadcast" else self.groups:
            tree = heap(group, root // group.stride % group.size)
            # Those that have the root's coordinates in all dimensions inside.
            with w.when(eq(unit % group.stride, root % group.stride)):
                along_tree(w, tree, parts, source)
            source = w.sums


@algorithm("by_dimension", "all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce")
def by_dimension(w: Writer, chunks: int = 1, both_ways: bool = False) -> None:
    """Rings along x, then y, … of the grid the ranks stand on (a mesh or a torus)."""
    nested(w, w.job.grid, chunks=chunks, both_ways=both_ways)
