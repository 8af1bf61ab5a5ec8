"""``tuning/work.py``: what a worker does for one point of a search."""

import pytest
from tests.tuning.factories import CHOICES, adding
from tests.tuning.shared import FAST, kept

import megatile as mt
from megatile.tuning import work


def test_what_is_kept_is_not_simulated_again(tmp_path, monkeypatch):
    store = tmp_path / "s.sqlite"
    first = mt.tune(adding, CHOICES, workers=1, store=store, **FAST)

    def never(*_, **__):
        raise AssertionError("simulated again")

    monkeypatch.setattr(work, "simulate", never)
    again = mt.tune(adding, CHOICES, workers=1, store=store, **FAST)
    assert (again.best, again.value, again.counts) == (first.best, first.value, first.counts)
    with pytest.raises(AssertionError):  # another machine is another question
        mt.tune(adding, CHOICES, workers=1, store=store, machine="hgx-a100", progress=False)


def test_a_factory_of_something_else():
    with pytest.raises(TypeError, match="gives a int"):
        mt.tune(lambda parts: parts, {"parts": [1]}, workers=1, **FAST)


def test_results_of_other_code_do_not_count(tmp_path, monkeypatch):
    store = tmp_path / "s.sqlite"
    first = mt.tune(adding, CHOICES, workers=1, store=store, **FAST)
    before = kept(store)
    monkeypatch.setattr(work, "code_digest", lambda: "the engine was mended")
    again = mt.tune(adding, CHOICES, workers=1, store=store, **FAST)
    assert again.best == first.best
    assert len(kept(store)) == 2 * len(before)
