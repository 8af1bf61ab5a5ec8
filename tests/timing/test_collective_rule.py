"""Times of collectives by hand from the figures of ``transports``, and the library's own choices."""

from dataclasses import replace

import numpy as np
import pytest

from megatile.core.frozen import Frozen
from megatile.hda import HDA, machine
from megatile.hda.model import ProtocolFigures, TransportFigures
from megatile.timing.collective_choice import channels_of, choose, library_of, rule_of, times_ps
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


def test_without_figures_messages_cost_the_wires_alone():
    rule = rule_of(machine("ahbm"))
    assert library_of(machine("ahbm")) is None
    assert rule.time_ps(choose(rule, "all_reduce", 2, 1 << 20), "all_reduce", 2, 1 << 20) > 0


@pytest.mark.parametrize(
    ("name", "operation", "ranks", "size", "expected"),
    [
        ("dgx-h100", "all_reduce", 8, 4096, ("ring", "LL")),
        ("dgx-h100", "all_reduce", 8, 1 << 20, ("ring", "LL")),
        ("dgx-h100", "all_reduce", 8, 4 << 20, ("in_network", "NVLS")),
        ("dgx-h100", "all_reduce", 4, 64 << 20, ("ring", "Simple")),
        ("dgx-h100", "all_reduce", 2, 64 << 20, ("ring", "Simple")),
        ("dgx-h100", "all_gather", 8, 1 << 30, ("ring", "Simple")),
        ("dgx-h100", "all_to_all", 8, 8 << 14, ("direct", "LL")),
        ("dgx-h100", "all_to_all", 8, 8 << 20, ("direct", "Simple")),
        ("hgx-a100", "all_reduce", 8, 1 << 30, ("ring", "Simple")),
        ("h100-cluster", "all_reduce", 16, 4096, ("node_tree", "LL")),
        ("h100-cluster", "all_reduce", 32, 1 << 30, ("in_network_tree", "NVLS")),
        ("h100-cluster", "all_gather", 32, 1 << 30, ("rail_rings", "Simple")),
        ("mi300x-8", "all_reduce", 8, 65536, ("direct", "LL")),
        ("mi300x-8", "all_reduce", 8, 1 << 20, ("direct", "Simple")),
        ("mi300x-8", "all_reduce", 8, 1 << 30, ("hamilton", "Simple")),
        ("mi300x-8", "all_reduce", 8, 8, ("ring", "LL")),
    ],
)
def test_libraries_choose_as_they_are_seen_to(name, operation, ranks, size, expected):
    rule = rule_of(machine(name, **({"nodes": 4} if name == "h100-cluster" else {})))
    assert choose(rule, operation, ranks, size)[:2] == expected


def test_captured_graphs_need_no_launch_and_use_other_kernels():
    rule = rule_of(machine("mi300x-8"))
    assert choose(rule, "all_reduce", 8, 65536, graph=True).protocol == "MSCCL++"
    eager, captured = (times_ps(rule, "all_reduce", 8, 4096, graph=g) for g in (False, True))
    assert eager == rule.figures.launch_ps
    assert captured < eager


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"NCCL_ALGO": "Ring"}, ("ring", "Simple")),
        ({"NCCL_ALGO": "ring", "NCCL_PROTO": "LL128"}, ("ring", "LL128")),
        ({"NCCL_ALGO": "^NVLS,Tree"}, ("ring", "Simple")),
        ({"NCCL_ALGO": "allreduce:tree"}, ("node_tree", "Simple")),
        ({"NCCL_NVLS_ENABLE": 0}, ("ring", "Simple")),
        ({"NCCL_NVLS_ENABLE": "0", "NCCL_PROTO": "^Simple"}, ("ring", "LL128")),
    ],
)
def test_nccl_variables_are_options(env, expected):
    assert choose(rule_of(machine("dgx-h100")), "all_reduce", 8, 1 << 30, env=env)[:2] == expected


