"""``tuning/store.py``: results of searches in one SQLite file, by the hash of plan, machine, objective and
the code that times plans."""

import pytest
from tests.tuning.factories import adding
from tests.tuning.shared import FAST

import megatile as mt
from megatile.tuning import TuneError


def test_a_store_that_is_something_else(tmp_path):
    file = tmp_path / "s.sqlite"
    file.write_text("hello " * 1000, encoding="utf-8")
    with pytest.raises(TuneError, match="cannot be stored"):
        mt.tune(adding, {"parts": [1, 4]}, store=file, workers=1, **FAST)
