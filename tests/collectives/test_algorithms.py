"""``collectives/algorithms/__init__.py``: the algorithms, a file for each family, and how to find one."""

from __future__ import annotations

import pytest
from tests.collectives.shared import cases

from megatile.collectives.algorithms import ALGORITHMS, algorithms
from megatile.collectives.job import OPERATIONS
from megatile.collectives.requests import make_job
from megatile.hda import machine
from megatile.plan.check import CountingWalk


def test_every_algorithm_is_there():
    assert {param.values[2] for param in cases()} == set(algorithms())


@pytest.mark.parametrize("ranks", [4, 5, 8])
def test_every_queue_gets_a_message(ranks):
    """None is left over, which would take memory; the tree between nodes has those of more nodes."""
    for operation in OPERATIONS:
        job, _ = make_job(
            operation, machine=machine("dgx-h100"), scale="device", nbytes=ranks * 256, dtype="f32",
            ranks=tuple(range(ranks)),
        )  # fmt: skip
        able = [a for a in ALGORITHMS.values() if a.reason_against(job) is None and a.name != "node_tree"]
        assert able
        for algorithm in able:
            walk = CountingWalk(algorithm.plan(job), {})
            walk.run()
            unused = [name for name, q in walk.queues.items() if not q.received.any(axis=0).all()]
            assert not unused, (operation, algorithm.name)
