"""``collectives/candidates.py``: what the planner compares, and how it explains its choice."""

from __future__ import annotations

from megatile.collectives.planner import collective
from megatile.hda import machine


def test_explanation_lists_candidates_prices_and_reasons():
    plan, why = collective(
        "all_reduce", machine="dgx-h100", nbytes=1 << 26, algorithm="fastest", explain=True
    )
    text = str(why)
    assert plan.name.split()[1] == why.chosen.algorithm
    assert "chosen" in text
    assert "the ranks are not nested in equal groups" in text
    assert why.chosen.time_ps == min(c.time_ps for c in why.candidates if c.time_ps is not None)


def test_who_reduces_is_reported():
    cluster = machine("h100-cluster", nodes=65)
    asked = {"machine": cluster, "nbytes": 1 << 12, "algorithm": "hierarchical", "explain": True}
    _, why = collective("all_reduce", **asked)
    assert "switches do part" in str(why)
    _, why = collective("all_reduce", **asked, settings={"outer": "messages"})
    assert "switches do part" not in str(why)


def test_what_a_library_chose_is_explained_with_times_and_its_estimates():
    _, why = collective("all_reduce", machine="dgx-h100", nbytes=1 << 26, explain=True)
    head, *rows = str(why).splitlines()[2:]
    assert head.startswith("NCCL chooses the lowest of its own estimates")
    assert rows[0].split() == ["algorithm", "protocol", "time", "note"]  # no column is empty
    assert len(rows) > 2
    assert all(c.time_ps and "NCCL estimates" in c.note for c in why.candidates)
