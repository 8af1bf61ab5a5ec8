"""Which schedule a call follows, and what is said about it."""

import logging

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from megatile.attention import make_schedule  # noqa: E402
from megatile.attention.choice import gathered  # noqa: E402


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


@pytest.mark.parametrize(
    ("name", "ranks", "tokens", "changes"),
    [
        ("zigzag", 4, 256, True),
        ("zigzag", 4, 257, False),  # more than 1 MiB
        ("zigzag", 2, 16, False),  # has one exchange as it is
        ("ulysses:2+ring", 4, 16, False),
    ],
)
def test_little_kv_is_gathered_in_one_exchange(name, ranks, tokens, changes):
    fields = {"batch": 1, "KV heads": 8, "head dim": 64, "value dim": 64, "dtype": "float32"}
    records = [{**fields, "key tokens": tokens // ranks} for _ in range(ranks - 1)]
    records.append({**fields, "key tokens": tokens - (ranks - 1) * (tokens // ranks)})
    schedule = make_schedule(name, ranks)
    found = gathered(schedule, True, records)
    assert (found.routes.exchanges == 1 != schedule.routes.exchanges) == changes
    assert found.layout(True) == schedule.layout(True)
