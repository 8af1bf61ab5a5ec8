"""The builder."""

from __future__ import annotations

from megatile.plan.build import PlanBuilder


def test_fresh_names_are_fresh_even_if_they_look_like_numbered_ones() -> None:
    b = PlanBuilder("p", scale="core", units=1)
    names = [b.fresh(stem) for stem in ("old", "old", "old_1", "old_1", "old", "old_1_1")]
    assert len(set(names)) == len(names)
    assert names[:2] == ["old", "old_1"]
