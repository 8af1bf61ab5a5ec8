"""Map elements of a tile to registers of the threads of a team."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass

from megatile.targets.common.scope import Text

WARP = 32
"""Threads of a warp."""


@dataclass(frozen=True)
class Team:
    """Threads that do a statement together: ``size`` of them, ``index`` is the thread's number there."""

    size: int
    index: str
    sync: str


@dataclass(frozen=True)
class SharedLayout:
    """A tile of ``rows`` by ``columns`` over the threads of a team."""

    rows: int
    columns: int

    @property
    def registers(self) -> int:
        raise NotImplementedError

    def places(self, text: Text, team: Team) -> list[tuple[str, int]]:
        """Declare what does not change, and give the loops over a thread's elements."""
        raise NotImplementedError

    def element(self) -> tuple[str, str, str, str]:
        """Row, column, register, and the condition under which it exists ("": always)."""
        raise NotImplementedError

    @contextmanager
    def each(self, text: Text, team: Team, shape: tuple[int, ...]) -> Iterator[tuple[list[str], str]]:
        """A loop over a thread's elements: the index in every dimension of ``shape``, and the register."""
        with ExitStack() as stack:
            stack.enter_context(text.block())
            for name, count in self.places(text, team):
                text.add("#pragma unroll")
                stack.enter_context(text.block(f"for (int {name} = 0; {name} < {count}; {name}++)"))
            row, column, register, guard = self.element()
            text.add(f"const long row = {row}, column = {column};")
            if guard:
                stack.enter_context(text.block(f"if ({guard})"))
            yield [*unflattened("row", shape[:-1]), "column"], register


def unflattened(index: str, shape: tuple[int, ...]) -> list[str]:
    """The indices of an element of a box, from its number there."""
    below, found = math.prod(shape), []
    for number, extent in enumerate(shape):
        below //= extent
        part = index if below == 1 else f"{index} / {below}"
        found.append("0" if extent == 1 else f"({part} % {extent})" if number else f"({part})")
    return ["row" if part == "(row)" else part for part in found]


