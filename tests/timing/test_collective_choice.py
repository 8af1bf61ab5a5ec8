"""``timing/collective_choice.py``: what a communication library takes for a collective."""

import numpy as np
import pytest

from megatile.hda import machine
from megatile.timing.collective_choice import channels_of, choose, library_of, rule_of, times_ps
from megatile.timing.database import predict_kernel
from megatile.timing.machine_timing import TimingError


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


def test_channels_can_be_limited():
    rule = rule_of(machine("dgx-h100"))
    few = {"NCCL_ALGO": "Ring", "NCCL_MAX_NCHANNELS": "4"}
    assert choose(rule, "all_reduce", 8, 1 << 30, env=few).channels == 4
    slow, usual = (times_ps(rule, "all_reduce", 8, 1 << 30, env=e) for e in (few, {"NCCL_ALGO": "Ring"}))
    assert slow > 2 * usual
    assert choose(rule, "all_reduce", 8, 4096, env={"NCCL_MIN_NCHANNELS": 8}).channels == 8


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


def test_rccl_heeds_the_variables_too():
    rule = rule_of(machine("mi300x-8"))
    assert choose(rule, "all_reduce", 8, 1 << 16, env={"NCCL_ALGO": "Ring"})[:2] == ("ring", "LL")
    assert choose(rule, "all_reduce", 8, 1 << 16, env={"NCCL_PROTO": "Simple"})[:2] == ("hamilton", "Simple")
    with pytest.raises(TimingError, match="RCCL has no algorithm and protocol for all_reduce in a node"):
        choose(rule, "all_reduce", 8, 1 << 16, env={"NCCL_ALGO": "Tree"})


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
