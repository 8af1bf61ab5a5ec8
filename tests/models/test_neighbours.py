"""``models/neighbours.py``: measured kernels that are nearest to one of a step."""

from __future__ import annotations

from megatile.models.neighbours import neighbours
from megatile.models.operators import gemm


def test_measured_neighbours_are_nearest_first() -> None:
    near = neighbours(gemm("x", "head", 1, "bf16", 4096, 4096, 4096), "vllm")
    assert [n.distance for n in near] == sorted(n.distance for n in near)
    assert len(near) == 5
    assert all(abs(n.error) < 0.5 for n in near)
