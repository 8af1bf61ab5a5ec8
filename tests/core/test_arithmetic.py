"""The small arithmetic of machine files: right values, and nothing but arithmetic."""

import pytest
from hypothesis import given, strategies as st

from megatile.core.arithmetic import MAX_EXPRESSION_CHARS, MAX_MAGNITUDE, Lambda, evaluate
from megatile.core.errors import ArithmeticSyntaxError, MegatileError

NAMES = {"a": 7, "b": 3, "nodes": 4, "text": "3 GHz"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1 + 2 * 3", 7),
        ("a // b", 2),
        ("a % b", 1),
        ("a / 2", 3.5),
        ("a ** b", 343),
        ("-a", -7),
        ("+a", 7),
        ("not a", False),
        ("a if b > 2 else 0", 7),
        ("a if b > 3 else 0", 0),
        ("1 < b < 7", True),
        ("1 < b < 3", False),
        ("a == 7 and b != 7", True),
        ("0 or b", 3),
        ("0 and 1 // 0", 0),
        ("min(a, b)", 3),
        ("max(a, b, 9)", 9),
        ("abs(b - a)", 4),
        ("ceildiv(a, b)", 3),
        ("  nodes * 8 + 1  ", 33),
        ("text", "3 GHz"),
    ],
)
def test_values(text: str, value: object) -> None:
    assert evaluate(text, NAMES) == value


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os')",
        "a.real",
        "a.__class__",
        "[1, 2]",
        "(1, 2)",
        "{1: 2}",
        "'text'",
        "b'bytes'",
        "f'{a}'",
        "None",
        "...",
        "1j",
        "a[0]",
        "lambda: 1",
        "[x for x in a]",
        "(x := 3)",
        "print(a)",
        "min(*a)",
        "min(a, key=b)",
        "min",
        "a & b",
        "a | b",
        "a << b",
        "a @ b",
        "~a",
        "a is b",
        "a in b",
        "open('x')",
        "eval('1')",
        "min.__self__",
        "(min)(a, b).x",
        "await a",
        "a; b",
        "import os",
        "a = 1",
        "",
        "((",
        "\x00",
        "(" * 99 + "1" + ")" * 99 + ")",
    ],
)
def test_everything_else_is_refused_when_evaluated(text: str) -> None:
    with pytest.raises(ArithmeticSyntaxError):
        evaluate(text, NAMES)


@pytest.mark.parametrize(
    "body",
    [
        "_b.x",
        "_b[0]",
        "_b in _t",
        "_b is _t",
        "min",
        "_b & 1",
        "~_b",
        "lambda: _b",
        "'x'",
        "_c",
        "min(*_b)",
        "min(_b, key=_t)",
        "1 if _b else open('x')",
        "0 and _b.x",
        "_b(1)",
        "[_b]",
    ],
)
def test_lambdas_are_refused_when_parsed(body: str) -> None:
    with pytest.raises(ArithmeticSyntaxError):
        Lambda.parse(f"lambda _t, _b: {body}", arity=2)


def test_the_advice_names_what_is_allowed() -> None:
    with pytest.raises(ArithmeticSyntaxError) as caught:
        evaluate("a.real", NAMES)
    assert "'a.real' is refused" in str(caught.value)
    assert "ceildiv" in str(caught.value.advice)


def test_an_unknown_name_is_put_right() -> None:
    with pytest.raises(
        ArithmeticSyntaxError, match=r"'nods' in 'nods \* 2' is unknown.*did you mean 'nodes'"
    ):
        evaluate("nods * 2", NAMES)


@pytest.mark.parametrize(
    "text",
    [
        "2 ** 65",
        "9 ** 9 ** 9",
        "10 ** 64",
        "(2 ** 64) ** 64",
        "2 ** 63 * 4",
        "1e999",
        "1e200 * 1e200",
        "a * 10 ** 30",
    ],
)
def test_huge_numbers_are_refused(text: str) -> None:
    with pytest.raises(ArithmeticSyntaxError, match="too large"):
        evaluate(text, NAMES)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1 // 0", "division|modulo"),
        ("1 % 0", "modulo|zero"),
        ("0 ** -1", "negative power|zero"),
        ("(-8) ** 0.5", "not a real number"),
        ("text * 10 ** 15", "'3 GHz', which is not a number"),
        ("text % a", "not a number"),
        ("text + text", "not a number"),
        ("-text", "cannot be computed"),
        ("min(text, a)", "cannot be computed"),
        ("text < a", "cannot be computed"),
        ("min()", "cannot be computed"),
    ],
)
def test_what_cannot_be_computed(text: str, reason: str) -> None:
    with pytest.raises(ArithmeticSyntaxError, match=reason):
        evaluate(text, NAMES)


