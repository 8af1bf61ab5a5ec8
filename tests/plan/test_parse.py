"""``plan/parse.py``: reads the text form of plans (see ``text.py``)."""

from __future__ import annotations

import pytest
from tests.plan.text_cases import WHOLE

from megatile.core.errors import MegatileError
from megatile.plan.check import check
from megatile.plan.model import Plan, PlanError


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "a plan begins with plan"),
        ("plan(", "cannot read the text"),
        ('plan("p", scale="s", grid=(1,))\ny = tyle(f32, (1,), memory="m")', "2: 'tyle' declares nothing"),
        ('plan("p", scale="s", grid=(1,))\nwith unit(0):\n    pass', "a stream begins with 'with units"),
        ('plan("p", scale="s", grid=(1,))\nwith units((0, 1, 1)):\n    go(x)', "3: 'go' is not a command"),
        (
            'plan("p", scale="s", grid=(1,))\nwith units((0, 1, 1)):\n    x <- go(x)',
            "3: 'go' is not an operation",
        ),
        (
            'plan("p", scale="s", grid=(1,))\nwith units((0, 1, 1)):\n    x[0:4] <- neg(x)',
            r"tile\[start:\+extent",
        ),
        (
            'plan("p", scale="s", grid=(1,))\nwith units((0, 1, 1)):\n    merge(a, b, c)',
            "is listed after its if",
        ),
        ('plan("p", scale="s", grid=(1,))\nwith units((0, 1, 1)):\n    x = 3', "not a statement of a plan"),
        ('plan("p", scale="s", grid=(1,), plaice=unit)', "1: 'plan' has no 'plaice='.*place"),
        ('plan("p", scale="s", grid=(1,))\ng = group(0, kee=1)', "2: 'group' has no 'kee='"),
        *(
            (f'plan("p", scale="s", grid=(1,))\nwith units((0, 1, 1)):\n    {command}', f"3: {text}")
            for command, text in {
                "send(c, x, to=1, membre=0)": "'send' has no 'membre='.*member",
                "free(x, now=1)": "'free' has no 'now='",
                "wait(f, value=1, to=1)": "'wait' has no 'to='",
                'collective("barrier", g, rot=1)': "'collective' has no 'rot='.*root",
                "m <- receive(c, f32[4], bites=16)": "'receive' has no 'bites='.*bytes",
                "k <- read_scalar(x, bound=4, name=3)": "'read_scalar' has no 'name='",
                "x <- neg(x, flop=4)": "'neg' has no 'flop='.*flops",
            }.items()
        ),
    ],
)
def test_bad_text_names_the_line(text, message):
    with pytest.raises(PlanError, match=message):
        Plan.from_text(text)


PIECES = [
    ("grid=(4,)", ["grid=4", "grid=(unit,)", "grid=('a',)", "grid=(-4,)", "grid=(0,)", "grid=(4.5,)", "x=1"]),
    ('scale="pe"', ["scale=3", "skale=3"]),
    ("(8,), memory", ["8, memory", "(unit,), memory", "('a',), memory"]),
    ('role="inout"', ["role=inout", "foo=1", "**{}"]),
    ("g = group(0)", ["g = group(0)\ng = group(0)"]),
    ("members=2", ["members=0", "members=unit"]),
    ("slots=2", ["slots=2, names=('E', 'W')", "slots=unit", 'slots="a"', f"slots={1 << 70}"]),
    ("group(0)", ["group()", "group(y)", "group(1 << 99999)", "group(select(1))", "group(1 << -unit << 70)"]),
    ("group(0)", [f"group({'-' * 3000}unit)", f"group(unit{'+ 1' * 3000})"]),
    ("units((0, 4, 1))", ["units(0, 4, 1)", "units((0, 4, 0))", "units((0, 4))", "units((0, 'a', 1))"]),
    (
        "send(ring, x, to=unit,",
        ["send(ring, x,", "send(to=unit,", "send(ring, x, to=y,", "send(ring, x @ 9, to=unit,"],
    ),
    ("to=unit, bytes=32", ["to=unit, bytes=16", "to=unit"]),
    ("into=True, bytes=32", ["into=True"]),
    ("f32[8]", ["f32", "8", "f33[8]"]),
    (
        "x <- receive(ring, f32[8], into=True, bytes=32)",
        [
            "x <- receive()",
            "m, c <- receive_any(ring, f32[8])",
            "m <- receive_any(ring, f32[8], members=(0,))",
            "m, c <- receive_any(ring, f32[8], members=(7,), bytes=32)",
            "m, c <- receive_any(ring, f32[8], members=(), bytes=32)",
            "m, c <- receive_any(ring, f32[8], members=('a',))",
            "s <- read_scalar(x)",
            "x <- add(x, x, foo=3)",
        ],
    ),
    (
        '"barrier", g',
        ["g", '"foo", g', '"all_reduce", g', '"all_reduce", g, read=x, write=x, reduction="xor"'],
    ),
    ("signal(f, to=unit)", ["signal(f)", "signal(f, to=unit, member=9)"]),
    ("wait(f, value=1)", ["wait(f)", "wait(f, value=1, member=-1)", "wait(f, value=y)"]),
    (
        "wait(f, value=1)",
        ["if y: pass", "for k in range(3): pass", "for k in x: pass", "for k in range(0, y, 1): pass"],
    ),
    ("wait(f, value=1)", ["x[0:+(unit + 9)] <- fill(value=1.0)", "x @ 99 <- fill(value=1.0)"]),
]


@pytest.mark.parametrize(("old", "new"), [(old, new) for old, all_new in PIECES for new in all_new])
def test_hostile_text_is_one_clear_error(old, new):
    check(Plan.from_text(WHOLE))
    assert old in WHOLE
    with pytest.raises(MegatileError):
        check(Plan.from_text(WHOLE.replace(old, new)))


@pytest.mark.parametrize("text", ["", "\0", "3", "foo()", "plan(" + "(" * 5000, None, b"plan()"])
def test_foreign_text(text):
    with pytest.raises(PlanError):
        Plan.from_text(text)


def test_an_error_shows_its_line():
    with pytest.raises(PlanError) as error:
        Plan.from_text('plan("p", scale="s", grid=(1,))\nwith units((0, 1, 1)):\n    go(x)')
    assert (error.value.place.line, error.value.place.snippet) == (3, "go(x)")
