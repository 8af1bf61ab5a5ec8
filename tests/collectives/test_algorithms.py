"""``collectives/algorithms/__init__.py``: the algorithms, a file for each family, and how to find one."""

from __future__ import annotations

from tests.collectives.shared import cases

from megatile.collectives.algorithms import algorithms


def test_every_algorithm_is_there():
    assert {param.values[2] for param in cases()} == set(algorithms())
