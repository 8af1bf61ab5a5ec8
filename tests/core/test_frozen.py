import copy

import pytest

from megatile.core.frozen import Frozen


def test_a_frozen_mapping_reads_like_a_dictionary() -> None:
    frozen = Frozen({"a": 1, "b": 2})
    assert frozen == {"b": 2, "a": 1}
    assert (frozen["a"], list(frozen), len(frozen), repr(frozen)) == (1, ["a", "b"], 2, "{'a': 1, 'b': 2}")
    assert Frozen() == {}


def test_it_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        Frozen({"a": 1})["a"] = 2  # type: ignore[index]


def test_it_is_hashed_by_its_members_and_copied() -> None:
    frozen = Frozen({"a": 1, "b": 2})
    assert hash(frozen) == hash(Frozen({"b": 2, "a": 1}))
    assert copy.deepcopy(frozen) == frozen
