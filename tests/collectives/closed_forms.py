"""What files that test closed forms share."""

from __future__ import annotations

from hypothesis import settings, strategies as st

from megatile.collectives.algorithms import find_algorithm
from megatile.collectives.requests import make_job
from megatile.sim import simulate

BANDWIDTH, LATENCY, STARTUP, MEMORY = 100e9, 500e-9, 1e-6, 100e-9
SIZE = 1 << 24


def seconds(machine, algorithm, nbytes=SIZE, operation="all_reduce", **options):
    job, _ = make_job(operation, machine=machine, nbytes=nbytes, in_place=True)
    return simulate(find_algorithm(algorithm).plan(job, **options), machine=machine).time_ps * 1e-12


few = settings(max_examples=12, deadline=None)
elements = st.integers(1 << 16, 1 << 26)


def block(count, parts):
    """Bytes of the largest of ``parts`` blocks."""
    return 4 * -(-count // parts)


def alpha(links=1):
    """What a message takes besides its bytes: start, both memories, the links."""
    return STARTUP + 2 * MEMORY + links * LATENCY
