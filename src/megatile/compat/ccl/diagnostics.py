"""What the queues of a collective kernel did: head and tail of every queue, as KernBench prints them."""

from __future__ import annotations

from collections import Counter
from typing import Any

from megatile.compat.ccl.host import CclAlgorithm
from megatile.language.kernel.directions import IpcqDeadlock
from megatile.plan.check import CountingWalk
from megatile.plan.model import Plan
from megatile.runtime.host.state import HostError
from megatile.trace import WaitGraph

__all__ = ["IpcqDeadlock", "pointer_dump"]


def pointer_dump(source: Any) -> str:
    """Return a line per PE and one per direction with its pointers.

    ``source`` is a host (``torch``) or its engine, whose queues are empty between launches, or an
    `IpcqDeadlock`, whose queues are as they were when nothing could go on.
    """
    graph = getattr(source, "graph", None)
    if isinstance(graph, WaitGraph):
        rows = [
            (p.unit, p.direction, p.my_head, p.my_tail, p.peer_head_cache, p.peer_tail_cache)
            for p in graph.pointers
        ]
        return _text(rows)
    host = getattr(source, "host", None) or source
    ccl = getattr(host, "ccl", None)
    if ccl is None:
        raise HostError("no queues are installed", advice="torch.install_ipcq(algorithm=...)")
    sent = _messages(ccl, host.engine)
    rows = []
    for plan in ccl.installs:
        for pe in plan.pe_installs:
            here = (plan.sip, pe.cube, pe.pe)
            name = f"sip{plan.sip}.cube{pe.cube}.pe{pe.pe}"
            for n in pe.neighbors:
                out = sent[(n.peer_sip, n.peer_cube, n.peer_pe), n.peer_direction]
                back = sent[here, n.direction]
                rows.append((name, n.direction, out, back, back, out))
    return _text(rows)


def _text(rows: list[tuple[str, str, int, int, int, int]]) -> str:
    lines, last = [], ""
    for unit, direction, head, tail, peer_head, peer_tail in rows:
        if unit != last:
            lines.append(unit)
            last = unit
        lines.append(
            f"  {direction}: my_head={head} my_tail={tail} "
            f"peer_head_cache={peer_head} peer_tail_cache={peer_tail}"
        )
    return "\n".join(lines)


def _messages(ccl: CclAlgorithm, engine: Any) -> Counter[tuple[tuple[int, int, int], str]]:
    """Count the messages so far of every queue, by the PE and direction that receive."""
    seats = [(p.sip, cube, pe) for p in ccl.installs for cube, pe in p.participating_pes]
    sent: Counter[tuple[tuple[int, int, int], str]] = Counter()
    for plan, runs in _runs(engine, ccl).items():
        walk = CountingWalk(plan, {}, None)
        walk.run()
        for queues in walk.queues.values():
            for (unit, member), count in _nonzero(queues.sent):
                sent[seats[unit], queues.channel.names[member]] += runs * count
    return sent


def _nonzero(table: Any) -> list[tuple[tuple[int, int], int]]:
    return [((int(u), int(m)), int(table[u, m])) for u, m in zip(*table.nonzero(), strict=True)]


def _runs(engine: Any, ccl: CclAlgorithm) -> Counter[Plan]:
    plans = {id(plan): plan for plan in ccl.plans}
    runs: Counter[Plan] = Counter()
    for launch in engine.launches:
        if launch.plan is not None and id(launch.known.plan) in plans:
            runs[launch.known.plan] += 1
    return runs
