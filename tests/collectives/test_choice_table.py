"""Choices remembered in a file: read, extended, never trusted."""

import json
import warnings

import pytest

import megatile as mt
from megatile.collectives import choice_table, ranking
from megatile.collectives.job import CollectiveError
from megatile.collectives.planner import predict
from megatile.hda import machine

ASKED = {"machine": "mi300x-8", "nbytes": 1 << 12, "among": ["ring", "direct"]}


@pytest.fixture
def file(tmp_path):
    return tmp_path / "choices.json"


def test_a_file_is_made_extended_and_used(file, monkeypatch):
    first = predict("all_reduce", table=file, **ASKED)
    predict("all_gather", table=str(file), **ASKED)
    assert len(json.loads(file.read_text())["choices"]) == 2
    assert [p.name for p in file.parent.iterdir()] == [file.name]
    monkeypatch.setattr(ranking, "rank", None)
    again = predict("all_reduce", table=file, **ASKED)
    assert (again.plan, again.time_ps) == (first.plan, first.time_ps)
    assert mt.collective("all_reduce", table=file, **ASKED) == first.plan


@pytest.mark.parametrize(
    "other", [{"among": ["ring"]}, {"launch": False}, {"in_place": True}, {"algorithm": "rccl"}, {"root": 1}]
)
def test_what_was_asked_differently_is_another_choice(file, other):
    predict("all_reduce", table=file, **ASKED)
    predict("all_reduce", table=file, **{**ASKED, **other})
    assert len(json.loads(file.read_text())["choices"]) == 2


def test_another_description_of_the_machine_is_chosen_again_with_a_note(file):
    predict("all_reduce", table=file, **ASKED)
    changed = machine("mi300x-8", **{"transports.device.rccl.protocols.LL.start": "9 us"})
    with pytest.warns(UserWarning, match="another description of 'mi300x-8'"):
        predict("all_reduce", table=file, **{**ASKED, "machine": changed})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        predict("all_reduce", table=file, **{**ASKED, "machine": changed})
        predict("all_reduce", table=file, **ASKED)


def test_another_version_is_chosen_again_with_a_note(file, monkeypatch):
    monkeypatch.setattr(choice_table, "__version__", "0.0.1")
    predict("all_reduce", table=file, **ASKED)
    monkeypatch.undo()
    with pytest.warns(UserWarning, match=r"made by megatile 0\.0\.1"):
        predict("all_reduce", table=file, **ASKED)
    assert json.loads(file.read_text())["version"] == mt.__version__


@pytest.mark.parametrize(
    "text",
    ["", "no", "[]", "{}", '{"format": 9, "choices": {}}', '{"format": 1, "choices": []}', "[" * 100_000],
)
def test_a_file_that_is_not_a_table_is_one_clear_error(file, text):
    file.write_text(text)
    with pytest.raises(CollectiveError, match="not a table of choices") as raised:
        predict("all_reduce", table=file, **ASKED)
    assert str(file) in str(raised.value)
    assert file.read_text() == text


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (7, "not a choice"),
        (["ring", {}], "not a choice"),
        (["ring", [], "Simple"], "not a choice"),
        (["os:system", {}, "Simple"], "no algorithm 'os:system'"),
        (["ring", {}, "fast"], "no protocol 'fast'"),
        (["ring", {"chunks": -1}, "Simple"], "chunks=-1"),
        (["ring", {"speed": 1}, "Simple"], "no option 'speed'"),
        (["tree", {"chunks": "x"}, "Simple"], "chunks='x'"),
    ],
)
def test_entries_are_not_trusted(file, entry, words):
    predict("all_reduce", table=file, **ASKED)
    document = json.loads(file.read_text())
    document["choices"] = dict.fromkeys(document["choices"], entry)
    file.write_text(json.dumps(document))
    with pytest.raises(CollectiveError, match=words):
        predict("all_reduce", table=file, **ASKED)


def test_what_cannot_be_read_or_written_says_so(tmp_path):
    with pytest.raises(CollectiveError, match="cannot be read"):
        predict("all_reduce", table=tmp_path, **ASKED)
    with pytest.raises(CollectiveError, match="cannot write"):
        predict("all_reduce", table=tmp_path / "none" / "t.json", **ASKED)


@pytest.mark.parametrize("among", ["ring", [], 7])
def test_among_is_a_list_of_names(among):
    with pytest.raises(CollectiveError, match="is not a list of algorithms"):
        predict("all_reduce", **{**ASKED, "among": among})
