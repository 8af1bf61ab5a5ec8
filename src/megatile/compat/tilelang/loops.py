"""Loops in TileLang's spelling."""

from __future__ import annotations

from typing import Any

from megatile.compat.tilelang import buffers as b
from megatile.compat.tilelang.hints import hint
from megatile.language.tile import loops


def _values(bounds: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(b.resolved(x, b.current().bound) for x in bounds)


def Parallel(*extents: Any, **_: Any) -> Any:
    """``for i, j in T.Parallel(m, n)``: elementwise code."""
    return loops.Parallel(*_values(extents))


def Pipelined(start: Any, stop: Any = None, num_stages: int = 0, order: Any = None, stage: Any = None,
              sync: Any = None, group: Any = None, **_: Any) -> Any:  # fmt: skip
    """A loop whose copies run ahead by ``num_stages``; order, stage, sync and group are kept as a hint."""
    said = {"order": order, "stage": stage, "sync": sync, "group": group}
    if any(said.values()):
        hint("pipeline")(**{name: str(value) for name, value in said.items() if value})
    bounds = (start,) if stop is None else (start, stop)
    return loops.Pipelined(*_values(bounds), num_stages=max(int(num_stages or 0), 0))


def serial(start: Any, stop: Any = None, step: Any = None, **_: Any) -> Any:
    return loops.serial(*_bounds(start, stop, step))


def unroll(start: Any, stop: Any = None, step: Any = None, *_: Any, **__: Any) -> Any:
    return loops.unroll(*_bounds(start, stop, step))


def vectorized(start: Any, stop: Any = None, **_: Any) -> Any:
    return loops.vectorized(*_bounds(start, stop, None))


def _bounds(start: Any, stop: Any, step: Any) -> tuple[Any, ...]:
    if stop is None:
        return _values((0, start, step)) if step is not None else _values((start,))
    return _values((start, stop) if step is None else (start, stop, step))


def Persistent(domain: Any, wave_size: Any, index: Any, group_size: Any = 8) -> Any:
    """Tiles of an n-dimensional domain, one for each unit and wave."""
    return PersistentRange(tuple(_values(tuple(domain))), wave_size, index)


class PersistentRange:
    """Tiles ``index, index + wave_size, …`` of a domain, as coordinates."""

    def __init__(self, domain: tuple[Any, ...], wave_size: Any, index: Any):
        self.domain, self.wave_size, self.index = domain, wave_size, index

    def flat(self) -> Any:
        total: Any = 1
        for extent in self.domain:
            total = total * extent
        return loops.Persistent(total, self.wave_size, self.index)

    def coordinates(self, number: Any) -> tuple[Any, ...]:
        found = []
        for extent in reversed(self.domain):
            found.append(number % extent)
            number = number // extent
        return tuple(reversed(found))
