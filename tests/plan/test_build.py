"""The builder."""

from __future__ import annotations

from megatile.plan.build import PlanBuilder


def test_fresh_names_are_fresh_even_if_they_look_like_numbered_ones() -> None:
    b = PlanBuilder("p", scale="core", units=1)
    names = [b.fresh(stem) for stem in ("old", "old", "old_1", "old_1", "old", "old_1_1")]
    assert len(set(names)) == len(names)
    assert names[:2] == ["old", "old_1"]


def test_one_operand_needs_no_list() -> None:
    def plan(listed: bool) -> str:
        b = PlanBuilder("p", scale="core", units=1)
        x = b.tile("x", (4,), "f32", memory="local", role="inout")
        b.compute("exp", x, [x] if listed else x)
        return str(b.finish())

    assert plan(False) == plan(True)
