"""``tuning/verify.py``: whether a tuned plan computes what it should."""

from functools import partial

import pytest
from tests.tuning.factories import adding, gemm
from tests.tuning.shared import FAST

import megatile as mt
from megatile.tuning import TuneError
from megatile.tuning.work import points_of


def test_wrong_data_are_an_error():
    with pytest.raises(TuneError, match="'z' is not what the first choice gives"):
        mt.tune(partial(adding, wrong=True), {"passes": [2, 1], "parts": [8]}, workers=1, **FAST)


TILES = {"bM": [16, 64], "bN": [16, 64], "bK": [16, 64]}


@pytest.mark.parametrize("name", ["dgx-h100", "mi300x-8"])
def test_a_tile_program_is_tuned_and_verified(name):
    found = mt.tune(gemm, TILES, machine=name, workers=1, progress=False)
    times = [(mt.simulate(gemm(**p), machine=name).time_ps, i) for i, p in enumerate(points_of(TILES))]
    assert (found.value, found.points.index(found.best)) == min(times)
    for outcome, (time_ps, _) in zip(found.outcomes, times, strict=True):
        assert outcome.bound <= time_ps
    assert found.speedup > 1.05
    assert found.verified.startswith("results match the interpreter")
