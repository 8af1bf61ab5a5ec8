"""Channels of point-to-point messages: NCCL 2.29 (``addP2pToPlan``), computed by hand."""

from __future__ import annotations

import numpy as np
import pytest

from megatile.hda import machine
from megatile.timing.collective_choice import rule_of
from megatile.timing.collective_rule import Way

KIB, MIB = 1 << 10, 1 << 20
SENT = Way("direct", "Simple")


@pytest.mark.parametrize(
    ("name", "nodes", "ranks", "expected"),
    [
        # 32 channels, of which each of 8 ranks has 4; parts of 64 KiB at least; above 16 MiB, twice as many.
        ("dgx-h100", 1, 8, {64 * KIB: 1, 65 * KIB: 2, MIB: 4, 64 * MIB: 4, 65 * MIB: 8, 129 * MIB: 16}),
        ("dgx-h100", 1, 2, {64 * KIB: 1, MIB: 16, 256 * MIB: 16, 257 * MIB: 32}),
        ("hgx-a100", 1, 8, {MIB: 4, 65 * MIB: 8}),
        # A card of 50 GB/s counts as 4 channels of 14, of which 16 ranks have 2; parts of 64 to 128 KiB.
        ("h100-cluster", 2, 16, {64 * KIB: 1, 256 * KIB: 2, MIB: 4, 4096 * MIB: 4}),
        ("h100-cluster", 4, 32, {64 * KIB: 1, MIB: 4}),
        ("mi300x-8", 1, 8, {MIB: 8, 4096 * MIB: 8}),
    ],
)  # fmt: skip
def test_channels_of_a_message(name, nodes, ranks, expected):
    rule = rule_of(machine(name, nodes=nodes) if nodes > 1 else machine(name))
    found = rule.peer_channels(ranks, np.array(list(expected)))
    assert dict(zip(expected, found.tolist(), strict=True)) == expected


def test_a_message_to_one_peer_is_slower_than_an_all_to_all_of_its_bytes():
    rule, size = rule_of(machine("dgx-h100")), 8 * MIB
    alone = rule.time_ps(SENT, "send_recv", 8, size)
    spread = rule.time_ps(SENT, "all_to_all", 8, size * 8 / 7)
    # Four channels of 36.7 GB/s against 81.2 % of a port of 393 GB/s.
    assert (alone - spread) / 1e12 == pytest.approx(size / (4 * 36.7e9) - size / 319e9, rel=0.35)
    assert alone > 1.5 * spread


def test_two_ranks_and_long_messages_fill_the_port():
    rule = rule_of(machine("dgx-h100"))
    for ranks, size in ((2, 64 * MIB), (8, 512 * MIB)):
        assert rule.link(SENT, ranks, "send_recv", size) == pytest.approx(0.812 * 0.873 * 450e9, rel=1e-3)


def test_libraries_that_tell_no_channels_have_no_limit():
    rule = rule_of(machine("mi300x-8"))
    assert np.isinf(rule.message_rate(8, 8 * MIB))
    other = rule_of(machine("dgx-h100"), "custom")
    assert other.peer_channels(8, np.array([MIB])).tolist() == [0]
