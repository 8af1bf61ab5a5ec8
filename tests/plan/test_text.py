"""The text form: a golden plan, and what is wrong with bad text and bad JSON."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from megatile.core.errors import MegatileError, Place
from megatile.core.expr import expression, unit
from megatile.plan.build import PlanBuilder
from megatile.plan.check import check
from megatile.plan.model import Plan, PlanError

GOLDEN = """\
plan("ring", scale="device", grid=(4,))
x = tile(f32, (4, 16), memory="l2", role="inout")
ring = channel(source=(unit - 1) % 4, slots=2, slot_bytes=64, memory="l2")
with units((0, 4, 1)):
    for k in range(0, 3, 1):  # ring.py:6
        send(ring, x[(unit - k) % 4:+1, 0:+16], to=(unit + 1) % 4, bytes=64)  # ring.py:7
        message <- receive(ring, f32[1, 16], bytes=64)  # ring.py:7
        x[k:+1, 0:+16] <- add(x[k:+1, 0:+16], message, flops=16, bytes=192)  # ring.py:7
        free(message)  # ring.py:7
"""


def ring():
    b = PlanBuilder("ring", scale="device", units=4)
    x = b.tile("x", (4, 16), "f32", memory="l2", role="inout")
    c = b.channel("ring", source=(unit - 1) % 4, slot_bytes=64, memory="l2")
    b.place = Place("ring.py", 6)
    with b.loop(0, 3) as loop:
        b.place = Place("ring.py", 7)
        b.send(c, x[(unit - loop.index) % 4], to=(unit + 1) % 4)
        message = b.receive(c, (1, 16), "f32")
        mine = x[loop.index]
        b.compute("add", mine, [mine, message])
    return b.finish()


def test_golden_text():
    plan = ring()
    assert str(plan) == GOLDEN
    again = Plan.from_text(GOLDEN)
    assert again == plan
    assert again.streams[0].body[0].source == Place("ring.py", 6)


def test_places_are_no_part_of_a_plans_identity():
    plan = ring()
    elsewhere = Plan.from_text(GOLDEN.replace("ring.py:7", "other.py:70"))
    assert elsewhere == plan
    assert elsewhere.digest == plan.digest
    assert Plan.from_json(plan.to_json()).streams[0].body[0].source == Place("ring.py", 6)
    before = re.sub(r'"source": (\{\s*"is": "Place")', r'"place": \1', plan.to_json())
    before = before.replace('"format": 2', '"format": 1')
    assert ('"place": {' in before, '"source": {' in before) == (True, True)  # the latter of the channel
    assert Plan.from_json(before).streams[0].body[0].source == Place("ring.py", 6)


def test_the_hash_is_stable_and_sees_changes():
    plan = ring()
    assert plan.digest == "54c25d3ba8ff50915464e1ff05adf05b079edb7aee66d8edcb45706f7eefba67"
    assert Plan.from_text(GOLDEN.replace("slots=2", "slots=3")).digest != plan.digest


def test_attributes_of_every_kind_read_back():
    b = PlanBuilder("p", scale="device", units=2)
    x = b.tile("x", (4,), "f32", memory="l2")
    for value in (
        1,
        -2,
        0.1,
        1e-30,
        float("inf"),
        float("-inf"),
        True,
        unit * 2,
        np.float32(0.5),
        np.int64(7),
    ):
        b.compute("fill", x, value=value)
    b.compute("sum", x[0:1], [x], axis=0, keepdims=True, engine="tensor")
    plan = b.finish()
    assert Plan.from_text(str(plan)) == plan
    assert Plan.from_json(plan.to_json()) == plan
    assert {type(s.attributes[0][1]) for s in plan.streams[0].body[-3:-1]} == {float, int}


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


def test_bad_json():
    document = json.loads(ring().to_json())
    for change, message in (
        ({"format": 9}, "not a plan in format 1 or 2"),
        ({"is": "Plam"}, "'Plam' is not part of a Plan"),
        ({"colour": 1}, "Plan has no field 'colour'"),
    ):
        with pytest.raises(PlanError, match=message):
            Plan.from_json(json.dumps(document | change))
    with pytest.raises(PlanError, match="not JSON"):
        Plan.from_json("{")
    del document["grid"]
    with pytest.raises(PlanError, match="grid"):
        Plan.from_json(json.dumps(document))


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
WHOLE = """plan("p", scale="pe", grid=(4,))
x = tile(f32, (8,), memory="tcm", role="inout")
ring = channel(source=unit, slots=2, slot_bytes=32, memory="tcm")
g = group(0)
f = flag(members=2)
with units((0, 4, 1)):
    send(ring, x, to=unit, bytes=32)
    x <- receive(ring, f32[8], into=True, bytes=32)
    collective("barrier", g)
    signal(f, to=unit)
    wait(f, value=1)
"""


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


@pytest.mark.parametrize(
    "value", [None, -1, "a b", [], [1, "a"], {"is": "Work"}, {"is": []}, {"float": "z"}, 1e300]
)
def test_hostile_json_is_one_clear_error(value):
    """Every place of a document is replaced in turn."""
    document = json.loads(Plan.from_text(WHOLE).to_json())

    def replaced(node):
        for key, inner in node.items() if isinstance(node, dict) else enumerate(node):
            kept = node[key]
            node[key] = value
            yield json.dumps(document)
            node[key] = kept
            if isinstance(inner, (dict, list)):
                yield from replaced(inner)

    refused = 0
    for text in replaced(document):
        try:
            check(Plan.from_json(text))
        except MegatileError:
            refused += 1
    assert refused > 50


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"format": 1, "is": "Plan", "name": ' + "[" * 900 + "]" * 900 + "}",
        None,
        b"\xff",
        "9" * 5000,
    ],
)
def test_foreign_json(text):
    with pytest.raises(PlanError):
        Plan.from_json(text)


@pytest.mark.parametrize(
    "text",
    [5, None, "", "select()", "table()", "table((), unit)", "1 << 10000000000", "min(1)", "(" * 300, "\0"],
)
def test_hostile_expressions(text):
    with pytest.raises(MegatileError):
        expression(text)


def test_an_attribute_that_is_a_constant_expression_is_a_number():
    b = PlanBuilder("fill", scale="pe", units=1)
    x = b.tile("x", (4,), "f32", memory="tcm")
    b.compute("fill", x, value=1)
    document = json.loads(b.finish().to_json())
    (pair,) = document["streams"][0]["body"][0]["attributes"]
    assert pair == ["value", 1]
    pair[1] = {"expr": "1"}
    plan = Plan.from_json(json.dumps(document))
    assert plan == b.finish() == Plan.from_text(str(plan))
