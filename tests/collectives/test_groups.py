"""Groups of ranks inside a machine: where they lie decides the time, and groups at once share links."""

import pytest
from tests.collectives.shared import alone

import megatile as mt


@pytest.mark.parametrize("operation", ["all_reduce", "all_gather", "all_to_all"])
def test_one_rank_a_node_has_one_network_card(operation) -> None:
    """Not the links of a node, as ranks of one node have, and not all eight cards."""
    card = next(n for n in mt.machine("h100-cluster").networks if n.name == "infiniband").effective_bandwidth
    apart = alone("h100-cluster", (0, 8, 16, 24), 256 << 20, operation)
    assert 0.8 * card < apart.busbw < card
    inside = alone("h100-cluster", (0, 1, 2, 3), 256 << 20, operation)
    assert inside.busbw > 4 * apart.busbw
    assert apart.plan.transports[0].per_node == 1
    assert inside.plan.transports[0].per_node == 0


def test_two_ranks_a_node_have_two_cards() -> None:
    one, two = (alone("h100-cluster", r, 256 << 20).busbw for r in ((0, 8), (0, 1, 8, 9)))
    assert two == pytest.approx(2 * one, rel=0.05)


def test_uneven_groups_take_what_their_messages_take() -> None:
    """Three ranks in a node and one in another: the one has a single card."""
    uneven = alone("h100-cluster", (0, 1, 2, 8), 256 << 20)
    even = alone("h100-cluster", (0, 1, 8, 9), 256 << 20)
    assert uneven.busbw < 0.8 * even.busbw
    assert uneven.plan.transports[0].pace == 1
