"""The search for the cheapest candidate finds the winner that timing all would have found."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from megatile.core.errors import MegatileError
from megatile.cost.cheapest import ALWAYS, Search, cheapest

TIMES = {"a": 30, "b": 10, "c": 20, "d": 10}
BOUNDS = {"a": 25, "b": 5, "c": 10, "d": 10}


def test_only_those_that_may_win_are_timed() -> None:
    asked: list[str] = []

    def time(name: str) -> int:
        asked.append(name)
        return TIMES[name]

    found = cheapest(TIMES, time, BOUNDS.__getitem__)
    assert asked == ["b"]
    assert found.winner == "b"
    assert found.times == {"b": 10}
    assert list(found.pruned.items()) == [("c", 10), ("d", 10), ("a", 25)]


def test_ties_are_timed_where_that_is_asked_for() -> None:
    found = cheapest(TIMES, TIMES.__getitem__, BOUNDS.__getitem__, ties=True)
    assert list(found.times.items()) == [("b", 10), ("d", 10), ("c", 20)]
    assert found.pruned == {"a": 25}


def test_of_equals_the_first_wins_whatever_their_bounds() -> None:
    found = cheapest("xy", {"x": 7, "y": 7}.__getitem__, {"x": 7, "y": 1}.__getitem__)
    assert found.winner == "x"
    assert cheapest("yx", {"x": 7, "y": 7}.__getitem__, {"x": 7, "y": 1}.__getitem__).winner == "y"


def test_a_known_time_is_not_asked_for() -> None:
    found = cheapest("ab", lambda name: pytest.fail(name), {"b": 3}.get, known={"a": 2})
    assert (found.winner, found.pruned) == ("a", {"b": 3})


def test_candidates_that_cannot_do_it_have_a_reason() -> None:
    def time(name: str) -> int | None:
        if name == "large":
            raise MegatileError("does not fit", advice="less")
        return 5 if name == "able" else None

    found = cheapest(["large", "other", "able"], time, refuses=MegatileError)
    assert found.refused == {"large": "does not fit", "other": ""}
    assert found.winner == "able"
    assert cheapest(["other"], time).winner is None
    assert cheapest([], time).winner is None
    with pytest.raises(MegatileError):
        cheapest(["large"], time)


def test_without_bounds_all_are_timed_cheapest_first() -> None:
    assert list(cheapest(TIMES, TIMES.__getitem__).times) == ["b", "d", "c", "a"]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=12), st.booleans())
def test_the_winner_is_that_of_timing_all(pairs: list[tuple[int, int]], ties: bool) -> None:
    times = [time for time, _ in pairs]
    found = cheapest(
        range(len(pairs)), times.__getitem__, lambda i: max(0, times[i] - pairs[i][1]), ties=ties
    )
    assert found.winner == min(range(len(pairs)), key=lambda i: (times[i], i), default=None)
    assert sorted([*found.times, *found.pruned]) == list(range(len(pairs)))
    assert all(bound >= times[found.winner] for bound in found.pruned.values() if found.winner is not None)


def test_a_search_goes_on_while_times_come_in_late_and_more_is_added() -> None:
    search = Search[str]()
    for number, (name, bound) in enumerate([("far", 9), ("near", 3), ("first", ALWAYS)]):
        search.add(name, bound, number)
    given_out = iter(search)
    assert next(given_out) == (ALWAYS, "first")
    assert next(given_out) == (3, "near")
    search.timed(2, 8)
    search.add("late", 7, 3)
    assert next(given_out) == (7, "late")
    assert next(given_out, None) is None
