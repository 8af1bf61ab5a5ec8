"""``ir/printer.py``: a Program as text."""

import pytest
from tests.ir.shared import program

from megatile.core.placement import Owner, Partial, Replicate, Shard
from megatile.ir.printer import show_layout, show_node


@pytest.mark.parametrize(
    ("layout", "text"),
    [(Shard(1), "shard(1)"), (Replicate(), "replica()"), (Partial("max"), 'partial("max")')],
)
def test_layouts(layout, text) -> None:
    assert show_layout(layout) == text


def test_indices_with_one_step_are_a_span() -> None:
    text = show_layout(Owner((((0, 2, 4), (0, 1, 2)), ((1, 5), (0,)))))
    assert text == "owner([span(0, 5, 2), span(0, 3, 1)], [[1, 5], [0]])"


def test_fields_at_their_defaults_are_left_out() -> None:
    (region,) = program('with scale("device"):\n    barrier("device", axis=0)\n    fence()').body
    assert [show_node(node) for node in region.body] == ['barrier("device", axis=0)', "fence()"]
