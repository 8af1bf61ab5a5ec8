"""``tuning/decorator.py``: ``@T.autotune(choices, machine=…)``."""

import pytest
from tests.tuning.factories import gemm

import megatile.language as T
from megatile.tuning import TuneError


def test_autotune():
    made = []

    @T.autotune({"bM": [16, 64], "bN": [16, 64]}, machine="dgx-h100", workers=1, progress=False)
    def tuned(M, N, K, bM=16, bN=16):
        made.append((bM, bN))
        return gemm(M, N, K, bM, bN)

    program = tuned(128, 128, 64)
    count = len(made)
    assert tuned(128, 128, 64) is program
    assert len(made) == count
    (found,) = tuned.tuned.values()
    assert found.made is program
    assert tuned.__name__ == "tuned"
    tuned(128, 128, 64, bM=64)
    assert made[-1] == (64, 16)
    assert tuned.tune(64, 64, 64, machine="mi300x-8").machine.name == "mi300x-8"
    with pytest.raises(TuneError, match="no machine is given"):
        T.autotune({"bM": [16]})(gemm)()
    with pytest.raises(TuneError, match="no option 'machin'"):
        T.autotune({"bM": [16]}, machin="dgx-h100")
    with pytest.raises(TuneError, match="choices are missing"):
        T.autotune(gemm)
