"""Which schedule a call follows, and what is said about it."""

import logging

import pytest

torch = pytest.importorskip("torch", reason="needs torch")


@pytest.mark.parametrize(("rank", "level"), [(0, "WARNING"), (1, "INFO")])
def test_auto_without_a_machine_says_once_that_it_may_lose(monkeypatch, caplog, rank, level):
    from megatile.attention import choice

    choice._say_what_auto_is.cache_clear()
    monkeypatch.setattr(choice.dist, "get_rank", lambda: rank)
    with caplog.at_level(logging.INFO, "megatile.attention"):
        for _ in range(2):
            schedule, _, problem = choice.choose("auto", 4, None, None)
    assert (schedule.name, problem) == ("hamilton", None)
    (said,) = caplog.records
    assert said.levelname == level
    assert "may lose to 'zigzag' where links are switched" in said.getMessage()
    assert "give machine= or name a schedule" in said.getMessage()
