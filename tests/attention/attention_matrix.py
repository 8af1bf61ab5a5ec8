"""Which cases of attention are tested: every kind of schedule, number of ranks, mask and length.

Each case is one forward and backward run. Small groups run in real processes, large ones in the executor.
"""

from __future__ import annotations

import os
from itertools import product
from typing import NamedTuple

PROCESS_RANKS = range(1, 10)
EXECUTOR_RANKS = (16, 24, 32, 64)
FAMILIES = (
    "ring",
    "zigzag",
    "striped",
    "direct",
    "hamilton",
    "ulysses",
    "ulysses x ring",
    "ulysses x hamilton",
)
NODES = ((2, 2), (2, 3), (3, 2), (4, 2))
"""(m, u) of u nodes of m ranks that real processes must show; all others that fit are run as well."""
WIDTHS = {16: (2, 8), 24: (3, 4, 8), 32: (8,), 64: (8,)}
"""Ranks of a node, and of a group that divides the heads, in large groups; small ones have all divisors."""
MASKS = (False, True)
LENGTHS = ("equal", "uneven")
"""Chunks of one length; and a length that divides by nothing, with fewer KV heads (GQA)."""
WHOLE_MATRIX = os.environ.get("MEGATILE_FULL_MATRIX", "0") not in ("", "0")
"""Every case of the large groups; without it a sample of them (`sampled`)."""


class Case(NamedTuple):
    family: str
    schedule: str
    ranks: int
    causal: bool
    lengths: str

    @property
    def label(self):
        mask = "causal" if self.causal else "full"
        return f"{self.schedule} n={self.ranks} {mask} {self.lengths}"


def schedules(ranks):
    """All schedules of a number of ranks, with the kind of each."""
    simple = ("ring", "zigzag", "striped", "direct", "hamilton", "ulysses")
    found = [(name, name) for name in simple]
    widths = [w for w in range(2, ranks) if ranks % w == 0] if ranks < 16 else WIDTHS[ranks]
    for width in widths or [1]:
        found += [(f"ulysses x {x}", f"ulysses:{width}+{x}") for x in ("ring", "zigzag", "hamilton")]
    found += [("nodes", f"hamilton:{m}x{ranks // m}") for m in widths]
    if ranks > 3:
        found.append(("rings", "hamilton:5" if ranks >= 16 else "hamilton:2"))
    return found


def cases(ranks):
    """All cases of a number of ranks."""
    return [
        Case(family, name, ranks, causal, lengths)
        for (family, name), causal, lengths in product(schedules(ranks), MASKS, LENGTHS)
    ]


def long_case(case):
    """Equal chunks over many rings of 64 ranks; where all talk to each other each row merges 3969 of them."""
    rings = case.family in ("hamilton", "direct") or (case.causal and case.family in ("nodes", "rings"))
    return rings and case.ranks == 64 and case.lengths == "equal"


def sampled(case):
    """All of 16 ranks; of the larger groups uneven lengths, under one mask for each number of ranks.

    Where all of 64 ranks talk to each other a case takes 5 to 60 seconds: those are left to the whole matrix.
    """
    if case.ranks == 16:
        return True
    everybody = case.ranks == 64 and case.family in ("hamilton", "direct", "ulysses")
    return case.lengths == "uneven" and case.causal == (case.ranks != 32) and not everybody


def executor_cases(whole=WHOLE_MATRIX):
    """The cases of the large groups."""
    every = [case for ranks in EXECUTOR_RANKS for case in cases(ranks)]
    return [case for case in every if whole or sampled(case)]
