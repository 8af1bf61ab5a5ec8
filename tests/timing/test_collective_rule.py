"""Times of collectives by hand from the figures of ``transports``, and the library's own choices."""

from dataclasses import replace

import pytest

from megatile.core.frozen import Frozen
from megatile.hda import HDA
from megatile.hda.model import ProtocolFigures, TransportFigures
from megatile.timing.collective_choice import rule_of
from megatile.timing.collective_rule import Fabric, Rule, Way
from megatile.timing.database import predict_kernel
from megatile.timing.machine_timing import TimingError
from toy_machines import chips

US = 10**6
FIGURES = TransportFigures(
    Frozen(
        {
            "LL": ProtocolFigures(5 * US, US, first_ps=US // 2, next_ps=2 * US, pass_bytes=4096),
            "Simple": ProtocolFigures(
                10 * US, 2 * US, 14 * US, 0.5, copy_rate=1e12, fill=0.5, fill_bytes=1 << 20
            ),
            "NVLS": ProtocolFigures(30 * US, share=0.5),
            "NVLSTree": ProtocolFigures(30 * US, 0, 20 * US, share=0.5),
            "tree_LL": ProtocolFigures(7 * US, US, 5 * US),
            "peer_LL": ProtocolFigures(6 * US, US),
            "peer_Simple": ProtocolFigures(12 * US, share=0.5, copy_rate=1e12),
        }
    ),
    generation="hopper",
    links=18,
    cards=8,
    channels=24,
)
RULE = Rule(FIGURES, Fabric(400e9, 50e9, 8, False, True, 1000, 1000), "nccl")


def us(way: Way, operation: str, ranks: int, nbytes: int, rule: Rule = RULE) -> float:
    return float(rule.time_ps(way, operation, ranks, nbytes)) / US


def test_a_ring_pays_its_steps_its_own_slot_and_the_fill():
    # 8 blocks of 8 MB at 200 GB/s: 40 us each, 14 steps; copied in 8 us; the fill: half of 1 MiB
    fill = 0.5 * (1 << 20) / 200e9 * 1e6
    assert us(Way("ring", "Simple"), "all_reduce", 8, 64 * 10**6) == pytest.approx(10 + 14 * 42 + 8 + fill)
    assert us(Way("ring", "Simple"), "all_gather", 8, 64 * 10**6) == pytest.approx(10 + 7 * 42 + 8 + fill)


def test_registered_buffers_need_no_copy_and_no_fill():
    rule = replace(RULE, registered=True)
    assert us(Way("ring", "Simple"), "all_reduce", 8, 64 * 10**6, rule) == pytest.approx(10 + 14 * 42)


def test_ll_has_one_slot_more_than_it_sends_and_works_in_passes():
    assert us(Way("ring", "LL"), "all_reduce", 4, 4 * 2048) == pytest.approx(5 + 7 * (1 + 0.25))
    assert us(Way("ring", "LL"), "all_reduce", 4, 4 * 4096) == pytest.approx(5 + 7 * 1.5)
    # 24 channels of 4 KiB in one pass, so 48 passes are two of each
    assert us(Way("ring", "LL"), "all_gather", 4, 4 * 48 * 4096) == pytest.approx(5 + 4 * 3.5)


def test_peers_take_turns_on_a_link():
    assert us(Way("direct", "LL"), "all_to_all", 4, 4096) == pytest.approx(6 + 3)
    assert us(Way("direct", "Simple"), "all_to_all", 4, 4 * 10**6) == pytest.approx(12 + 3 * 5 + 1)
    assert us(Way("direct", "Simple"), "send_recv", 2, 10**6) == pytest.approx(12 + 5)
    assert us(Way("direct", "Simple"), "send_recv", 16, 10**6) == pytest.approx(12 + 20)  # by one card


def test_the_switch_reduces_inside_a_node_and_over_nodes():
    assert us(Way("in_network", "NVLS"), "all_reduce", 8, 10**9) == pytest.approx(30 + 5000)
    # two nodes: the switch is slower than the cards; four: an inner node of the tree sends twice
    assert us(Way("in_network_tree", "NVLS"), "all_reduce", 16, 10**9) == pytest.approx(30 + 2 * 20 + 5000)
    assert us(Way("in_network_tree", "NVLS"), "all_reduce", 32, 10**9) == pytest.approx(30 + 4 * 20 + 5000)
    faster = replace(RULE, fabric=replace(RULE.fabric, near=4e12))
    assert us(Way("in_network_tree", "NVLS"), "all_reduce", 32, 10**9, faster) == pytest.approx(
        30 + 4 * 20 + 2e9 / 400e9 * 1e6
    )


def test_a_ring_over_nodes_is_as_fast_as_the_cards():
    fast = replace(RULE, fabric=replace(RULE.fabric, near=4e12), registered=True)
    # 15 steps of 1 MB at 8 x 50 GB/s; every chunk leaves a node twice
    expected = 10 + 15 * (2 + 2.5) + 2 * 14
    assert us(Way("rail_rings", "Simple"), "all_gather", 16, 16 * 10**6, fast) == pytest.approx(expected)


def test_head_and_messages_make_up_a_ring():
    for way, size in ((Way("ring", "LL"), 1 << 15), (Way("ring", "Simple"), 1 << 26)):
        busy, latency = RULE.message_ps(way, 4, size / 4, near=True)
        head = RULE.head_ps(way, "all_reduce", 4, size)
        assert head + 6 * (busy + latency) == pytest.approx(RULE.time_ps(way, "all_reduce", 4, size))


def test_libraries_lay_rings_on_all_links_that_are_listed():
    cube = [(0, 1, 1), (0, 2, 1), (0, 3, 2), (1, 2, 2), (1, 3, 1), (2, 3, 1)]
    described = {**chips("full_mesh", 4).to_dict()}
    described["networks"] = [{**described["networks"][0], "topology": "edges", "edges": cube}]
    rule = replace(rule_of(HDA.from_dict(described)), figures=FIGURES)
    assert rule.fabric.lanes[2:] == (1, 2, 4)
    assert rule.link(Way("ring", "Simple"), 4) == pytest.approx(0.5 * 4 * rule.fabric.near)


def test_more_ranks_than_devices_are_refused():
    with pytest.raises(TimingError, match="100 ranks are more than the 8 devices of 'dgx-h100'"):
        predict_kernel("all_reduce", machine="dgx-h100", ranks=100, bytes=4096)
