"""Hamiltonian paths inside a node, closed through the NICs: (m-K_m-m)^u for u nodes of m ranks."""

from __future__ import annotations

from megatile.collectives.decompositions.cycles import gen_hamilton_circle, zigzag
from megatile.collectives.decompositions.families import (
    CycleFamily,
    DecompositionError,
    PathFamily,
    arc_counts,
)
from megatile.core.arguments import no_none


class NodeCycleFamily(CycleFamily):
    """Cycles over nodes of ``ranks_per_node`` ranks: a local path, the same on the next node, and so on."""

    def __init__(self, cycles: list[list[int]], *, ranks: int, multiplicity: int, ranks_per_node: int):
        super().__init__(cycles, ranks=ranks, multiplicity=multiplicity, complete=False)
        self.ranks_per_node = ranks_per_node

    def verify(self) -> NodeCycleFamily:
        """Raise unless links inside nodes are used equally, and so are the NICs of all ranks."""
        super().verify()
        verify_two_nodes(self, self.ranks_per_node)
        return self


@no_none
def gen_hamilton_path_local(m: int) -> PathFamily:
    """m Hamiltonian paths over m ranks: every pair once, different starts, different ends.

    For m = 3 and 5 they do not exist; the answer is the doubled form, 2m paths with every pair twice.

        >>> gen_hamilton_path_local(2)
        [[0, 1], [1, 0]]
    """
    if m == 1:
        return PathFamily([[0]], ranks=1)
    if m % 2 == 0 and m > 0:
        base = zigzag(m)
        return PathFamily([[(z + i) % m for z in base] for i in range(m)], ranks=m)
    cycles = gen_hamilton_circle(m + 1)
    return PathFamily([_without(cycle, m) for cycle in cycles], ranks=m, multiplicity=cycles.multiplicity)


@no_none
def gen_hamilton_circle_two_nodes(n: int, u: int | None = None) -> NodeCycleFamily:
    """Return cycles over n ranks on ``u`` nodes: each local path, the same on the next node, and so on.

    Without ``u``: nodes of m = 8 ranks where they divide n, else two nodes.

    Inside every node each link carries one chunk, between nodes each rank's NIC carries one (two of each,
    half as large, in the doubled form).
    """
    if u is None:
        u = n // 8 if n > 0 and n % 8 == 0 else 2
    if u < 1 or n < 1 or n % u:
        raise DecompositionError(
            f"{n} ranks cannot be divided over {u} nodes",
            advice="give a number of nodes that divides the ranks",
        )
    m = n // u
    paths = gen_hamilton_path_local(m)
    cycles = [[rank + node * m for node in range(u) for rank in path] for path in paths]
    # On a single node the closing arcs repeat local ones; between nodes they are links of their own.
    multiplicity = int(arc_counts(cycles, n, closed=True).max()) if u == 1 else paths.multiplicity
    return NodeCycleFamily(cycles, ranks=n, multiplicity=multiplicity, ranks_per_node=m)


def ranks_per_node(looping: list[list[int]]) -> int:
    """m of cycles made by :func:`gen_hamilton_circle_two_nodes`, found from the cycles themselves.

    The smallest block length that fits: every cycle visits whole nodes one after the other, all in the same
    order.
    """
    n = len(looping[0]) if looping else 1
    for m in range(1, n + 1):
        if n % m == 0 and len(looping) in (m, 2 * m) and _visits_whole_nodes(looping, m):
            return m
    raise DecompositionError(
        f"these {len(looping)} cycles over {n} ranks are not paths of whole nodes",
        advice="make them with gen_hamilton_circle_two_nodes",
    )


def verify_two_nodes(looping: list[list[int]], m: int | None = None) -> None:
    """Raise unless links inside nodes are used equally, and so are the NICs of all ranks.

    ``m``, the ranks of a node, is found from the cycles when not given.
    """
    if m is None:
        m = ranks_per_node(looping)
    elif len(looping) not in (m, 2 * m) or not _visits_whole_nodes(looping, m):
        raise DecompositionError(f"these {len(looping)} cycles are not paths of whole nodes of {m} ranks")
    n = len(looping[0]) if looping else 1
    multiplicity = len(looping) // m
    PathFamily([cycle[:m] for cycle in looping], ranks=m, multiplicity=multiplicity).verify()
    if n == m:
        return
    counts = arc_counts(looping, n, closed=True)
    for rank in range(n):
        node = rank // m
        leaving = counts[rank].sum() - counts[rank, node * m : (node + 1) * m].sum()
        if leaving != multiplicity:
            raise DecompositionError(
                f"rank {rank} sends {leaving} chunks to other nodes, expected {multiplicity}"
            )


def _without(cycle: list[int], vertex: int) -> list[int]:
    at = cycle.index(vertex)
    return [*cycle[at + 1 :], *cycle[:at]]


def _visits_whole_nodes(looping: list[list[int]], m: int) -> bool:
    for cycle in looping:
        first = cycle[:m]
        for node in range(len(cycle) // m):
            if cycle[node * m : (node + 1) * m] != [rank + node * m for rank in first]:
                return False
        if sorted(first) != list(range(m)):
            return False
    return True
