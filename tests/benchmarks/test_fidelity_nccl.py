"""The score on NCCL rows that no fit has seen is what the machine files predict now."""

from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_has_the_score_of_today():
    import fidelity_nccl

    found = fidelity_nccl.rows()
    assert len(found) == 100
    page = (ROOT / "docs" / "fidelity.md").read_text(encoding="utf-8")
    assert fidelity_nccl.section(found) in page
