"""Reduction done by the switch itself (NVLS, SHARP), and in a pipeline with rings between nodes."""

from __future__ import annotations

from collections.abc import Callable

from megatile.collectives.blocks import Blocks
from megatile.collectives.job import Job
from megatile.collectives.phases.exchange import Direct
from megatile.collectives.rank_groups import along
from megatile.collectives.registry import ON_NODES, ON_ONE_NETWORK, algorithm, needs
from megatile.collectives.writer import Writer
from megatile.core.expr import Expr, IntLike, unit
from megatile.plan.build import Handle, Part


def network_reduces(job: Job, level: int) -> str | None:
    """Return why the network of a level cannot do the job by itself (None: it can)."""
    able = job.reduces[level] if -len(job.reduces) <= level < len(job.reduces) else ()
    if job.operation in ("broadcast", "barrier"):
        return None if able else "the network does no reductions or broadcasts"
    return None if job.combined in able else f"the network does not reduce '{job.combined}' by itself"


def _reduced(where: tuple[Callable[[Job], bool], str]) -> Callable[[Job], str | None]:
    """Return why the innermost network cannot reduce a job on its own (None: it can)."""
    return lambda job: needs(where)(job) or network_reduces(job, 0)


@algorithm(
    "in_network", "all_reduce", "broadcast", "barrier", unfit=_reduced(ON_ONE_NETWORK), protocol="NVLS"
)
def in_network(w: Writer) -> None:
    """The switch reduces: every rank sends and receives each element once."""
    match w.job.operation:
        case "barrier":
            w.builder.barrier(w.builder.group("everybody"))
        case "broadcast":
            w.put_root_data()
            w.collective("broadcast", 0, w.whole(w.sums), w.whole(w.sums), w.job.root)
        case _:
            w.collective("all_reduce", 0, w.whole(w.own), w.whole(w.sums))


@algorithm("in_network_tree", "all_reduce", unfit=_reduced(ON_NODES), protocol="NVLS")
def in_network_tree(w: Writer, chunks: int = 1) -> None:
    """Each node's switch reduces a chunk while earlier chunks travel between nodes and spread inside them."""
    Pipeline(w, chunks).write()


class Pipeline:
    """Round r reduces chunk r in the node, moves the chunks before it one step round the nodes, and spreads
    the one that has come round. A rank looks after its own block of every chunk."""

    lag = 0
    """Rounds between a chunk's first commands and its first step between nodes."""

    def __init__(self, w: Writer, chunks: int):
        self.w, self.chunks = w, Blocks(w.job.count, chunks)
        self.inside, self.across = along(w.job.nesting)
        self.cut = Blocks(self.chunks.most, self.inside.size)
        steps = 2 * (self.across.size - 1)
        piece = Blocks(self.cut.most, self.across.size).most
        self.ring = w.channel("between", self.across.after(-1), piece, slots=2 * steps + 2)
        self.spread = Direct(w, self.inside, self.cut, "spread", "peer")

    def write(self) -> None:
        w, between = self.w, self.across.size - 1
        with w.loop(0, self.chunks.parts + 2 * between + 2 + self.lag, "round") as now:
            self._begin(now)
            now = now - self.lag
            with w.loop(0, between, "step") as step, w.when(self._due(now - 1 - step)):
                place = self._piece(now - 1 - step, step + 2)
                w.reduce(place, place, w.receive(self.ring, place))
                self._send(place)
            with w.loop(0, between, "step") as step, w.when(self._due(now - 1 - between - step)):
                place = self._piece(now - 1 - between - step, step + 1)
                message = w.receive(self.ring, place)
                with w.when(step < between - 1):
                    self._send(message)
                w.copy(place, message)
            with w.when(self._due(now - 1 - 2 * between)):
                self.spread.spread(self._blocks(now - 1 - 2 * between).part(w.sums, self.inside.me))
            with w.when(self._due(now - 2 - 2 * between)):
                self.spread.collect(w.sums, self._blocks(now - 2 - 2 * between))

    def _begin(self, now: Expr) -> None:
        w = self.w
        with w.when(now < self.chunks.parts):
            whole = self.chunks.part(w.sums, now)
            w.collective("all_reduce", unit // self.inside.size, self.chunks.part(w.own, now), whole)
            self._send(self._piece(now, 1))

    def _due(self, chunk: Expr) -> Expr:
        return (chunk >= 0) & (chunk < self.chunks.parts)

    def _blocks(self, chunk: IntLike) -> Blocks:
        return self.chunks.inside(chunk, self.inside.size)

    def _piece(self, chunk: IntLike, back: IntLike) -> Part:
        """Of my block of a chunk: the part of the node ``back`` behind mine."""
        cut = self._blocks(chunk).inside(self.inside.me, self.across.size)
        return cut.part(self.w.sums, (self.across.me - back) % self.across.size)

    def _send(self, what: Part | Handle) -> None:
        self.w.send(self.ring, what, self.across.after(1))


class Messages(Pipeline):
    """The same where no switch reduces: the ranks of a node send each other their blocks of a chunk, and
    reduce them a round later."""

    lag = 1

    def __init__(self, w: Writer, chunks: int):
        super().__init__(w, chunks)
        self.scatter = Direct(w, self.inside, self.cut, "scatter", "peer")

    def _begin(self, now: Expr) -> None:
        w = self.w
        with w.when(now < self.chunks.parts):
            self.scatter.hand_out(w.own, self._blocks(now))
        with w.when(self._due(now - self.lag)):
            block = self._blocks(now - self.lag)
            self.scatter.add_up(*(block.part(tile, self.inside.me) for tile in (w.own, w.sums)))
            self._send(self._piece(now - self.lag, 1))
