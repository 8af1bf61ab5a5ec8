"""``report/machine_words.py``: how the parts of a machine are written in pictures."""

from megatile.report.machine_words import number, several


def test_counts() -> None:
    assert (number(1056), number(850_000)) == ("1056", "850 000")
    assert (several(1, "gpu"), several(8, "gpu"), several(8, "level_2")) == ("1 gpu", "8 gpus", "8 × level_2")
