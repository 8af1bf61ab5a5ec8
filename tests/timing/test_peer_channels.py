"""Channels of point-to-point messages: NCCL 2.29 (``addP2pToPlan``), computed by hand."""

from __future__ import annotations

import gzip
from csv import DictReader
from itertools import pairwise
from pathlib import Path

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
    # Four channels, half of whose threads send, against 81.2 % of a port of 393 GB/s.
    expected = size / (4 * 38.7e9 / 2) - size / 319e9
    assert (alone - spread) / 1e12 == pytest.approx(expected, rel=0.35)
    assert alone > 2 * spread


def test_long_messages_fill_the_port_and_those_of_two_ranks_nearly():
    rule = rule_of(machine("dgx-h100"))
    port = 0.812 * 0.873 * 450e9
    assert rule.link(SENT, 8, "send_recv", 512 * MIB) == pytest.approx(port, rel=1e-3)
    assert rule.link(SENT, 2, "send_recv", 64 * MIB) == pytest.approx(16 * 38.7e9 / 2)
    assert 0.95 * port < 16 * 38.7e9 / 2 < port


@pytest.mark.parametrize(("name", "rows"), [("dgx-h100", "nccl_h100"), ("hgx-a100", "nccl_a100")])
def test_no_measured_message_is_faster_than_its_channels(name, rows):
    """An all-to-all of two ranks is one message each; what it takes to start is left out of its time."""
    rule = rule_of(machine(name))
    measured = [(size / 2, us) for op, ranks, size, us in _measured(rows) if (op, ranks) == ("alltoall", 2)]
    long = sorted((size, us) for size, us in measured if size >= MIB)
    assert len(long) >= 4
    for (small, before), (size, after) in pairwise(long):
        channels = rule.peer_channels(2, np.array([small, size]))
        if channels[0] == channels[1]:
            assert (size - small) / (after - before) * 1e6 < 1.02 * rule.message_rate(2, size)


def _measured(rows: str) -> list[tuple[str, int, int, float]]:
    path = Path(__file__).parents[2] / "benchmarks" / "data" / "kernels" / f"{rows}.csv.gz"
    with gzip.open(path, "rt") as lines:
        return [
            (r["op_name"], int(r["num_gpus"]), int(r["bytes"]), float(r["us"])) for r in DictReader(lines)
        ]


def test_libraries_that_tell_no_channels_have_no_limit():
    rule = rule_of(machine("mi300x-8"))
    assert np.isinf(rule.message_rate(8, 8 * MIB))
    other = rule_of(machine("dgx-h100"), "custom")
    assert other.peer_channels(8, np.array([MIB])).tolist() == [0]
