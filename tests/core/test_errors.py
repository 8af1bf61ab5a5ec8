"""Errors say what happened, where, and what to try."""

import inspect
import pickle

import pytest
from hypothesis import given, strategies as st

from megatile.core import errors
from megatile.core.errors import MachineError, MegatileError, Place, QuantityError, did_you_mean
from megatile.core.limits import TimeBudgetExceeded
from megatile.runtime.errors import PeerError


@pytest.mark.parametrize(
    ("place", "text"),
    [
        (Place(), ""),
        (Place("a.yaml"), "a.yaml"),
        (Place("a.yaml", 3), "a.yaml:3"),
        (Place(line=3), "line 3"),
        (Place("a.yaml", 3, path="networks.nvlink"), "a.yaml:3: networks.nvlink"),
        (Place(path="networks.nvlink"), "networks.nvlink"),
    ],
)
def test_place_as_text(place: Place, text: str) -> None:
    assert str(place) == text


def test_caret_is_under_the_column() -> None:
    first, second = Place("a.yaml", 3, 7, snippet="size: 4 Gb\n").caret().split("\n")
    assert first == "    size: 4 Gb"
    assert first[second.index("^")] == "4"


def test_caret_needs_a_snippet_and_a_column() -> None:
    assert Place("a.yaml", 3, 7).caret() == ""
    assert Place("a.yaml", 3, snippet="size: 4").caret() == "    size: 4"


def test_message_place_and_advice_in_one_line() -> None:
    error = MegatileError("unit 'GBps' is unknown", place=Place("a.yaml", 3), advice="write GB/s")
    assert str(error) == "a.yaml:3: unit 'GBps' is unknown (try: write GB/s)"


def test_message_alone() -> None:
    assert str(MegatileError("no such thing")) == "no such thing"


def test_snippet_follows_the_message() -> None:
    place = Place("a.yaml", 3, 1, snippet="sise: 4")
    assert str(MachineError("unknown key", place=place)) == "a.yaml:3: unknown key\n    sise: 4\n    ^"


def test_parts_stay_readable() -> None:
    place = Place("a.yaml", 3)
    error = QuantityError("bad", place=place, advice="better")
    assert (error.message, error.place, error.advice) == ("bad", place, "better")


def test_every_error_has_the_one_root() -> None:
    found = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, Exception)]
    assert QuantityError in found
    for error_class in found:
        assert issubclass(error_class, MegatileError)
        assert error_class.__doc__


def test_a_mistaken_value_is_a_value_error_too() -> None:
    with pytest.raises(ValueError, match="bad number"):
        raise QuantityError("bad number")


def test_the_nearest_name_is_proposed() -> None:
    assert did_you_mean("deivce", ["device", "block"]) == "did you mean 'device'?"


def test_without_a_near_name_all_are_listed() -> None:
    assert did_you_mean("xyz", ["block", "device"]) == "known: block, device"
    assert did_you_mean("xyz", ["block"], what="scales") == "scales there are: block"


def test_long_lists_are_cut() -> None:
    advice = did_you_mean("?", [f"name{i:02}" for i in range(30)])
    assert "name19, …" in advice
    assert "name20" not in advice


def test_nothing_known() -> None:
    assert did_you_mean("x", []) == "there are no names here"
    assert did_you_mean("x", [], what="machines") == "there are no machines here"


@given(st.text(min_size=1), st.lists(st.text(min_size=1), min_size=1))
def test_a_known_name_is_its_own_best_proposal(name: str, others: list[str]) -> None:
    assert did_you_mean(name, [name, *others]) == f"did you mean '{name}'?"


@given(st.text(), st.lists(st.text(), max_size=30))
def test_advice_does_not_depend_on_order(name: str, known: list[str]) -> None:
    assert did_you_mean(name, known) == did_you_mean(name, reversed(known))


def test_another_case_is_a_close_name() -> None:
    assert did_you_mean("DGX-H100", ["cpu", "dgx-h100"]) == "did you mean 'dgx-h100'?"


def test_a_value_of_a_megabyte_does_not_fill_the_message() -> None:
    place = Place("a.yaml", 3, column=900_000, snippet="9" * 1_000_000)
    error = MegatileError("'" + "9" * 1_000_000 + "' is no number", place=place, advice="write 9")
    assert str(error).startswith("a.yaml:3: '999")
    first, *rest = str(error).split("\n")
    assert first.endswith("999' is no number (try: write 9)")
    assert "… (998040 characters left out) …" in first
    assert len(rest) == 2
    assert all(len(line) < 2100 for line in (first, *rest))


@pytest.mark.parametrize(
    "error",
    [
        TimeBudgetExceeded("half", advice="give more time"),
        MegatileError("wrong", place=Place("a.py", 3, 5, snippet="    x = y")),
        PeerError("rank 1 is gone", ranks=(1,)),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_cross_processes_whole(error: MegatileError) -> None:
    came = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert type(came) is type(error)
    assert (str(came), vars(came)) == (str(error), vars(error))


def test_a_name_that_contains_the_word_comes_first() -> None:
    machines = ["dgx-h100", "h100-cluster", "hgx-a100", "v100-8"]
    for name in ("h100", "H100"):
        assert did_you_mean(name, machines) == "did you mean 'dgx-h100'?"
    assert (
        did_you_mean("ring_bi", ["ring", "ring_bidirectional", "tree"])
        == "did you mean 'ring_bidirectional'?"
    )
