"""Who waits for whom when nothing can proceed: the data of a deadlock, as text and as a graph.

Filled by whoever runs a Plan (with or without time) and shown by errors, the CLI and reports.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from megatile.core.arguments import no_none
from megatile.core.files import write_text


@dataclass(frozen=True)
class Waiter:
    """A unit that cannot proceed: its command, what it lacks, and the unit that would have to give it.

    ``lacks`` is ``data``, ``credit``, ``signal``, ``barrier`` or ``unit`` (another launch holds it).
    """

    unit: str
    command: str
    lacks: str
    channel: str
    waits_on: str
    source: str = ""
    launch: str = ""
    """Which launch it belongs to, where there are several."""

    def __str__(self) -> str:
        where = f" at {self.source}" if self.source else ""
        launch = f" of {self.launch}" if self.launch else ""
        lack = f"{self.lacks} on {self.channel} from {self.waits_on}"
        return f"{self.unit}: {self.command}{launch}{where} lacks {lack}"


@dataclass(frozen=True)
class Pointers:
    """One direction of one unit: its own queue pointers and what it believes of its peer's.

    ``my_head`` counts messages sent, ``my_tail`` messages taken out and released; ``peer_head_cache``
    counts messages that arrived here, ``peer_tail_cache`` credits that came back.
    """

    unit: str
    direction: str
    peer: str
    my_head: int
    my_tail: int
    peer_head_cache: int
    peer_tail_cache: int
    n_slots: int

    @classmethod
    def of_queue(
        cls, label: str, receiver: str, feeder: str, sent: int, arrived: int, freed: int, slots: int
    ) -> tuple[Pointers, Pointers]:
        """Return both ends of a queue: sent and credits at the one that feeds it, arrived and freed at the
        other."""
        there = cls(feeder, f"->{label}", receiver, sent, 0, 0, freed, slots)
        return there, cls(receiver, label, feeder, 0, freed, arrived, 0, slots)


@dataclass(frozen=True)
class WaitGraph:
    """All waiting units and all queue pointers at the moment when nothing can proceed."""

    waiters: tuple[Waiter, ...]
    pointers: tuple[Pointers, ...] = ()
    time_ps: int | None = None

    def cycle(self) -> tuple[Waiter, ...]:
        """Return a cycle of units that wait for each other, or () if the wait ends at a unit that is done."""
        by_unit: dict[str, Waiter] = {}
        for waiter in self.waiters:
            by_unit.setdefault(waiter.unit, waiter)
        finished: set[str] = set()
        for start in by_unit:
            trail: dict[str, int] = {}
            unit = start
            while unit in by_unit and unit not in finished and unit not in trail:
                trail[unit] = len(trail)
                unit = by_unit[unit].waits_on
            if unit in trail:
                return tuple(by_unit[u] for u in list(trail)[trail[unit] :])
            finished.update(trail)
        return ()

    def text(self, limit: int = 40) -> str:
        """Return the dump: the cycle first, then every waiting unit, then the pointers of every direction."""
        lines = []
        cycle = self.cycle()
        if cycle:
            ring = " -> ".join([w.unit for w in cycle] + [cycle[0].unit])
            lines.append(f"wait cycle: {ring}")
        if self.time_ps is not None:
            lines.append(f"stopped at {self.time_ps} ps; {len(self.waiters)} waiting:")
        lines += [f"  {w}" for w in self.waiters[:limit]]
        if len(self.waiters) > limit:
            lines.append(f"  … and {len(self.waiters) - limit} more")
        return "\n".join(lines + self.pointer_lines(limit))

    def pointer_lines(self, limit: int = 40) -> list[str]:
        """Return the pointers of every direction as a table."""
        if not self.pointers:
            return []
        lines = ["  unit            direction   peer            head tail peer_head peer_tail slots"]
        for p in self.pointers[:limit]:
            lines.append(
                f"  {p.unit:<15} {p.direction:<11} {p.peer:<15} {p.my_head:>4} {p.my_tail:>4} "
                f"{p.peer_head_cache:>9} {p.peer_tail_cache:>9} {p.n_slots:>5}"
            )
        if len(self.pointers) > limit:
            lines.append(f"  … and {len(self.pointers) - limit} more directions")
        return lines

    def dot(self) -> str:
        """Return the wait-for graph in Graphviz form; the cycle is drawn in red."""
        red = {w.unit for w in self.cycle()}
        lines = ["digraph waits {", "  rankdir=LR; node [shape=box];"]
        for waiter in self.waiters:
            colour = ', color="red"' if waiter.unit in red and waiter.waits_on in red else ""
            label = _quote(f"{waiter.lacks} on {waiter.channel}\n{waiter.command} {waiter.source}".strip())
            lines.append(f"  {_quote(waiter.unit)} -> {_quote(waiter.waits_on)} [label={label}{colour}];")
        return "\n".join([*lines, "}"]) + "\n"


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


@no_none
def write_dump(graph: WaitGraph, path: str | Path) -> tuple[Path, Path]:
    """Write ``path.txt`` and, for Graphviz, ``path.dot``; return both paths."""
    path = Path(path)
    text, dot = path.with_suffix(".txt"), path.with_suffix(".dot")
    return write_text(text, graph.text(limit=1_000_000) + "\n"), write_text(dot, graph.dot())
