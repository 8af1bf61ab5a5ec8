"""Writes a collective's Plan: buffers, reductions, and the finishing touches that every algorithm shares."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from megatile.collectives.blocks import Blocks, piece
from megatile.collectives.job import REDUCING, Job
from megatile.core.expr import Expr, IntLike, eq, expr, minimum, unit
from megatile.core.operations import REDUCTIONS
from megatile.plan.build import THROUGH, Handle, Operand, Part, PlanBuilder, part
from megatile.plan.model import Channel, Plan, Region

__all__ = ["Writer"]
THROUGH.add(__file__)


class Writer:
    """A ``PlanBuilder`` with the job's buffers.

    ``own`` holds this rank's contribution and is never written out of place; ``sums`` is where results grow:
    the output, or the buffer itself in place, or scratch where the output holds only a block. Channels move
    data; ``copy`` moves it inside a unit with the vector engine, as collective kernels on real devices do, so
    that it runs beside the sends. A unit with a memory of its own, nearer than the buffers (``near``), copies
    with its DMA engine, and rings add and send there: a sum is read and written once, not in every step.
    """

    def __init__(self, job: Job, name: str):
        self.job = job
        label = f"{job.operation} {name} n={job.ranks} count={job.count} {job.dtype}"
        self.builder = PlanBuilder(label, scale=job.scale, units=job.ranks, placement=job.place)
        first, second = job.shapes
        self.own = self.sums = self.output = Handle("x", (1,), job.dtype, job.memory)
        if first is not None:
            self._buffers(first, second)

    def _buffers(self, first: tuple[int, ...], second: tuple[int, ...] | None) -> None:
        role = "inout" if second is None else "input"
        self.own = self.tile("x", first, role)
        self.output = self.own if second is None else self.tile("y", second, "output")
        self.sums = self.output
        if second is not None and self.job.operation == "reduce_scatter":
            # The output is one block, but partial sums of every block pass through here.
            self.sums = self.tile("sums", first, "local")

    def tile(self, name: str, shape: tuple[int, ...], role: str = "local") -> Handle:
        return self.builder.tile(name, shape, self.job.dtype, memory=self.job.memory, role=role)

    def near(self, name: str, elements: int, versions: int = 1) -> Handle | None:
        """Return a tile in the unit's own memory; None where buffers already lie there."""
        if self.job.near is None:
            return None
        shape, memory = (max(1, elements),), self.job.near
        return self.builder.tile(name, shape, self.job.dtype, memory=memory, versions=versions)

    def pieces(self, elements: int, versions: int = 1) -> int:
        """Return into how many pieces to cut elements so that ``versions`` of one fit into near memory."""
        if self.job.near is None:
            return 1
        return max(1, -(-elements * self.job.itemsize * versions // max(1, self.job.near_bytes)))

    @property
    def out_of_place(self) -> bool:
        return self.own is not self.output

    @property
    def blocks(self) -> Blocks:
        """The whole buffer in one block per rank."""
        return Blocks(self.job.count, self.job.ranks)

    # --- moving ----------------------------------------------------------------------------------

    def channel(
        self, name: str, source: IntLike, most: int, *, members: int | tuple[str, ...] = 1, slots: int = 2
    ) -> Channel:
        """Queues for messages of at most ``most`` elements; ``source`` is who feeds me."""
        return self.builder.channel(
            name,
            source=source,
            slot_bytes=max(1, most) * self.job.itemsize,
            memory=self.job.slot_memory or self.job.memory,
            members=members,
            slots=slots,
        )

    def send(self, channel: Channel, what: Operand, to: IntLike, member: IntLike = 0) -> None:
        self.builder.send(channel, what, to=to, member=member)

    def receive(self, channel: Channel, like: Operand, member: IntLike = 0) -> Handle:
        """Receive the next message, as long as ``like``."""
        handle = self.builder.receive(channel, part(like).shape, self.job.dtype, member=member)
        assert isinstance(handle, Handle)
        return handle

    def copy(self, to: Operand, what: Operand) -> None:
        self.builder.copy(to, what, engine="vector" if self.job.near is None else None)

    def load(self, to: Handle, what: Part) -> Part:
        """Copy ``what`` into the next version of a near tile and return where it lies."""
        place = Part(to, Region(to.name, (expr(0),), what.region.shape))
        self.builder.copy(place, what, fresh=True)
        return place

    def reduce(self, to: Operand, a: Operand, b: Operand) -> None:
        """``to = a (reduction) b``."""
        self.builder.compute(REDUCTIONS[self.job.combined], to, [a, b])

    # --- structure -------------------------------------------------------------------------------

    @contextmanager
    def loop(self, start: IntLike, stop: IntLike, index: str = "step") -> Iterator[Expr]:
        """A loop, or just its body with a number where it runs once."""
        if isinstance(start, int) and isinstance(stop, int) and stop - start == 1:
            yield expr(start)
            return
        with self.builder.loop(start, stop, index=index) as scope:
            yield scope.index

    @contextmanager
    def when(self, condition: IntLike) -> Iterator[None]:
        with self.builder.when(condition):
            yield

    def either(self, condition: IntLike, then: Callable[[], None], otherwise: Callable[[], None]) -> None:
        with self.builder.when(condition) as branch:
            then()
        with branch.otherwise():
            otherwise()

    def finish(self) -> Plan:
        if self.job.operation in REDUCING and self.job.reduction == "avg":
            self._average()
        return self.builder.finish()

    def _average(self) -> None:
        """Divide the finished sums by the number of ranks, where the result is."""
        divisor = self.tile("divisor", (1,))
        b = self.builder
        b.compute("fill", divisor, value=self.job.ranks)
        result = self.result()
        if self.job.operation == "reduce":
            with self.when(is_rank(self.job.root)):
                b.compute("div", result, [result, divisor])
        else:
            b.compute("div", result, [result, divisor])

    def result(self) -> Part:
        """Return where this rank's result is at the end."""
        blocks = self.blocks
        if self.job.operation in ("reduce_scatter", "scatter"):
            if self.out_of_place:
                return piece(self.output, 0, blocks.length(unit))
            return blocks.part(self.own, unit)
        return self.whole(self.output)

    def whole(self, handle: Handle) -> Part:
        """Return all elements of a buffer."""
        return piece(handle, 0, self.job.count)

    def contribution(self) -> Part:
        """Return this rank's block of an ``all_gather`` or ``gather``."""
        if self.out_of_place:
            return piece(self.own, 0, self.blocks.length(unit))
        return self.blocks.part(self.own, unit)

    def put_contribution(self) -> None:
        """Out of place, this rank's own block of an ``all_gather``."""
        if self.out_of_place:
            self.copy(self.blocks.part(self.output, unit), self.contribution())

    def put_root_data(self) -> None:
        """Out of place, the root's own copy of a broadcast."""
        if self.out_of_place and self.job.operation == "broadcast":
            with self.when(is_rank(self.job.root)):
                self.copy(self.whole(self.output), self.whole(self.own))

    def each_part(
        self, blocks: Blocks, begin: IntLike, count: Expr, put: Callable[[Callable[[Handle], Part]], None]
    ) -> None:
        """``put`` ``count`` blocks from ``begin`` on: those up to the last one, then the rest from the first
        one on, if there is any."""
        here = minimum(count, blocks.parts - expr(begin))
        put(lambda handle: piece(handle, *blocks.stretch(begin, here)))
        with self.when(count > here):
            put(lambda handle: piece(handle, *blocks.stretch(0, count - here)))

    def collective(self, kind: str, key: IntLike, read: Part, write: Part, root: IntLike = 0) -> None:
        """Let the network do it for the units with the same ``key``."""
        group = self.builder.group(f"by_{len(self.builder.groups)}", key)
        self.builder.collective(kind, group, read, write, reduction=self.job.combined, root=root)


def is_rank(rank: int) -> Expr:
    """Return whether this unit is that rank."""
    return eq(unit, rank)
