"""``report/attention_plot.py``: pictures of attention."""

from __future__ import annotations

from tests.cli.shared import run


def test_one_rank_is_drawn_without_links(tmp_path):
    picture = tmp_path / "alone.png"
    run("--ranks", "1", "--seqlen", "2K", "--plot", str(picture))
    assert picture.read_bytes()[:4] == b"\x89PNG"
