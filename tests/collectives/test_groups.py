"""Groups of ranks inside a machine: where they lie decides the time, and groups at once share links."""

import pytest

import megatile as mt
import megatile.language as T
from megatile.collectives.planner import predict


def reduced(grid, axis, nbytes):
    """A program in which every group along an axis of the devices reduces at once."""
    each, count = nbytes // 4, grid[0] * grid[1]

    @T.program
    def only(X: T.Tensor((count * each,), "f32")):
        with T.Kernel(device=grid), T.Scale("device"):
            T.allreduce(T.view(X, layout=T.FullRow), axis=axis)

    return only


def alone(machine, ranks, nbytes, operation="all_reduce"):
    found = predict(operation, machine=machine, ranks=ranks, nbytes=nbytes, launch=False, in_place=True)
    assert mt.simulate(found.plan, machine=machine, launch=False).time_ps == found.time_ps
    return found


@pytest.mark.parametrize("nbytes", [1 << 16, 16 << 20])
@pytest.mark.parametrize(
    ("machine", "axis", "ranks"),
    [
        ("dgx-h100", 0, (0, 1, 2, 3)),
        ("dgx-h100", 1, (0, 4)),
        ("mi300x-8", 1, (0, 4)),
        ("mi300x-8", 0, (0, 1, 2, 3)),
        ("l20-8", 0, (0, 1, 2, 3)),
    ],
)
def test_groups_that_share_no_links_do_not_slow_each_other_down(machine, axis, ranks, nbytes) -> None:
    together = mt.simulate(reduced((4, 2), axis, nbytes), machine=machine, launch=False)
    one = alone(machine, ranks, nbytes)
    assert (together.time_ps, together.model) == (one.time_ps, one.model)


def test_groups_that_share_links_do() -> None:
    """Four pairs of cards over the link between the sockets, which carries two of them at full rate."""
    together = mt.simulate(reduced((4, 2), 1, 16 << 20), machine="l20-8", launch=False)
    one = alone("l20-8", (0, 4), 16 << 20)
    assert 1.5 * one.time_ps < together.time_ps < 4 * one.time_ps
    assert together.model == one.model


def test_data_parallel_groups_at_once_have_a_network_card_each() -> None:
    """Every device of two nodes with its partner in the other node."""
    each = (16 << 20) // 4

    @T.program
    def only(X: T.Tensor((8 * each,), "f32")):
        with T.Kernel(node=2, device=4), T.Scale("node"), T.Scale("device"):
            t = T.alloc((each,), "f32", level="hbm")
            T.allreduce(t, scale="node")
            T.copy(X[0], t)

    result = mt.simulate(only, machine="h100-cluster", launch=False)
    one = alone("h100-cluster", (0, 8), 16 << 20)
    reduced_by = max(
        e.end_ps for e in result.trace if e.operation in ("add", "copy") and e.engine == "vector"
    )
    assert reduced_by == pytest.approx(one.time_ps, rel=0.01)


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


def test_groups_have_the_links_between_them_where_links_are_listed() -> None:
    """The cube mesh of a DGX-1 has two links between GPUs 0 and 4 and one between 2 and 6."""
    two, one, usual = (alone("v100-8", ranks, 64 << 20) for ranks in ((0, 4), (2, 6), (0, 1)))
    assert one.time_ps == usual.time_ps
    assert one.time_ps == pytest.approx(2 * two.time_ps, rel=0.06)
    assert [found.plan.transports[0].links for found in (two, one)] == [2, 0]
