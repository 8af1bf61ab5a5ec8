"""Data execution: results, races, orders, wrong inputs."""

from __future__ import annotations

import numpy as np
import pytest
from tests.plan.execute_cases import builder, put_without_order

from megatile.core.expr import eq, member, select, unit
from megatile.plan.check import check
from megatile.plan.execute import OrderWarning, execute
from megatile.plan.model import PlanError


def test_software_pipelining_keeps_versions_apart():
    b = builder(2)
    x = b.tile("x", (4, 8), "f32", memory="l2", role="input")
    y = b.tile("y", (4, 8), "f32", memory="l2", role="output")
    buffer = b.tile("buffer", (1, 8), "f32", memory="l1", versions=2)
    with b.loop(0, 4) as loop:
        b.copy(buffer, x[loop.index], fresh=True)
        b.compute("exp", y[loop.index], [buffer])
    data = np.random.default_rng(0).standard_normal((2, 4, 8)).astype("f4")
    np.testing.assert_allclose(execute(b.finish(), {"x": data})["y"], np.exp(data), rtol=1e-6)


def test_a_version_that_was_overwritten():
    b = builder(1)
    x = b.tile("x", (2,), "f32", memory="l2", role="inout")
    t = b.tile("t", (2,), "f32", memory="l1", versions=1)
    b.compute("neg", t, [x], fresh=True)
    with b.loop(0, 2, old=t) as loop:
        b.compute("neg", t, [x], fresh=True)
        b.compute("add", x, [loop.old, x])
        loop.next(old=loop.old)
    with pytest.raises(
        PlanError, match=r"kernel.py:3: 'old' is a version of tile 't' that has been overwritten.*versions"
    ):
        execute(b.finish(), {"x": np.ones((1, 2), "f4")})


@pytest.mark.parametrize("how", ["barrier", "signal", "message"])
def test_puts_that_are_ordered(how):
    x = np.arange(4, dtype="f4").reshape(2, 2)
    np.testing.assert_array_equal(execute(put_without_order(how), {"x": x})["x"], x[::-1])


def gather(use):
    """Units 1 and 2 send to unit 0, which takes what comes first and uses it."""
    b = builder(3)
    x = b.tile("x", (1,), "f32", memory="l2", role="inout")
    inbox = b.channel(
        "inbox", source=select(eq(unit, 0), member + 1, -1), members=2, slot_bytes=4, memory="l2"
    )
    with b.when(eq(unit, 0)) as branch:
        for _ in range(2):
            message, chosen = b.receive_any(inbox, (1,), "f32")
            use(b, x, message, chosen)
    with branch.otherwise():
        b.send(inbox, x, to=0, member=unit - 1)
    return b.finish()


class Order:
    def __init__(self, *members):
        self.choices = {0: list(members)}


def test_the_order_of_arrival_is_followed_and_reported():
    def last(b, x, message, chosen):
        b.copy(x, message)

    plan, x = gather(last), np.asarray([[0], [5], [7]], "f4")
    with pytest.warns(OrderWarning, match="x: depends on the order of arrival"):
        result = execute(plan, {"x": x})
    assert result.order_dependent == ("x",)
    assert sorted(result.choices[0]) == [0, 1]
    assert execute(plan, {"x": x}, Order(0, 1))["x"][0, 0] == 7
    assert execute(plan, {"x": x}, Order(1, 0))["x"][0, 0] == 5
    with pytest.raises(PlanError, match="no more choices for unit 0"):
        execute(plan, {"x": x}, Order(1))


def test_sums_do_not_depend_on_the_order(recwarn):
    result = execute(gather(lambda b, x, m, _: b.compute("add", x, [x, m])), {"x": np.ones((3, 1), "f4")})
    assert result["x"][0, 0] == 3
    assert not recwarn.list


def test_the_member_taken_is_known():
    def weigh(b, x, message, chosen):
        weight = b.tile("weight", (1,), "f32", memory="l2")
        product = b.tile("product", (1,), "f32", memory="l2")
        b.compute("fill", weight, value=chosen * 10 + 1)
        b.compute("mul", product, [message, weight])
        b.compute("add", x, [x, product])

    result = execute(gather(weigh), {"x": np.asarray([[0], [2], [3]], "f4")})
    assert result["x"][0, 0] == 2 * 1 + 3 * 11


