"""``language/tile/arguments.py``: arguments of a program by name."""

import pytest
from tests.lowering.shared import tiled_gemm

import megatile as mt
from megatile.language.tile.arguments import in_order


def test_named_arguments_follow_the_others_in_order() -> None:
    gemm = tiled_gemm(64, 64, 32)
    assert in_order(gemm, (1,), {"C": 3, "B": 2}, mt.MegatileError) == (1, 2, 3)
    assert in_order(gemm, (1, 2), {}, mt.MegatileError) == (1, 2)


def test_wrong_names() -> None:
    gemm = tiled_gemm(64, 64, 32)
    with pytest.raises(mt.MegatileError, match="has no argument 'D'"):
        mt.simulate(gemm, D=(64, 64), machine="dgx-h100")
    with pytest.raises(mt.MegatileError, match=r"'A' of .* is given twice"):
        mt.simulate(gemm, (64, 32), A=(64, 32), machine="dgx-h100")
    with pytest.raises(mt.MegatileError, match="is called without B, C"):
        mt.execute(gemm, A=(64, 32), machine="dgx-h100")
    with pytest.raises(mt.MegatileError, match="a lowered program takes no argument 'A'"):
        mt.simulate(mt.lower(gemm, machine="dgx-h100"), A=(64, 32))
