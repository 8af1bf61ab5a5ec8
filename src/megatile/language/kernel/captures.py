"""Objects a loop body can see and might change: their contents before, to compare and to put back."""

from __future__ import annotations

from collections import deque
from typing import Any

DEPTH = 3


class Snapshot:
    """The contents of the lists, dictionaries, sets and plain objects among some variables."""

    def __init__(self, variables: dict[str, Any]):
        self._saved: list[tuple[Any, Any]] = []
        self._known: set[int] = set()
        for value in variables.values():
            self._add(value, DEPTH)

    def _add(self, value: Any, depth: int) -> None:
        if depth == 0 or id(value) in self._known:
            return
        contents = _contents(value)
        if contents is None:
            return
        self._known.add(id(value))
        if not isinstance(value, tuple):
            self._saved.append((value, contents))
        for inner in contents.values() if isinstance(contents, dict) else contents:
            self._add(inner, depth - 1)

    def changed(self) -> bool:
        return any(not _same(_contents(value), contents) for value, contents in self._saved)

    def restore(self) -> None:
        for value, contents in self._saved:
            held = value if isinstance(value, (list, deque, dict, set)) else vars(value)
            held.clear()
            if isinstance(held, (list, deque)):
                held.extend(contents)
            else:
                held.update(contents)


def _contents(value: Any) -> Any:
    if isinstance(value, (list, deque, set, tuple)):
        return list(value)
    if isinstance(value, dict):
        return dict(value)
    ours = type(value).__module__.startswith(("megatile.", "numpy", "builtins", "functools"))
    if ours or isinstance(value, type) or not hasattr(value, "__dict__"):
        return None
    return dict(vars(value)) if not callable(value) else None


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return list(a) == list(b) and all(a[k] is b[k] for k in a)
    return len(a) == len(b) and all(x is y for x, y in zip(a, b, strict=True))