@dataclass(frozen=True)
class Grid(SharedLayout):
    """Element (i, j) is with thread (i % high, j // vector % wide): neighbours of a row with one."""

    high: int = 1
    wide: int = 1
    vector: int = 1

    @property
    def down(self) -> int:
        return -(-self.rows // self.high)

    @property
    def across(self) -> int:
        return -(-self.columns // (self.wide * self.vector)) * self.vector

    @property
    def registers(self) -> int:
        return self.down * self.across

    @property
    def row(self) -> str:
        return f"ri * {self.high} + top"

    @property
    def column(self) -> str:
        if self.vector == 1:
            return f"ci * {self.wide} + left"
        last = f" + ci % {self.vector}"
        return f"ci / {self.vector} * {self.wide * self.vector} + left * {self.vector}{last}"

    @property
    def guards(self) -> tuple[str, str]:
        """The conditions under which a row and a column exist ("": always)."""
        row = f"{self.row} < {self.rows}" if self.rows % self.high else ""
        return row, f"{self.column} < {self.columns}" if self.columns % (self.wide * self.vector) else ""

    def places(self, text: Text, team: Team) -> list[tuple[str, int]]:
        text.add(f"const int top = {team.index} / {self.wide}, left = {team.index} % {self.wide};")
        return [("ri", self.down), ("ci", self.across)]

    def element(self) -> tuple[str, str, str, str]:
        guard = " && ".join(filter(None, self.guards))
        return self.row, self.column, f"ri * {self.across} + ci", guard

    @contextmanager
    def parts(self, text: Text, team: Team, count: int) -> Iterator[None]:
        """A loop over a thread's rows and, ``count`` at once, their elements: ri, ci, row, column."""
        self.places(text, team)
        text.add("#pragma unroll")
        with text.block(f"for (int ri = 0; ri < {self.down}; ri++)"):
            text.add("#pragma unroll")
            with text.block(f"for (int ci = 0; ci < {self.across}; ci += {count})"):
                text.add(f"const long row = {self.row}, column = {self.column};")
                with text.block(f"if ({self.guards[0]})") if self.guards[0] else nullcontext():
                    yield


@dataclass(frozen=True)
class Mma(SharedLayout):
    """Accumulators of m16n8k16: ``high`` by ``wide`` of the warps, each with as many tiles of 16 by 8."""

    high: int = 1
    wide: int = 1
    warps: int = 1

    @property
    def down(self) -> int:
        return self.rows // 16 // self.high

    @property
    def across(self) -> int:
        return self.columns // 8 // self.wide

    @property
    def registers(self) -> int:
        return self.down * self.across * 4

    @property
    def busy(self) -> int:
        """Warps that hold elements."""
        return self.high * self.wide

    def places(self, text: Text, team: Team) -> list[tuple[str, int]]:
        text.add(
            f"const int lane = {team.index} % 32, warp = {team.index} / 32, "
            f"top = warp / {self.wide} * {self.down * 16} + lane / 4, "
            f"left = warp % {self.wide} * {self.across * 8} + lane % 4 * 2;"
        )
        return [("mi", self.down), ("ni", self.across), ("qi", 4)]

    @contextmanager
    def tiles(self, text: Text, team: Team, both: int) -> Iterator[None]:
        """A loop over a warp's tiles of 16 by 8, or of ``both`` such beside each other: mi, ni; top is the
        lane's first row and left the warp's first column."""
        text.add(
            f"const int lane = {team.index} % 32, warp = {team.index} / 32, "
            f"top = warp / {self.wide} * {self.down * 16} + lane / 4, "
            f"left = warp % {self.wide} * {self.across * 8};"
        )
        guard = f"if (warp < {self.busy})" if self.busy < self.warps else ""
        with text.block(guard):
            text.add("#pragma unroll")
            with text.block(f"for (int mi = 0; mi < {self.down}; mi++)"):
                text.add("#pragma unroll")
                with text.block(f"for (int ni = 0; ni < {self.across}; ni += {both})"):
                    yield

    def element(self) -> tuple[str, str, str, str]:
        return (
            "top + mi * 16 + qi / 2 * 8",
            "left + ni * 8 + qi % 2",
            f"(mi * {self.across} + ni) * 4 + qi",
            f"warp < {self.busy}" if self.busy < self.warps else "",
        )


def grid(shape: tuple[int, ...], size: int, vector: int = 1) -> Grid:
    """Rows over groups of lanes, so that a row is within a warp; a vector over all threads. ``vector``: how
    many neighbours a thread may have, of rows that are long enough."""
    rows, columns = math.prod(shape[:-1]), shape[-1]
    while vector > 1:
        wide = grid((rows, columns // vector), size).wide
        while columns % (wide * vector) and wide > 2 and size // wide < rows:
            wide //= 2  # fewer lanes for a row, which has a multiple of what they have
        if columns % (wide * vector) == 0 and rows * columns >= size * vector:
            return Grid(rows, columns, size // wide, wide, vector)
        vector //= 2
    wide = size if rows == 1 and size & (size - 1) == 0 else 1
    while wide == 1 or (rows > 1 and wide < min(WARP, columns)):
        if size % (wide * 2) or wide >= columns:
            break
        wide *= 2
    return Grid(rows, columns, size // wide, wide)


def mma(shape: tuple[int, ...], size: int, whole_rows: bool = False) -> Mma | None:
    """As many warps as there are, each with a part that is as square as can be (``whole_rows``: all columns
    of its rows, if there are enough); None where no tiles of 16 by 8 fill the shape."""
    rows, columns = shape if len(shape) == 2 else (1, 1)
    if rows % 16 or columns % 8 or size % WARP:
        return None
    warps = size // WARP
    ways = [
        (high, wide)
        for high in range(1, warps + 1)
        for wide in range(1, warps // high + 1)
        if rows // 16 % high == 0 and columns // 8 % wide == 0
    ]

    def loads(way: tuple[int, int]) -> tuple[int, ...]:
        high, wide = way
        return (-high if whole_rows else 0, -high * wide, rows // high + columns // wide, -high)

    return Mma(rows, columns, *min(ways, key=loads), warps)
