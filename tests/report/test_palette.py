"""``report/palette.py``: colours and sizes of text in pictures."""

from __future__ import annotations


def test_an_operation_has_one_colour_on_all_pages() -> None:
    from megatile.report.palette import OPERATIONS, operation_colour

    assert operation_colour("gemm_add") == OPERATIONS["gemm_add"]
    assert operation_colour("something new") == operation_colour("something new")
