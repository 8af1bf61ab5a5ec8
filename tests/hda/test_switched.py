"""``hda/switched.py``: networks whose endpoints are wired to switches."""

from itertools import pairwise

from hypothesis import given, strategies as st

from megatile.hda.switched import Switched


def test_trunks_of_a_fat_tree() -> None:
    tree = Switched(16, "fat_tree", (4, 4), (2.0,))
    used = {link for a in range(4) for b in range(4, 16) for link in tree.hops(a, b)[1:2]}
    assert len(used) == 2, "four endpoints below, oversubscribed by two: two cables up"
    full = Switched(16, "fat_tree", (4, 4))
    assert len({link for a in range(4) for b in range(4, 16) for link in full.hops(a, b)[1:2]}) == 4


def test_a_route_takes_the_same_cable_every_time() -> None:
    tree = Switched(64, "fat_tree", (8, 8))
    assert tree.hops(3, 60) == tree.hops(3, 60)
    assert tree.hops(3, 60)[1:] != tree.hops(3, 61)[1:]


def test_rails_join_those_of_one_rail() -> None:
    rails = Switched(16, "rails", (4,), (), 4)
    assert list(rails.neighbors(1)) == [5, 9, 13]
    assert rails.hop_count(1, 13) == 2
    assert rails.hop_count(1, 2) == 4


@given(st.integers(2, 60), st.integers(1, 9), st.integers(1, 5), st.data())
def test_any_fat_tree_chains(size: int, leaf: int, second: int, data: st.DataObject) -> None:
    net = Switched(size, "fat_tree", (leaf, second))
    a, b = data.draw(st.integers(0, size - 1)), data.draw(st.integers(0, size - 1))
    ends = [net.ends(link) for link in net.hops(a, b)]
    assert all(one[1] == two[0] for one, two in pairwise(ends))
    assert not ends or (ends[0][0], ends[-1][1]) == (str(a), str(b))