def test_texts_do_not_grow() -> None:
    with pytest.raises(ArithmeticSyntaxError):
        evaluate("fill % 5", {"fill": "%999999999d"})


def test_long_and_deep_expressions_are_refused_or_computed() -> None:
    with pytest.raises(ArithmeticSyntaxError, match="too long"):
        evaluate("1" + "+1" * MAX_EXPRESSION_CHARS, {})
    assert evaluate("-" * (MAX_EXPRESSION_CHARS - 1) + "1", {}) in (1, -1)
    assert evaluate("1" + "+1" * (MAX_EXPRESSION_CHARS // 2 - 1), {}) == MAX_EXPRESSION_CHARS // 2


def test_other_things_than_text_are_refused() -> None:
    with pytest.raises(ArithmeticSyntaxError, match="is not an expression"):
        evaluate(3, {})  # type: ignore[arg-type]


def test_lambda_of_the_seed() -> None:
    warps = Lambda.parse("lambda _t, _b: _b // 32", arity=2)
    assert warps(None, 256) == 8
    assert warps.parameters == ("_t", "_b")
    assert warps == Lambda.parse("lambda _t, _b: _b // 32")
    assert len({warps, Lambda.parse("lambda _t, _b: _b // 32")}) == 1


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("_b // 32", "is not a lambda"),
        ("lambda *a: 1", "plain parameters only"),
        ("lambda **a: 1", "plain parameters only"),
        ("lambda a, b=1: 1", "plain parameters only"),
        ("lambda a, *, b: 1", "plain parameters only"),
        ("lambda a, /, b: 1", "plain parameters only"),
        ("lambda a: 1", "takes 1 parameters, not 2"),
        ("lambda a, a: 1", "twice"),
    ],
)
def test_lambdas_of_another_form(text: str, reason: str) -> None:
    with pytest.raises(ArithmeticSyntaxError, match=reason):
        Lambda.parse(text, arity=2)


def test_a_lambda_needs_all_its_values() -> None:
    with pytest.raises(ValueError):
        Lambda.parse("lambda a, b: a")(1)


EXPRESSIONS = st.recursive(
    st.one_of(st.integers(0, 20).map(str), st.sampled_from(["a", "b"])),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "//", "%", "<", "==", "and", "or"]), inner).map(
            lambda t: f"({t[0]} {t[1]} {t[2]})"
        ),
        st.tuples(inner, inner, inner).map(lambda t: f"({t[0]} if {t[1]} else {t[2]})"),
        st.tuples(st.sampled_from(["min", "max"]), inner, inner).map(lambda t: f"{t[0]}({t[1]}, {t[2]})"),
    ),
    max_leaves=8,
)


@given(EXPRESSIONS.filter(lambda text: len(text) <= MAX_EXPRESSION_CHARS))
def test_same_value_as_python(text: str) -> None:
    names = {"a": 7, "b": 3}
    try:
        expected = eval(text, {"min": min, "max": max}, names)  # noqa: S307
    except ZeroDivisionError:
        with pytest.raises(ArithmeticSyntaxError):
            evaluate(text, names)
        return
    assert evaluate(text, names) == expected
    assert Lambda.parse(f"lambda a, b: {text}")(7, 3) == expected if len(text) < 180 else True


@given(st.text(max_size=40), st.integers(-(2**70), 2**70))
def test_any_text_is_computed_or_refused(text: str, value: int) -> None:
    try:
        result = evaluate(text, {"x": value, "y": "text"})
    except MegatileError:
        return
    assert isinstance(result, str) or abs(result) <= MAX_MAGNITUDE
