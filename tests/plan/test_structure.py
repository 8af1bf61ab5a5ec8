"""Plans that do not hang together are refused by everything that takes a plan, not only by ``check``."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.plan.shared import EXCHANGE, HEAD

import megatile as mt
from megatile.plan.build import PlanBuilder
from megatile.plan.check import check
from megatile.plan.execute import execute
from megatile.plan.model import Compute, Free, Plan, PlanError, Region, Stream
from megatile.plan.structure import check_structure

WRONG = {
    "rank of a tile": ("    x[0:+1, 0:+1] <- fill(value=0.0)", "'x' has 1 dimensions, not 2"),
    "rank of a message": (EXCHANGE + "    x[0:+2] <- copy(m[0:+1, 0:+2])", "'m' has 1 dimensions, not 2"),
    "rank of a carried message": (
        EXCHANGE
        + "    for k in range(0, 2, 1):\n        carry(c, m, m)\n        x[0:+1] <- copy(c[0:+1, 0:+1])",
        "'c' has 1 dimensions, not 2",
    ),
    "use after free": (EXCHANGE + "    free(m)\n    x <- copy(m)", "'m' has ended before: x <- copy"),
    "use after both branches freed": (
        EXCHANGE + "    if unit:\n        free(m)\n    else:\n        free(m)\n    x <- copy(m)",
        "'m' has ended before",
    ),
    "use after a loop freed": (
        EXCHANGE + "    for k in range(0, 1, 1):\n        free(m)\n    x <- copy(m)",
        "'m' has ended before",
    ),
    "a message outside its loop": (
        "    for k in range(0, 2, 1):" + EXCHANGE.replace("\n    ", "\n        ") + "    x <- copy(m)",
        "there is no tile 'm' here",
    ),
    "a loop index outside its loop": (
        "    for k in range(0, 2, 1):\n        pass\n    x[k:+1] <- fill(value=0.0)",
        "'k' is not an integer that is known in",
    ),
    "an index named like a receive": (
        "    for m in range(0, 2, 1):" + EXCHANGE.replace("\n    ", "\n        "),
        "'m' is bound here, but it is already an integer",
    ),
    "a receive named like an index": (
        EXCHANGE + "    for m in range(0, 2, 1):\n        pass",
        "'m' is bound here, but it is already a tile",
    ),
    "a loop index used twice": (
        "    for k in range(0, 2, 1):\n        for k in range(0, 2, 1):\n            pass",
        "'k' is bound here, but it is already an integer",
    ),
    "a message named like a tile": (
        EXCHANGE.replace("m <-", "x <-"),
        "'x' is bound here, but it is already a declared tile",
    ),
    "a declared tile freed": ("    free(x)", "'x' is a declared tile and does not end"),
    "elements a tile does not have": (
        "    x[4:+8] <- fill(value=0.0)",
        r"'x' of extents \(8,\) has no elements 4:12: x",
    ),
    "elements a message does not have": (
        EXCHANGE + "    x <- copy(m[1:+8])",
        "'m' of extents .* has no elements 1:9",
    ),
    "elements before a tile, in a loop": (
        "    for k in range(0, 2, 1):\n        x[-1:+1] <- fill(value=0.0)",
        "has no elements -1:0",
    ),
    "elements outside, given to a collective": (
        '    collective("all_reduce", all, read=x[4:+8], write=x, bytes=32)',
        "has no elements 4:12",
    ),
    "an index named unit": ("    for unit in range(0, 2, 1):\n        pass", "'unit' is bound here"),
}


@pytest.mark.parametrize("what", WRONG)
def test_refused_by_all(what):
    text, message = WRONG[what]
    plan = Plan.from_text(HEAD + text.lstrip("\n") + "\n")
    everyone = [
        check_structure,
        check,
        lambda p: execute(p, {"x": np.zeros((2, 8), "f4")}),
        lambda p: mt.simulate(p, machine="ahbm"),
        lambda p: mt.price(p, mt.machine("ahbm")),
    ]
    for one in everyone:
        with pytest.raises(PlanError, match=message):
            one(plan)


@pytest.mark.parametrize(
    "text",
    [
        EXCHANGE + "    if unit:\n        free(m)",
        EXCHANGE + "    for k in range(0, unit, 1):\n        free(m)",
        EXCHANGE + "    m <- receive(q, f32[8], bytes=32)",
        "    if unit > 5:\n        x[8:+8] <- fill(value=0.0)",
        "    for k in range(0, 0, 1):\n        x[8:+8] <- fill(value=0.0)",
        "    for k in range(0, 2, 1):\n        pass\n    for k in range(0, 2, 1):\n        pass",
    ],
)
def test_not_refused(text):
    check_structure(Plan.from_text(HEAD + text.lstrip("\n") + "\n"))


def test_flags_with_more_counters_than_can_be_followed():
    b = PlanBuilder("many", scale="pe", units=4)
    b.flag("f", members=1 << 30)
    with pytest.raises(PlanError, match=r"flag 'f' has 4294967296 counters in all"):
        check(b.finish())


def test_a_partial_plan_has_no_levels():
    """Its absent units ran the stream of another unit."""
    b = PlanBuilder("part", scale="device", units=2)
    level = b.level("block", scale="block", grid=2, parent="device", slots=1)
    for where in ({"units": [0]}, {"units": [1]}, {"level": level}):
        with b.stream(**where):
            pass
    with pytest.raises(PlanError, match="'part' is partial and has levels"):
        check(b.finish().part([0]))


def test_an_end_of_no_name():
    plan = Plan.from_text(HEAD + "    pass\n")
    with pytest.raises(PlanError, match="'' is not a name"):
        check(replace(plan, streams=(Stream(((0, 2, 1),), (Free(("",)),)),)))


def test_an_attribute_given_twice():
    fill = Compute("fill", Region("x"), attributes=(("value", 0.0), ("value", 1.0)))
    plan = Plan.from_text(HEAD + "    pass\n")
    with pytest.raises(PlanError, match="fill has an attribute twice"):
        check(replace(plan, streams=(Stream(((0, 2, 1),), (fill,)),)))


def test_the_plans_of_the_library_are_sound():
    """Binomial trees free in one branch what they received in another."""
    found = 0
    for operation in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "gather"):
        for algorithm in ("ring", "direct", "tree", "binomial", "bruck", "halving_doubling", "hamilton"):
            try:
                plan = mt.collective(operation, machine="mi300x-8", nbytes=384, algorithm=algorithm)
            except mt.MegatileError:
                continue  # not every algorithm does every operation
            check_structure(plan)
            found += 1
    assert found > 15


def test_a_slot_holds_at_least_a_byte():
    text = HEAD + EXCHANGE
    plan = Plan.from_text(text)
    channel = plan.channels[0]
    for changed in ({"slots": 1}, {"slot_bytes": 1}):
        check_structure(replace(plan, channels=(replace(channel, **changed),)))
    for changed in ({"slots": 0}, {"slot_bytes": 0}, {"members": 0}):
        with pytest.raises(PlanError):
            check_structure(replace(plan, channels=(replace(channel, **changed),)))
