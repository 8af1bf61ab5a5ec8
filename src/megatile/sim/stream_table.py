"""A stream as rows of instructions: what the flat code of a plan (`plan.code`) becomes.

Names become cells of the *frame* of integers that every instance of the stream has: those of integers hold
their value, those of handles the storage that they mean.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from megatile.core.expr import Expr
from megatile.plan import model as pm
from megatile.plan.code import Code, Instruction
from megatile.plan.kernel_ends import kernel_ends
from megatile.plan.statements import (
    COMMANDS,
    engine_of,
    int_flows,
    reads_of,
    tile_flows,
    write_of,
)
from megatile.sim import instructions as si, state as st
from megatile.sim.expressions import FrameCache
from megatile.sim.run_ahead import after_round
from megatile.sim.state import NONE, RegionRow

if TYPE_CHECKING:
    from megatile.sim.table import CommandTable

_JUMPS = {"test": si.LoopTestRow.exit, "branch": si.BranchRow.orelse, "jump": si.JumpRow.target}
"""The operand of a row that says where it jumps to."""
Cells = dict[str, int]


class Scope(NamedTuple):
    """Of a loop or branch under way: the cells of names before it, and of those after it."""

    before: tuple[Cells, Cells]
    after: tuple[Cells, Cells]


class StreamTable:
    """The rows of one stream: where they begin, and the frame that an instance begins with.

    A method ``on_`` and the word of a command or the kind of an instruction writes its row. ``ints`` and
    ``handles`` are the cells of the names that are known at the instruction at hand.
    """

    def __init__(self, table: CommandTable, code: Code) -> None:
        self.table, self.code_tables, self.code = table, table.code_tables, code.instructions
        self.level = code.stream.level
        self.first = len(self.code_tables.code)
        self.frame = [0]
        self.cache = FrameCache(self.frame)
        self.ints: Cells = {"unit": 0}
        self.handles: Cells = {}
        self.counters: Cells = {}
        """Cells that count the versions of tiles, and how often integers were read."""
        self.scopes: list[Scope] = []
        self.all_handles: list[int] = []
        commands = [i.statement for i in self.code if i.kind in COMMANDS]
        self.written = self._written(commands)
        self.tells = any(isinstance(s, (pm.Send, pm.Signal, pm.Collective)) for s in commands)
        """Whether what it does is seen by others: else it does not matter which of its accesses are."""
        self.tiles = self._tiles(commands)
        self.row_of: list[int] = []
        """The row of every instruction."""
        ends = kernel_ends(table.plan, code) if pm.Start in table.plan.kinds else ()
        for number, i in enumerate(self.code):
            self.row_of.append(len(self.code_tables.code))
            if number in ends:
                self.emit(None, si.StartRow, nbytes=NONE, ends=1)
            getattr(self, f"on_{i.kind}")(i.statement if i.kind in COMMANDS else i)
        for i, row in zip(self.code, self.row_of, strict=True):
            if i.kind in _JUMPS:
                self.code_tables.code[row][_JUMPS[i.kind]] = self.row_of[i.target]
        self.template = self.code_tables.raw(self.frame)
        """Where the frame stands in the lists."""

    def _written(self, commands: list[Any]) -> set[str]:
        """Declared tiles that the stream may write: only their accesses can conflict."""
        written = {w.tile for s in commands if (w := write_of(s)) is not None}
        if written - set(self.table.tiles):
            # Something is written through a handle: whatever was captured by one may be meant.
            written |= {source for i in self.code for _, source in i.tiles}
        over = self.table.over
        groups = {over[name] for name in written if name in over}
        return written | {name for name, first in over.items() if first in groups}

    def _tiles(self, commands: list[Any]) -> int:
        """Return where the rows of the declared tiles begin; each stream has its own, with its version
        counters."""
        fresh = {w.tile for s in commands if getattr(s, "fresh", False) and (w := write_of(s)) is not None}
        first = len(self.code_tables.tiles)
        for tile, base in zip(self.table.plan.tiles, self.table.base, strict=True):
            version = self.counter(tile.name) if tile.versions > 1 and tile.name in fresh else NONE
            self.code_tables.tiles.append([base, tile.versions, version])
        return first

    # names, expressions and regions

    def cell(self, value: int) -> int:
        """One more cell of the frame."""
        self.frame.append(value)
        return len(self.frame) - 1

    def counter(self, name: str) -> int:
        """Return the cell that counts something, from 0 on."""
        if name not in self.counters:
            self.counters[name] = self.cell(0)
        return self.counters[name]

    def handle(self, name: str) -> int:
        """Return the cell of a handle; a new one if the name has none here."""
        if name not in self.handles:
            self.handles[name] = self.cell(NONE)
            self.all_handles.append(self.handles[name])
        return self.handles[name]

    def emit(self, statement: Any, kind: type[si.InstructionRow], **operands: int) -> int:
        """One more instruction; its number."""
        self.code_tables.code.append(kind.row(kind=kind.KIND, **operands))
        self.code_tables.statements.append(statement)
        return len(self.code_tables.code) - 1

    def value(self, node: Expr) -> int:
        """Return the number of an expression."""
        return self.code_tables.expression(node, self.ints, self.cache)

    def meant(self, name: str) -> tuple[int, int]:
        """Return how a name says which tile it means, and the cell or row where that is found."""
        if name in self.handles:
            return st.HANDLE, self.handles[name]
        return st.DECLARED, self.tiles + self.table.tiles[name]

    def region(self, region: pm.Region) -> int:
        """Return the number of a region."""
        tables, table = self.code_tables, self.table
        bounds = [self.value(e) for pair in zip(region.start, region.shape, strict=True) for e in pair]
        tables.dimensions = max(tables.dimensions, len(region.start))
        owner = NONE if region.at is None else self.value(region.at)
        visible, own, tracked = owner != NONE, table.all_own, True
        mode, what = self.meant(region.tile)
        piece = NONE
        if mode == st.DECLARED:
            tile = table.plan.tiles[table.tiles[region.tile]]
            tracked = region.tile in self.written and tile.elements > 0
            visible |= region.tile in table.visible
            own = not tile.shared and tile.level == self.level
            if tile.over is not None and region.at is None:
                piece = self.value(tile.block_of(region))
        tables.regions.append(
            RegionRow.row(
                mode=mode, tile=what, dimensions=len(region.start), bounds=tables.raw(bounds), owner=owner,
                visible=int(visible and self.tells), tracked=int(tracked), own=int(own),
                piece=piece,
            )
        )  # fmt: skip
        return len(tables.regions) - 1

    # commands

    def begun(self, statement: Any) -> int:
        """Return the counter of the version that a command begins."""
        write = write_of(statement) if statement.fresh else None
        return NONE if write is None else self.counters.get(write.tile, NONE)

    def on_compute(self, s: Any) -> None:
        regions = [self.region(r) for r in (*s.reads, s.write)]
        engine = self.table.engine_queue(engine_of(s))
        operands = {
            "engine": engine,
            "flops": self.value(s.work.flops),
            "nbytes": self.value(s.work.bytes),
            "regions": self.code_tables.list(regions),
            "version": self.begun(s),
        }
        if s.engine == "dma":
            self.emit(s, si.CopyRow, **operands, mover=engine - st.DMA)
        else:
            self.emit(s, si.WorkRow, **operands, straggles=0, flow=self.table.actors)

    def on_send(self, s: Any) -> None:
        to, member, nbytes = (self.value(e) for e in (s.to, s.member, s.work.bytes))
        channel, per = self.table.find("channels", s.channel, self.level)
        self.emit(
            s, si.SendRow, channel=channel, per=per, to=to, member=member, region=self.region(s.read),
            nbytes=nbytes, by_kernel=int(self.table.plan.sent_by_kernel(s.channel)),
        )  # fmt: skip

    def _received(self, s: Any) -> dict[str, int]:
        """Return the operands that both ways to receive have."""
        channel, per = self.table.find("channels", s.channel, self.level)
        return {
            "channel": channel,
            "per": per,
            "into": self.region(s.into) if s.into is not None else NONE,
            "handle": self.handle(s.name) if s.into is None else NONE,
            "nbytes": self.value(s.work.bytes),
            "version": self.begun(s),
        }

    def on_receive(self, s: Any) -> None:
        self.emit(s, si.ReceiveRow, **self._received(s), member=self.value(s.member))

    def on_receive_any(self, s: Any) -> None:
        chosen = self.ints[s.chosen] = self.cell(0)
        members = self.code_tables.list(s.members)
        self.emit(s, si.ReceiveAnyRow, **self._received(s), members=members, chosen=chosen)

    def on_read_scalar(self, s: Any) -> None:
        region = self.region(s.read)
        if s.name not in self.ints:
            self.ints[s.name] = self.cell(0)
        times = self.counter(f"reads of {s.name}")
        self.emit(s, si.ReadScalarRow, region=region, cell=self.ints[s.name], times=times)

    def on_signal(self, s: Any) -> None:
        to, member, amount = (self.value(e) for e in (s.to, s.member, s.amount))
        flag, _ = self.table.find("flags", s.flag, self.level)
        self.emit(s, si.SignalRow, flag=flag, to=to, member=member, amount=amount)

    def on_wait(self, s: Any) -> None:
        value, member = self.value(s.value), self.value(s.member)
        flag, per = self.table.find("flags", s.flag, self.level)
        self.emit(s, si.WaitRow, flag=flag, value=value, member=member, per=per)

    def on_start(self, s: Any) -> None:
        self.emit(s, si.StartRow, nbytes=self.value(s.work.bytes), ends=0)

    def on_collective(self, s: Any) -> None:
        write = write_of(s)
        reads = [self.region(r) for r in reads_of(s)]
        writes = [self.region(write)] if write is not None else []
        regions = self.code_tables.raw([len(reads), len(writes), *reads, *writes])
        rendezvous, nbytes = self.table.group_lists[s.group], self.value(s.work.bytes)
        self.emit(s, si.CollectiveRow, rendezvous=rendezvous, regions=regions, nbytes=nbytes)

    def on_free(self, s: Any) -> None:
        self.emit(s, si.FreeRow, ended=self.ended(s.names))

    # control flow

    def ended(self, names: Iterable[str]) -> int:
        """Return the list of the cells of handles that end."""
        return self.code_tables.list(self.handles[name] for name in names if name in self.handles)

    def bindings(self, cells: Cells, pairs: Iterable[tuple[str, str]]) -> int:
        """Return names to bind: (cell, how the source is meant, source) of each, their number first."""
        flat = [n for name, source in pairs for n in (cells[name], *self.meant(source))]
        return self.code_tables.raw([len(flat) // 3, *flat]) if flat else 0

    def integers(self, cells: Cells, pairs: Iterable[tuple[str, Expr]]) -> int:
        """Return integers to set: (cell, expression) of each, their number first."""
        flat = [n for name, node in pairs for n in (cells[name], self.value(node))]
        return self.code_tables.raw([len(flat) // 2, *flat]) if flat else 0

    def open(self, statement: Any) -> None:
        """Begin a loop or branch: what it carries or merges has cells after it, and is known by then."""
        before = self.ints, dict(self.handles)
        for flow in tile_flows(statement):
            self.handle(flow.name)
        after = {**self.ints, **{flow.name: self.cell(0) for flow in int_flows(statement)}}, self.handles
        self.scopes.append(Scope(before, after))
        self.side()

    def side(self) -> None:
        """Go on with the names that are known before the loop or branch."""
        ints, handles = self.scopes[-1].before
        self.ints, self.handles = dict(ints), dict(handles)

    def flows(self, i: Instruction) -> dict[str, int]:
        """Return the operands that give carried or merged names a new meaning."""
        ints, handles = self.scopes[-1].after
        return {"bindings": self.bindings(handles, i.tiles), "integers": self.integers(ints, i.numbers)}

    def bound_inside(self, outer: tuple[Cells, Cells]) -> int:
        """Return the list of the cells of handles that are not known outside."""
        return self.ended(name for name in self.handles if name not in outer[1])

    def on_enter(self, i: Instruction) -> None:
        s = i.statement
        self.open(s)
        flows = self.flows(i)
        start, stop, step = (self.value(e) for e in (s.start, s.stop, s.step))
        index = self.cell(0)
        self.cell(0), self.cell(1)  # stop and step
        self.cache.loops[index] = (self.cache.within + 1, self.cell(0))
        ints, handles = self.scopes[-1].after
        self.ints, self.handles = {**ints, s.index: index}, dict(handles)
        ended = self.ended(i.ended)
        self.emit(s, si.LoopEnterRow, index=index, start=start, stop=stop, step=step, ended=ended, **flows)
        self.cache.within += 1

    def on_test(self, i: Instruction) -> None:
        self.emit(i.statement, si.LoopTestRow, index=self.ints[i.statement.index])

    def on_again(self, i: Instruction) -> None:
        flows, ended = self.flows(i), self.bound_inside(self.scopes[-1].after)
        self.cache.within -= 1
        follows = after_round(self.table, self.code, i)
        self.emit(
            i.statement, si.LoopAgainRow, index=self.ints[i.statement.index], test=self.row_of[i.target],
            ended=ended, engines=self.code_tables.list(map(self.table.engine_queue, follows.engines)) or NONE,
            pause=follows.pause, floor=int(follows.floor), **flows,
        )  # fmt: skip
        self.ints, self.handles = self.scopes.pop().after

    def on_branch(self, i: Instruction) -> None:
        self.emit(i.statement, si.BranchRow, condition=self.value(i.statement.condition))
        self.open(i.statement)

    def on_merge(self, i: Instruction) -> None:
        flows, ended = self.flows(i), self.bound_inside(self.scopes[-1].before)
        self.emit(i.statement, si.MergeRow, ended=ended, **flows)

    def on_jump(self, i: Instruction) -> None:
        self.emit(i.statement, si.JumpRow)
        self.side()

    def on_join(self, i: Instruction) -> None:
        if isinstance(i.statement, pm.If):
            self.ints, self.handles = self.scopes.pop().after

    def on_end(self, i: Instruction) -> None:
        self.emit(None, si.EndRow, ended=self.code_tables.list(self.all_handles))
