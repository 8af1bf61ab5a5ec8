"""Times of messages, put down by one side of the queues of a channel and looked up by the other."""

from __future__ import annotations

from typing import Any

import numpy as np


class MessageTimes:
    """(queue, message number) -> time, for many queues at once.

    While every number is put down by one command for one fixed array of queues, an entry is that array and
    the times; as soon as commands mix, it is a table over all queues of the channel.
    """

    def __init__(self, queues: int) -> None:
        self._queues = queues
        self._entries: dict[int, tuple[Any, Any]] = {}
        self._tables: dict[int, np.ndarray] | None = None
        self._orders: dict[tuple[int, int], tuple[Any, Any, Any]] = {}

    def put(self, queue: Any, number: Any, mask: Any, time: Any) -> None:
        if self._tables is None and mask is None and type(number) is int and number not in self._entries:
            self._entries[number] = (queue, time)
            return
        tables = self._spread()
        size = len(queue) if isinstance(queue, np.ndarray) else 1 if mask is None else len(mask)
        queues, numbers, times = (np.broadcast_to(x, (size,)) for x in (queue, number, time))
        if mask is not None:
            queues, numbers, times = queues[mask], numbers[mask], times[mask]
        for one in np.unique(numbers).tolist():
            table = tables.get(one)
            if table is None:
                table = tables[one] = np.full(self._queues, -1, dtype=np.int64)
            here = numbers == one
            table[queues[here]] = times[here]

    def get(self, queue: Any, number: Any, mask: Any, size: int) -> Any:
        """The times for these queues, or None if one of them is not there yet. Numbers below 0 give 0."""
        if self._tables is None and mask is None and type(number) is int:
            entry = self._entries.get(number)
            if entry is None:
                return 0 if number < 0 else None
            order = self._order(entry[0], queue)
            if order is not None:
                if np.size(queue) == np.size(entry[0]):
                    del self._entries[number]  # every message is asked for once
                return entry[1] if type(entry[1]) is int else entry[1][order]
        tables = self._spread()
        queues, numbers = np.broadcast_to(queue, (size,)), np.broadcast_to(number, (size,))
        result = np.zeros(size, dtype=np.int64)
        wanted = numbers >= 0 if mask is None else (numbers >= 0) & mask
        for one in np.unique(numbers[wanted]).tolist():
            table = tables.get(one)
            if table is None:
                return None
            here = wanted & (numbers == one)
            found = table[queues[here]]
            if found.min() < 0:
                return None
            result[here] = found
        return result

    def _order(self, there: Any, here: Any) -> Any:
        """Where each queue of ``here`` stands in ``there``; None if one does not."""
        key = (id(there), id(here))
        known = self._orders.get(key)
        if known is not None and known[0] is there and known[1] is here:
            return known[2]
        a, b = np.atleast_1d(there), np.atleast_1d(here)
        place = np.full(self._queues, -1, dtype=np.int64)
        place[a] = np.arange(len(a))
        order = place[b]
        result = None if order.min() < 0 else order if isinstance(there, np.ndarray) else 0
        self._orders[key] = (there, here, result)
        return result

    def _spread(self) -> dict[int, np.ndarray]:
        if self._tables is None:
            self._tables = {}
            entries, self._entries = self._entries, {}
            for number, (queue, time) in entries.items():
                self.put(queue, number, None, time)
        return self._tables
