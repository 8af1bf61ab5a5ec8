from __future__ import annotations

from megatile.trace import Pointers, Waiter, WaitGraph

RING = WaitGraph(
    waiters=(
        Waiter("pe2", "recv", "data", "W", "pe0", "k.py:5"),
        Waiter("pe0", "recv", "data", "W", "pe1", "k.py:5"),
        Waiter("pe1", "send", "credit", "E", "pe0", "k.py:4"),
    ),
    pointers=(Pointers("pe0", "E", "pe1", 2, 0, 0, 0, 2),),
    time_ps=1500,
)


def test_the_cycle_is_found_behind_its_followers() -> None:
    assert [w.unit for w in RING.cycle()] == ["pe0", "pe1"]
    assert WaitGraph((Waiter("a", "recv", "data", "W", "b"),)).cycle() == ()


def test_the_dump_names_units_channels_lines_and_pointers() -> None:
    text = RING.text()
    assert text.splitlines()[0] == "wait cycle: pe0 -> pe1 -> pe0"
    assert "stopped at 1500 ps; 3 waiting" in text
    assert "pe1: send at k.py:4 lacks credit on E from pe0" in text
    assert "peer_tail" in text
    assert "… and 2 more" in RING.text(limit=1)


def test_the_graph_marks_the_cycle() -> None:
    dot = RING.dot()
    assert dot.startswith("digraph waits {")
    assert dot.count('color="red"') == 2
    assert '"pe2" -> "pe0"' in dot
    assert '\\"' in WaitGraph((Waiter('a"b', "recv", "data", "W", "c"),)).dot()
