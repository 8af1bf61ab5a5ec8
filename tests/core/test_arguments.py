"""``core/arguments.py``: public functions say which argument they lack, or do not have."""

import pytest

from megatile.core.arguments import MissingArgument, UnknownArgument, known_keywords, no_none


def scaled(x: int, factor: "int | None", *rest: int, offset: int = 0) -> int:
    return x * (factor or 1) + offset + sum(rest)


def test_an_unknown_keyword_names_the_nearest_one() -> None:
    checked = known_keywords(scaled)
    assert checked(2, factor=3, offset=1) == 7
    with pytest.raises(
        UnknownArgument, match=r"scaled has no argument 'ofset'.*did you mean 'offset'"
    ) as caught:
        checked(2, factor=3, ofset=1)  # type: ignore[call-arg]
    assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize(("args", "kwargs"), [((None, 2), {}), ((), {"x": None, "factor": 2})])
def test_none_is_refused_by_the_name_of_its_argument(
    args: tuple[object, ...], kwargs: dict[str, object]
) -> None:
    with pytest.raises(MissingArgument, match=r"scaled needs 'x', not None.*its arguments are x: int"):
        no_none(scaled)(*args, **kwargs)  # type: ignore[arg-type]


def test_none_is_taken_where_it_is_declared_or_the_default() -> None:
    checked = no_none(scaled)
    assert checked(4, None) == 4
    assert checked(4, None, offset=2) == 6
    with pytest.raises(MissingArgument, match="needs 'rest'"):
        checked(4, 1, None)  # type: ignore[arg-type]
