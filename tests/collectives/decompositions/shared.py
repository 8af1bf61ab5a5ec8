"""What several files of tests/collectives/decompositions share."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise


def arcs_of(routes, closed=True):
    return Counter(arc for r in routes for arc in pairwise([*r, r[0]] if closed else r))
