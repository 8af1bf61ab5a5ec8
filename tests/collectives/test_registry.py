"""``collectives/registry.py``: algorithms by name."""

from __future__ import annotations

from megatile.collectives.planner import collective


def test_algorithm_by_import_path():
    path = "megatile.collectives.algorithms.tree:tree"
    plan = collective("all_reduce", machine="dgx-h100", nbytes=64, algorithm=path)
    assert " tree " in plan.name