def test_channels_can_be_limited():
    rule = rule_of(machine("dgx-h100"))
    few = {"NCCL_ALGO": "Ring", "NCCL_MAX_NCHANNELS": "4"}
    assert choose(rule, "all_reduce", 8, 1 << 30, env=few).channels == 4
    slow, usual = (times_ps(rule, "all_reduce", 8, 1 << 30, env=e) for e in (few, {"NCCL_ALGO": "Ring"}))
    assert slow > 2 * usual
    assert choose(rule, "all_reduce", 8, 4096, env={"NCCL_MIN_NCHANNELS": 8}).channels == 8


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"NCCL_ALG": "Ring"}, "environment variable 'NCCL_ALG' is not modelled"),
        ({"NCCL_ALGO": "Rong"}, "NCCL_ALGO has no value 'Rong'"),
        ({"NCCL_PROTO": "allreduse:LL"}, "NCCL_PROTO has no function 'allreduse'"),
        ({"NCCL_MAX_NCHANNELS": "many"}, "NCCL_MAX_NCHANNELS must be a positive integer"),
        ({"NCCL_MAX_NCHANNELS": "0"}, "NCCL_MAX_NCHANNELS must be a positive integer"),
        ({"NCCL_MIN_NCHANNELS": "few"}, "NCCL_MIN_NCHANNELS must be a non-negative integer"),
        ({"NCCL_ALGO": ["Ring"]}, "NCCL_ALGO needs a text or a number"),
        ("NCCL_ALGO=Ring", "env='NCCL_ALGO=Ring' does not say which variables are set"),
        ({"NCCL_ALGO": "NVLS", "NCCL_NVLS_ENABLE": 0}, "NCCL has no algorithm and protocol for all_reduce"),
    ],
)
def test_variables_that_make_no_sense_are_refused(env, message):
    with pytest.raises(TimingError, match=message):
        choose(rule_of(machine("dgx-h100")), "all_reduce", 8, 4096, env=env)


def test_a_library_that_a_machine_does_not_have_is_refused():
    with pytest.raises(TimingError, match="machine 'dgx-h100' has no transport 'rccl'"):
        rule_of(machine("dgx-h100"), "rccl")


def test_whole_tables_are_timed_at_once():
    rule = rule_of(machine("dgx-h100"))
    ranks, sizes = np.array([2, 4, 8, 1]), np.array([512, 1 << 20, 1 << 28, 64])
    together = times_ps(rule, "all_reduce", ranks, sizes)
    alone = [float(times_ps(rule, "all_reduce", n, s)) for n, s in zip(ranks, sizes, strict=True)]
    assert together.tolist() == alone
    assert together[3] == 0


def test_operations_and_types_without_rows_say_so():
    def said(operation: str, dtype: str = "f16", name: str = "dgx-h100") -> str:
        return predict_kernel(operation, machine=name, ranks=2, bytes=4096, dtype=dtype).origin.source

    assert "no measured rows" not in said("all_reduce") + said("all_to_all", "f32")
    assert "no measured rows of broadcast by NCCL" in said("broadcast")
    assert "no measured rows in i8" in said("all_gather", "i8")
    assert "no measured rows of all_gather by RCCL" in said("all_gather", "f32", "mi300x-8")
    assert "only link times" in said("all_reduce", "f32", "ahbm")


def test_libraries_lay_rings_on_all_links_that_are_listed():
    cube = [(0, 1, 1), (0, 2, 1), (0, 3, 2), (1, 2, 2), (1, 3, 1), (2, 3, 1)]
    described = {**chips("full_mesh", 4).to_dict()}
    described["networks"] = [{**described["networks"][0], "topology": "edges", "edges": cube}]
    rule = replace(rule_of(HDA.from_dict(described)), figures=FIGURES)
    assert rule.fabric.lanes[2:] == (1, 2, 4)
    assert rule.link(Way("ring", "Simple"), 4) == pytest.approx(0.5 * 4 * rule.fabric.near)


def test_rccl_heeds_the_variables_too():
    rule = rule_of(machine("mi300x-8"))
    assert choose(rule, "all_reduce", 8, 1 << 16, env={"NCCL_ALGO": "Ring"})[:2] == ("ring", "LL")
    assert choose(rule, "all_reduce", 8, 1 << 16, env={"NCCL_PROTO": "Simple"})[:2] == ("hamilton", "Simple")
    with pytest.raises(TimingError, match="RCCL has no algorithm and protocol for all_reduce in a node"):
        choose(rule, "all_reduce", 8, 1 << 16, env={"NCCL_ALGO": "Tree"})


def test_more_ranks_than_devices_are_refused():
    with pytest.raises(TimingError, match="100 ranks are more than the 8 devices of 'dgx-h100'"):
        predict_kernel("all_reduce", machine="dgx-h100", ranks=100, bytes=4096)


def test_channels_are_counted_down_as_in_nccl():
    """``ncclGetAlgoInfo``: ``while (nBytes < nc * nt * threadThreshold) nc--``, 512 threads of 8 B a rank."""
    rule = rule_of(machine("dgx-h100"))
    for ranks in (2, 4, 8):
        for nbytes in (4, 32764, 32768, 65532, 65536, 99_996, 1 << 20, 12_345_676):
            channels = rule.figures.channels
            while nbytes < channels * 512 * 8 * ranks and channels >= 2:
                channels -= 1
            assert channels_of(rule, "ring", "LL", ranks, nbytes) == channels
    below, full = (float(times_ps(rule, "all_reduce", 8, size)) for size in (65532, 65536))
    step = rule.figures.protocols["LL"].next_ps
    assert below - full == pytest.approx(15 * step, rel=0.01), "a second pass in each of 14 + 1 slots"
