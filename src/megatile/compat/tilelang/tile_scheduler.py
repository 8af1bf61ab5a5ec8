"""``T.PersistentTileScheduler``: which tile of a matrix a persistent worker takes next.

sched = T.PersistentTileScheduler(rows, columns, swizzle_size=8)
sched.init(block_id)
while sched.valid():
    ...  # sched.m_idx, sched.n_idx, sched.current_iter
    sched.next_tile()
"""

from __future__ import annotations

from typing import Any

from megatile.compat.tilelang import buffers as b, cpu_torch
from megatile.language.tile.errors import ProgramError
from megatile.language.tile.functions import ceildiv, max as maximum, min as minimum


class PersistentTileScheduler:
    """Tiles in panels of ``swizzle_size``, divided over workers; ``m_idx`` counts clusters of rows."""

    def __init__(
        self, num_m_tiles: Any, num_n_tiles: Any, num_workers: Any = None, swizzle_size: int = 1,
        column_major: bool = True, cluster_size: int = 1, stateful: bool = True, name: str | None = None,
    ):  # fmt: skip
        rows = ceildiv(num_m_tiles, cluster_size)
        self.total = rows * num_n_tiles
        self.swizzle_size, self.cluster_size, self.column_major = swizzle_size, cluster_size, column_major
        self.fast, self.slow = (rows, num_n_tiles) if column_major else (num_n_tiles, rows)
        if num_workers is None:
            num_workers = cpu_torch.properties().multi_processor_count // cluster_size
        self.num_workers = num_workers
        self._state = tuple(b.alloc_var("int32") for _ in range(4)) if stateful else ()

    def coord(self, tile_id: Any) -> tuple[Any, Any]:
        """The row and column of a tile by its number."""
        panel = self.fast * self.swizzle_size
        base = tile_id // panel * self.swizzle_size
        width = maximum(1, minimum(self.swizzle_size, self.slow - base))
        inside = tile_id % panel
        found = inside // width, base + inside % width
        return found if self.column_major else found[::-1]

    def _variable(self, number: int) -> b.Variable:
        if not self._state:
            raise ProgramError(
                "a T.PersistentTileScheduler with stateful=False has no current tile",
                advice="sched.coord(tile), or leave stateful out",
            )
        return self._state[number]

    @property
    def m_idx(self) -> Any:
        return self._variable(0)[0]

    @property
    def n_idx(self) -> Any:
        return self._variable(1)[0]

    @property
    def linear_idx(self) -> Any:
        return self._variable(2)[0]

    @property
    def current_iter(self) -> Any:
        return self._variable(3)[0]

    def _at(self, number: Any, turn: Any) -> None:
        self._variable(2).store(number)
        self._variable(3).store(turn)
        for variable, place in zip(self._state[:2], self.coord(self.linear_idx), strict=True):
            variable.store(place)

    def init(self, worker_id: Any) -> None:
        """Begin with the first tile of a worker."""
        self._at(worker_id, 0)

    def next_tile(self) -> None:
        self._at(self.linear_idx + self.num_workers, self.current_iter + 1)

    def valid(self) -> Any:
        """Whether there is such a tile."""
        return self.linear_idx < self.total
