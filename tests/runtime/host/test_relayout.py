"""Tensors laid anew by launches of copies, against NumPy; the trace and the op log show them."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import megatile as mt
from megatile.runtime.host import ops
from megatile.runtime.host.placement import DPPolicy
from megatile.runtime.host.relayout import Move, _boxes

POLICIES = [
    None,
    DPPolicy("row_wise", "column_wise", num_cubes=2, num_pes=3),
    DPPolicy("column_wise", "column_wise", num_cubes=2, num_pes=2),
    DPPolicy("replicate", "row_wise", num_cubes=3, num_pes=2),
    DPPolicy("row_wise", "row_wise", num_cubes=4, num_pes=4),
]


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_ranges_are_cut_into_boxes(data) -> None:
    split = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    low = data.draw(st.integers(0, prod(split)))
    high = data.draw(st.integers(low, prod(split)))
    found = np.zeros(split, int)
    for box in _boxes(low, high, split):
        found[tuple(slice(*span) for span in box)] += 1
    assert (found.reshape(-1) == [low <= i < high for i in range(prod(split))]).all()


@pytest.mark.parametrize("before", POLICIES)
@pytest.mark.parametrize("shape", [(6, 4, 10), (7, 5)])
def test_every_layout_becomes_every_other(before: DPPolicy | None, shape: tuple[int, ...]) -> None:
    data = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    backwards = tuple(reversed(range(len(shape))))
    with mt.host("ahbm", log=True) as torch:
        x = torch.empty(shape, dtype="f32", dp=before).copy_(data)
        expected = []
        for after in POLICIES:
            expected += [
                (ops.relaid(x, dp=after), data),
                (ops.transposed(x, backwards, dp=after), data.transpose(backwards)),
            ]
            if len(shape) == 3:
                moved = data.reshape(6, 4, 5, 2).transpose(2, 1, 0, 3).reshape(20, 12)
                expected += [
                    (ops.relaid(x, shape=(24, 10), dp=after), data.reshape(24, 10)),
                    (ops.relaid(x, shape=(16, 15), dp=after), data.reshape(16, 15)),
                    (ops.transposed(x, (2, 1, 0, 3), (6, 4, 5, 2), shape=(20, 12), dp=after), moved),
                ]
        ones, zeros, inner = (1,) * len(shape), (0,) * len(shape), tuple(n - 2 for n in shape)
        block = Move.block(shape, ones, inner, zeros, inner)
        expected += [
            (ops.padded(x, [n + 2 for n in shape]), np.pad(data, [(0, 2)] * len(shape))),
            (ops.relaid(x, shape=inner, moves=[block]), data[tuple(slice(1, n - 1) for n in shape)]),
            (ops.joined([x, x], 1), np.concatenate([data, data], 1)),
        ]
        again = mt.replay(torch.op_log)
        for got, wanted in expected:
            np.testing.assert_array_equal(got.contents(), wanted)
            np.testing.assert_array_equal(again[got.name], wanted)


@pytest.mark.parametrize("machine", ["ahbm", "dgx-h100"])
def test_lookups_and_copies_are_commands_of_the_pes(machine: str) -> None:
    table = np.arange(40, dtype=np.float32).reshape(10, 4)
    with mt.host(machine) as torch:
        weight = torch.empty((10, 4), dtype="f32", name="weight").copy_(table)
        found = ops.looked_up(weight, [[3, 9, 12], [0, 3, 2]], first=2)
        expected = np.array([[table[1], table[7], 0 * table[0]], [0 * table[0], table[1], table[0]]])
        np.testing.assert_array_equal(found.contents(), expected)
        events = [e for e in torch.trace if e.engine == "dma" and "x0[" in (e.operand or "")]
        assert sum("@0" in e.operand for e in events) >= 4
        assert not any(e.unit.startswith("host") and e.operation.startswith("copy") for e in torch.trace)


def test_shapes_without_a_common_splitting() -> None:
    assert Move.reshaped((6, 4), (4, 6)) is None
    assert Move.reshaped((6, 4), (3, 8)).split == (3, 2, 4)


def test_other_types_and_no_elements() -> None:
    with mt.host("ahbm") as torch:
        x = torch.empty((4, 6), dtype="f32", dp=POLICIES[2]).copy_(np.arange(24).reshape(4, 6))
        y = torch.empty((4, 6), dtype="f16").copy_(x)
        assert (y.numpy() == np.arange(24).reshape(4, 6)).all()
        assert ops.relaid(torch.empty((0, 3)), dp=POLICIES[2]).numel() == 0


@pytest.mark.parametrize("second", ["column_wise", "row_wise"])
def test_the_plan_of_another_division_is_not_taken(second: str) -> None:
    """Rows and columns of a square matrix lie at the same offsets of the same PEs."""
    data = np.arange(16, dtype=np.float32).reshape(4, 4)
    with mt.host("ahbm") as torch:
        for pe in ("row_wise", second):
            policy = DPPolicy("row_wise", pe, num_cubes=1, num_pes=2)
            x = torch.empty(4, 4, dtype="f32", dp=policy).copy_(data)
            np.testing.assert_array_equal(ops.relaid(x).numpy(), data)
