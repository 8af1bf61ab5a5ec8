"""``report/machine_compare.py``: figures of several machines side by side."""

import megatile as mt
from megatile.report.machine_compare import Figure, compared


def test_figures_that_no_machine_has_are_left_out_and_others_keep_their_column() -> None:
    dgx, cluster = mt.machine("dgx-h100"), mt.machine("h100-cluster", nodes=4)
    alone, both = ({(f.section, f.name): f for f in compared(m)} for m in ([dgx], [dgx, cluster]))
    assert ("networks", "between nodes, link") not in alone
    assert both["networks", "between nodes, link"].values == (None, 50e9)
    assert both["scales", "devices"].values == (8, 32)


def test_numbers_have_units_in_words_and_none_in_json() -> None:
    row = Figure("networks", "link", "B/s", (None, 50e9))
    assert row.words() == ["–", "50 GB/s"]
    assert row.json(["a", "b"]) == {
        "section": "networks", "name": "link", "unit": "B/s", "values": {"a": None, "b": 50e9},
    }  # fmt: skip
    assert Figure("", "", "FLOP/B", (0.3671, 1234.4)).words() == ["0.367", "1234"]
    assert Figure("", "", "share", (0.97,)).words() == ["97.0%"]
