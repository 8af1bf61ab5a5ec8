"""``tuning/executors.py``: where the work of a search is done."""

from concurrent.futures import ProcessPoolExecutor
from functools import partial

import pytest
from tests.tuning.factories import CHOICES, adding, killing
from tests.tuning.shared import FAST

import megatile as mt
from megatile.tuning import TuneError


def test_an_executor_that_cannot_send_closures_says_so():
    with ProcessPoolExecutor(1) as pool, pytest.raises(TuneError, match="cannot send the factory"):
        mt.tune(lambda **c: adding(**c), CHOICES, executor=pool, **FAST)


def test_a_killed_worker_is_one_error_and_results_are_kept(tmp_path):
    store = tmp_path / "s.sqlite"
    with pytest.raises(TuneError, match="a worker was killed"):
        mt.tune(killing, {"parts": [8, 16, 32]}, workers=2, store=store, **FAST)
    found = mt.tune(partial(killing, die=0), {"parts": [8, 16, 32]}, workers=2, store=store, **FAST)
    assert found.counts["refused"] == 0
