"""``ir/nodes.py``: the operations of a Program."""

from dataclasses import replace

from megatile.ir import nodes as n


def test_spans_do_not_take_part_in_comparison() -> None:
    node = n.Barrier("block", span=n.Span("file.py", 3))
    assert node == replace(node, span=None)