@pytest.mark.parametrize("kind", ["all_reduce", "broadcast"])
@pytest.mark.parametrize("reduction", ["sum", "max", "min", "prod"])
def test_collectives_of_the_network(kind, reduction):
    b = builder(6)
    x = b.tile("x", (3,), "f32", memory="l2", role="inout")
    b.collective(kind, b.group("halves", unit // 3), x, x, reduction=reduction, root=1)
    data = np.random.default_rng(0).integers(1, 4, (6, 3)).astype("f4")
    halves = data.reshape(2, 3, 3)
    rule = {"sum": np.sum, "max": np.max, "min": np.min, "prod": np.prod}[reduction]
    values = halves[:, 1] if kind == "broadcast" else rule(halves, axis=1)
    np.testing.assert_array_equal(execute(b.finish(), {"x": data})["x"], np.repeat(values, 3, axis=0))


@pytest.mark.parametrize("root", [-1, 3])
def test_the_root_of_a_broadcast_is_in_its_group(root):
    b = builder(6)
    x = b.tile("x", (3,), "f32", memory="l2", role="inout")
    b.collective("broadcast", b.group("halves", unit // 3), x, x, root=root)
    plan = b.finish()
    for go in (check, lambda p: execute(p, {"x": np.zeros((6, 3), "f4")})):
        with pytest.raises(PlanError, match=rf"unit 0 takes root {root} of a group of 3"):
            go(plan)


def test_groups_may_do_different_things_but_one_group_may_not():
    def plan(condition):
        b = builder(4)
        x = b.tile("x", (1,), "f32", memory="l2", role="inout")
        pairs = b.group("pairs", unit // 2)
        with b.when(condition) as branch:
            b.collective("all_reduce", pairs, x, x)
        with branch.otherwise():
            b.barrier(pairs)
        return b.finish()

    x = np.asarray([[1], [2], [3], [4]], "f4")
    np.testing.assert_array_equal(execute(plan(unit < 2), {"x": x})["x"], [[3], [3], [3], [4]])
    with pytest.raises(
        PlanError, match=r"kernel.py:3: units of group 'pairs' meet at different collectives \(all_red"
    ):
        execute(plan(unit < 1), {"x": x})


def test_a_message_that_nobody_receives():
    def plan(**options):
        b = builder(2)
        x = b.tile("x", (1,), "f32", memory="l2", role="input")
        ring = b.channel("ring", source=1 - unit, slot_bytes=4, memory="l2", **options)
        b.send(ring, x, to=1 - unit)
        return b.finish()

    x = np.zeros((2, 1), "f4")
    message = r"kernel.py:3: 1 message from unit 1 is never received on ring\[0\] of unit 0: send\(ring, x"
    with pytest.raises(PlanError, match=message):
        execute(plan(), {"x": x})
    execute(plan(installed=True), {"x": x})


def test_wrong_inputs():
    b = builder(2)
    b.tile("x", (3,), "f32", memory="l2", role="input")
    plan = b.finish()
    with pytest.raises(PlanError, match="input 'x' is missing"):
        execute(plan, {})
    with pytest.raises(PlanError, match=r"'y' is not an input of the plan.*x"):
        execute(plan, {"y": 0})
    with pytest.raises(PlanError, match=r"input 'x' has shape \(3,\), not \(2, 3\)"):
        execute(plan, {"x": np.zeros(3)})


def test_runtime_integers_outside_their_bound():
    b = builder(1)
    x = b.tile("x", (1,), "i32", memory="l2", role="input")
    b.read_scalar(x, bound=3)
    with pytest.raises(PlanError, match=r"kernel.py:3: read_scalar gave 4, outside 0..3.*raise the bound"):
        execute(b.finish(), {"x": np.full((1, 1), 4)})


def test_large_rings_with_uneven_messages_and_many_units():
    """Units that differ in message length part ways and come together again."""
    n = 50
    b = builder(n)
    x = b.tile("x", (4,), "f32", memory="l2", role="inout")
    c = b.channel("ring", source=(unit - 1) % n, slot_bytes=16, memory="l2")
    length = unit % 3 + 1
    before = (unit - 1) % n % 3 + 1
    b.send(c, x[0:length], to=(unit + 1) % n)
    message = b.receive(c, (before,), "f32")
    b.compute("add", x[0:before], [x[0:before], message])
    data = np.random.default_rng(0).integers(0, 9, (n, 4)).astype("f4")
    expected = data.copy()
    for u in range(n):
        size = (u - 1) % n % 3 + 1
        expected[u, :size] += data[(u - 1) % n, :size]
    np.testing.assert_array_equal(execute(b.finish(), {"x": data})["x"], expected)


def test_messages_as_long_as_their_sender_says():
    b = builder(4)
    c = b.channel("ring", source=(unit - 1) % 4, slot_bytes=16, memory="l1")
    x = b.tile("x", (4,), "f32", memory="l2", role="input")
    y = b.tile("y", (4,), "f32", memory="l2", role="inout")
    b.send(c, x[0 : unit + 1], to=(unit + 1) % 4)
    length = (unit - 1) % 4 + 1
    b.receive(c, (length,), "f32", into=y[0:length])
    b.copy(y[0:0], x[0:0])  # of nothing
    data = np.arange(1, 17, dtype="f4").reshape(4, 4)
    found = execute(b.finish(), {"x": data, "y": 0 * data})["y"]
    sent = np.roll(data * (np.arange(4) <= np.arange(4)[:, None]), 1, axis=0)
    np.testing.assert_array_equal(found, sent)
