"""``plan/spec.py``: how the parts of a plan declare their fields."""

from dataclasses import dataclass

from megatile.plan.spec import KEYWORD, having, part, parts


@dataclass(frozen=True)
class Declared:
    late: str = part("text", KEYWORD, "", order=1)
    reads: tuple[str, ...] = part("regions", KEYWORD, (), role="reads")
    write: str | None = part("region", KEYWORD, None, role="writes")
    beside: int = 0


def test_fields_are_listed_in_the_order_in_which_they_are_written() -> None:
    assert [(p.name, p.omit) for p in parts(Declared)] == [("reads", ()), ("write", None), ("late", "")]


def test_values_by_role_leave_out_what_is_none() -> None:
    both = having("writes", "reads")
    assert both(Declared(reads=("a", "b"), write="c")) == ("c", "a", "b")
    assert both(Declared(reads=("a",))) == ("a",)
    assert having("binds")(Declared()) == ()
