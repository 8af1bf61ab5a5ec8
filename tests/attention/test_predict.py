"""Predicted attention: link loads, the bandwidth part of communication, choices, and reasons."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.attention.attention_machines import own_mesh

from megatile.attention.kernel_times import AttentionKernels, seconds_of
from megatile.attention.plans import Divided, Problem, attention_plan
from megatile.attention.predict import (
    MAX_MESSAGES_WITHOUT_ASKING,
    best_schedule,
    predict,
    predict_one,
    schedules_for,
)
from megatile.attention.schedules import ScheduleError, make_schedule
from megatile.attention.schedules.division import KernelCall
from megatile.core.errors import MegatileError, RouteError
from megatile.hda import HDA, machine
from megatile.sim import simulate
from megatile.timing import attention_kernels
from megatile.timing.attention_kernels import MERGES, KernelTimes, kernels_of
from megatile.timing.database import predict_kernel


@pytest.fixture(scope="module")
def mesh():
    return machine("mi300x-8")


@pytest.mark.parametrize(
    ("name", "ranks"), [*[("hamilton", n) for n in (2, 3, 4, 5, 6, 7, 8, 9, 12, 16)], ("direct", 8)]
)
def test_hamilton_loads_every_link_equally_in_each_exchange(name, ranks):
    mesh = machine("mi300x-8", gpus=ranks)
    problem = Problem(ranks * 2 * (ranks - 1) * 16, 4, 64)
    load = predict_one(mesh, problem, name, ranks).link_bytes()
    off_diagonal = load[~np.eye(ranks, dtype=bool)]
    assert load.shape == (ranks, ranks, ranks - 1)
    assert np.all(off_diagonal == off_diagonal[0, 0])
    assert off_diagonal[0, 0] > 0
    ring = predict_one(mesh, problem, "ring", ranks).link_bytes()
    assert np.count_nonzero(ring[..., 0]) == ranks
    assert ring.max() == (ranks - 1) * off_diagonal[0, 0]


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 6, 7, 8, 9, 12])
def test_the_bandwidth_part_of_communication_is_the_rings_divided_by_the_links(ranks):
    """The part that grows with the bytes: twice as many tokens take so much longer."""
    mesh = machine("mi300x-8", gpus=ranks)
    once = Problem(ranks * 2 * (ranks - 1) * 256, 8, 128)
    twice = Problem(2 * once.length, once.heads, once.dim)
    part, links = {}, {}
    for name in ("ring", "hamilton"):
        found = [predict_one(mesh, p, name, ranks) for p in (once, twice)]
        part[name] = found[1].communication_ps - found[0].communication_ps
        links[name] = found[0].busiest_link_ps
    assert part["hamilton"] * (ranks - 1) == pytest.approx(part["ring"], rel=0.01)
    assert links["hamilton"] * (ranks - 1) == pytest.approx(links["ring"], rel=0.01)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 6, 8, 9, 13])
def test_the_same_holds_for_uneven_lengths_on_any_full_mesh(ranks, causal):
    hda = own_mesh(ranks)
    length = ranks * (ranks - 1) * 300 + ranks + 1
    part, links = {}, {}
    for name in ("zigzag" if causal else "ring", "hamilton"):
        found = [
            predict_one(hda, Problem(n, 8, 128, causal=causal), name, ranks) for n in (length, 2 * length + 1)
        ]
        part[name] = found[1].communication_ps - found[0].communication_ps
        links[name] = found[1].busiest_link_ps
    ring, hamilton = part
    assert part[hamilton] * (ranks - 1) == pytest.approx(part[ring], rel=0.01)
    assert links[hamilton] * (ranks - 1) == pytest.approx(links[ring], rel=0.01)
    load = found[1].link_bytes()
    off_diagonal = load[~np.eye(ranks, dtype=bool)]
    assert load.shape == (ranks, ranks, ranks - 1)
    assert len(np.unique(off_diagonal)) == 1


def test_links_that_carry_one_way_at_a_time_give_half_as_much():
    """A ring sends one way over each wire, Hamilton both ways."""
    hda = own_mesh(5, duplex="half")
    found = {name: predict_one(hda, Problem(60_000, 8), name, 5) for name in ("ring", "hamilton")}
    assert found["hamilton"].busiest_link_ps * 2 == pytest.approx(found["ring"].busiest_link_ps, rel=0.01)


def test_exchanges_of_heads_stand_before_and_after_those_of_kv():
    load = predict_one(machine("mi300x-8"), Problem(8000, 8), "ulysses:2+ring", 8).link_bytes()
    inside = np.equal.outer(np.arange(8) // 2, np.arange(8) // 2)
    assert load.shape == (8, 8, 2 + 3 + 2)
    for exchange in range(7):
        assert load[..., exchange].any()
        assert not load[..., exchange][inside if 2 <= exchange < 5 else ~inside].any()


def test_a_prediction_needs_no_recorded_run(mesh):
    found = predict_one(mesh, Problem(8000), "hamilton", 8)
    assert "recorded" not in vars(found.result)
    trace = found.result.trace
    tensor = [e for e in trace if e.engine == "tensor"]
    busy = max(sum(e.end_ps - e.start_ps for e in tensor if e.unit == unit) for unit in trace.units)
    assert found.compute_ps == busy
    shares = found.result.usage.links
    assert found.links == len(shares)
    assert found.busiest_link_ps == pytest.approx(max(shares.values()) * found.time_ps, abs=1)


def test_a_mesh_prefers_hamilton_while_it_waits_for_the_ring(mesh):
    found = predict(mesh, Problem(10_000), schedules=["ring", "hamilton"])
    assert found.winner.schedule == "hamilton"
    assert "56 links instead of 8" in found.why
    alike = replace(found, predictions=[replace(p, links=8) for p in found.predictions])
    assert "as ring: its busiest link needs 1/" in alike.why
    # Seven times 1250 keys and values of 32 x 128 over one link of 46.5 GB/s; starts of messages come on top.
    alone = 7 * 1250 * 2 * 32 * 128 * 2 / 46.5e9
    ring = next(p for p in found.predictions if p.schedule == "ring")
    assert alone < ring.time_ps * 1e-12 < 1.25 * alone
    assert found.speedup(found.winner) > 2
    assert found.winner.ccr > 1 > found.baseline.ccr
    assert "hamilton *" in str(found)
    assert found.winner.exposed_ps < 0.02 * found.winner.time_ps


def test_gains_fall_with_the_length_until_compute_hides_everything(mesh):
    # With half the pairs, causal kernels outweigh their starts at twice the length: the fall begins there.
    for causal, base, first in ((False, "ring", 6_700), (True, "zigzag", 13_400)):
        gains = []
        for length in (first, 20_000, 50_000, 100_000, 200_000, 1_000_000):
            found = predict(mesh, Problem(length, causal=causal), schedules=[base, "hamilton"])
            gains.append(found.speedup(found.predictions[1]))
        falling = [*[g for g in gains if g > 1.02], 1.02]
        assert falling == sorted(falling, reverse=True)
        # Then compute hides everything; all links busy hold more units than one.
        assert all(0.95 < g <= 1.02 for g in gains[len(falling) - 1 :])
        assert gains[-1] == pytest.approx(1, abs=0.02)
        # Seven times fewer bytes per link cannot gain more; the published maxima are scored by the benchmark.
        assert 2 < max(gains) < 7


@pytest.mark.parametrize(("causal", "base"), [(False, "ring"), (True, "zigzag")])
def test_the_largest_gain_is_the_published_one(mesh, causal, base):
    """3.58 with both masks on 8 x MI300X, at a length that is not known here."""
    gains = []
    for quarter in range(-4, 9):
        problem = Problem(round(6_700 * 2 ** (quarter / 4)), causal=causal)
        found = predict(mesh, problem, schedules=[base, "hamilton"])
        gains.append(found.speedup(found.predictions[1]))
    assert max(gains) == pytest.approx(3.58, rel=0.15)


def test_on_a_switch_a_ring_is_as_good_once_kernels_hide_it():
    found = predict("dgx-h100", Problem(50_000), schedules=["ring", "hamilton"])
    assert found.speedup(found.predictions[1]) == pytest.approx(1, abs=0.05)


def test_schedules_worth_comparing(mesh):
    assert schedules_for(mesh, 8, Problem(64, causal=True)) == [
        "ring", "zigzag", "striped", "hamilton", "direct", "ulysses",
        "ulysses:2+zigzag", "ulysses:2+hamilton",
    ]  # fmt: skip
    cluster = machine("h100-cluster", nodes=2)
    names = schedules_for(cluster, 16, Problem(64, heads=20))
    assert names == ["ring", "hamilton", "direct", "hamilton:8x2"]


def test_auto_takes_schedules_that_divide_sequences_the_same_way(mesh):
    assert best_schedule(mesh, 8, Problem(8192, 32, 128, causal=True)) == "hamilton"
    # So little work that two kernels per step cost more than the ring's one link.
    assert best_schedule(mesh, 8, Problem(2048, 8, 64, causal=True)) == "zigzag"
    # Both kernels of a step have 32 work-groups for 304 units; a softmax counts as 51 dimensions beside 64.
    assert best_schedule(mesh, 8, Problem(8192, 8, 64, causal=True)) == "zigzag"
    assert best_schedule(mesh, 8, Problem(12288, 8, 64, causal=True)) == "hamilton"
    assert best_schedule("h100-cluster", 4, Problem(8192, 8, 64)) in ("hamilton", "zigzag", "direct")


def test_schedules_that_do_not_fit_are_reported(mesh):
    found = predict(mesh, Problem(1024, 8, 64), schedules=["ring", "hamilton:3x2"])
    assert [p.schedule for p in found.predictions] == ["ring"]
    assert found.unfit == (("hamilton:3x2", "'hamilton:3x2' is for 6 ranks, the group has 8"),)
    assert "is for 6 ranks" in str(found)
    found = predict(mesh, Problem(1024, 8, 64), schedules=["hamilton:9", "ring"])
    assert [p.schedule for p in found.predictions] == ["ring"]
    assert "9 arc-disjoint rings over 8 ranks asked for" in str(found)
    with pytest.raises(ScheduleError, match="did you mean 'hamilton'"):
        predict(mesh, Problem(1024), schedules=["hamiltn"])


def test_waves_of_work_groups_leave_units_idle(mesh):
    times = KernelTimes.of(mesh, "bf16")
    assert (times.units, times.launch) == (304, 2.1e-6)
    assert times.peak == pytest.approx(1307.4e12, rel=0.001)

    def work(groups, taken=0):
        return times.attention(128, 1000, groups, 128, taken) - times.launch

    assert work(1) == pytest.approx(work(304))
    assert work(305) == pytest.approx(2 * work(304))
    assert work(304, taken=64) == pytest.approx(2 * work(240, taken=64))
    assert all(mesh.spec.kernels[0].source.values())


def test_kernel_times_are_those_measured(mesh):
    """Sources: machine files. TFLOP/s on MI300X; seconds of flash-attn 2, causal, 8192 tokens, 32 heads."""
    times = KernelTimes.of(mesh, "bf16")
    for heads, published in ((16, 353.22), (32, 355.51)):
        rate = 4 * 128 * 16384**2 * heads / times.attention(16384, 16384, heads, 128)
        assert rate / 1e12 == pytest.approx(published, rel=0.02)
    problem = Problem(8192, 32, 128, 8, causal=True)
    calls = Divided(make_schedule("ring", 1), problem).division.calls(0, 0)
    for name, published in (("dgx-h100", 1 / 591.5), ("hgx-a100", 1 / 373.4)):
        assert seconds_of(KernelTimes.of(machine(name), "bf16"), calls, problem, 32) == pytest.approx(
            published, rel=0.01
        )


@pytest.mark.parametrize("length", [512, 16384, 131072])
@pytest.mark.parametrize(("heads", "kv_heads", "causal"), [(32, 32, True), (32, 8, True), (8, 1, False)])
def test_a_kernel_takes_what_it_takes_by_itself(length, heads, kv_heads, causal):
    """One device, one kernel: the same time as ``megatile kernel attention``."""
    problem = Problem(length, heads, 128, kv_heads, causal=causal)
    found = predict("dgx-h100", problem, schedules=["ring"], ranks=1, kernel="fa3").winner
    alone = predict_kernel(
        "attention", machine=machine("dgx-h100"), queries=length, heads=heads, kv_heads=kv_heads,
        head_dim=128, causal=int(causal),
    )  # fmt: skip
    assert found.compute_ps == pytest.approx(alone.time_ps, abs=2)


def test_chunks_of_a_step_are_one_kernel():
    """Its start, waves and queries count once, however many chunks the keys come in."""
    times = KernelTimes.of(machine("dgx-h100"), "bf16", kernel="fa3")
    parts = [times.groups(1024, 256, 32, 128, 0, 0, 1, number == 0) for number in range(4)]
    assert sum(parts) == pytest.approx(times.groups(1024, 1024, 32, 128))
    assert times.attention(1024, 1024, 32, 128) - times.groups(1024, 1024, 32, 128) == times.start == 10.75e-6


def test_packed_sequences_share_kernels(mesh):
    def times(packed, **more):
        problem = Problem(16384, 8, 128, causal=True, packed=packed, **more)
        return {p.schedule: p for p in predict(mesh, problem, schedules=["zigzag", "hamilton"]).predictions}

    one, packs = times(()), times((4096,) * 4)
    for name in one:
        # A quarter of the pairs in as many launches; the bytes are the same.
        assert 0.25 * one[name].compute_ps < packs[name].compute_ps < 0.8 * one[name].compute_ps
        assert packs[name].communication_ps == pytest.approx(one[name].communication_ps, rel=0.02)
    with pytest.raises(ScheduleError, match="16384 in all, got"):
        times((4096,) * 3)
    with pytest.raises(ScheduleError, match="as many keys as queries"):
        times((4096,) * 4, kv_length=1024)


def test_one_peer_of_a_switch_gets_few_channels():
    """Rings and Hamilton differ where links are switched: 4 of NCCL's channels against 7 times 4."""
    found = predict("dgx-h100", Problem(3360, 20, 64, batch=16), schedules=["ring", "hamilton"])
    ring, hamilton = found.predictions
    assert hamilton.communication_ps < 0.55 * ring.communication_ps
    assert found.speedup(hamilton) > 1.5
    long = predict("dgx-h100", Problem(3360, 20, 64, batch=128), schedules=["ring", "hamilton"])
    assert long.speedup(long.predictions[1]) == pytest.approx(1, abs=0.1)


def test_messages_to_several_peers_share_a_card():
    """Eight of 15 chunks leave a node through its cards, whose links are busy to the end."""
    hda = machine("h100-cluster", nodes=2)
    found = predict_one(hda, Problem(3840, 20, 64, batch=64), "hamilton", 16)
    assert found.communication_ps < 1.15 * found.busiest_link_ps


def test_rates_by_length_are_those_measured():
    """Of torch's flash attention on H100 (pytorch/benchmark pull 2296), TFLOP/s; only the form is ours."""
    times = KernelTimes.of(machine("dgx-h100"), "bf16")
    published = {1024: 287.5, 2048: 293.2, 4096: 298.4, 8192: 287.7, 16384: 304.2}

    def rate(keys):
        return 4 * 128 * keys * keys * 1024 / times.attention(keys, keys, 1024, 128)

    for keys, measured in published.items():
        assert rate(keys) / rate(16384) == pytest.approx(measured / 304.2, rel=0.07)


def test_few_waves_take_as_long_as_measured():
    """One sequence of 4096 tokens, 16 heads of 128 on H100 (pytorch pull 128888): 3.9 waves."""
    times = KernelTimes.of(machine("dgx-h100"), "bf16")
    assert times.attention(4096, 4096, 16, 128) == pytest.approx(457e-6, rel=0.10)


RING_FLASH = {
    "A100": {"ring": 24.0, "zigzag": 38.2, "striped": 32.5},
    "H800": {"ring": 38.5, "zigzag": 63.0, "striped": 55.0},
}


@pytest.mark.parametrize("gpu", RING_FLASH)
def test_measured_rings_are_predicted(gpu, monkeypatch):
    """zhuzilin/ring-flash-attention, forward per second: 65536 tokens, causal, 32 heads, 8 for KV, 8 devices.

    With the merge of that library. An H800 computes as an H100 does, its ports measure 160 GB/s
    (deepseek-ai/DeepSeek-V3 issue 28).
    """
    slower = {"networks.nvlink.bandwidth": "200 GB/s", "networks.nvlink.efficiency": "80 %"}
    hda = machine("hgx-a100") if gpu == "A100" else machine("dgx-h100", **slower)
    theirs = replace(kernels_of(hda), merge="ring-flash-attention")
    monkeypatch.setattr(attention_kernels, "kernels_of", lambda _: theirs)
    found = predict(hda, Problem(65_536, 32, 128, 8, causal=True), schedules=list(RING_FLASH[gpu]))
    for p in found.predictions:
        allowed = 0.12 if p.schedule == "striped" else 0.10
        assert 1e12 / p.time_ps == pytest.approx(RING_FLASH[gpu][p.schedule], rel=allowed)


def test_ring_flash_attention_writes_results_of_some_rows_back():
    """In a shifted (striped) or half (zig-zag) step; one f32 value read and written, by two kernels more."""
    times = replace(KernelTimes.of(machine("dgx-h100"), "bf16"), cache=(0, 1.0), launch=1e-6)
    theirs = replace(times, kernels=replace(times.kernels, merge="ring-flash-attention"))
    whole, part = (theirs.merge(4096, 8, 64, 2, part=x) for x in (False, True))
    assert part - whole == pytest.approx(2e-6 + 4096 * 8 * 64 * 8 / times.bandwidth)
    assert times.merge(4096, 8, 64, 2, part=True) == times.merge(4096, 8, 64, 2)
    ends = theirs.conversions(4096, 8, 64, 2)
    assert ends == pytest.approx(2e-6 + 4096 * 8 * 64 * 2 * (2 + 4) / times.bandwidth)
    assert times.conversions(4096, 8, 64, 2) == 0


def test_keys_and_values_sent_apart_get_channels_by_the_size_of_each(monkeypatch):
    """80 MiB to one peer take 8 of NCCL's channels, two times 40 MiB take 4."""
    problem = Problem(3360, 20, 64, batch=39)
    together = predict_one(machine("dgx-h100"), problem, "ring", 8).communication_ps
    hda = machine("dgx-h100")
    theirs = replace(kernels_of(hda), merge="ring-flash-attention")
    monkeypatch.setattr(attention_kernels, "kernels_of", lambda _: theirs)
    assert predict_one(hda, problem, "ring", 8).communication_ps > 1.5 * together


@pytest.mark.parametrize(("dtype", "size"), [("bfloat16", 2), ("float32", 4)])
def test_merges_by_torch_are_counted_as_the_engine_does_them(dtype, size):
    """Those of one kernel are counted in test_fused_merge.py."""
    torch = pytest.importorskip("torch")
    from tests.attention.attention_merges import Operations

    from megatile.attention.merge import Accumulator

    rows, heads, dim = 64, 2, 128
    result = Accumulator(1, rows, heads, dim, torch.device("cpu"))
    block = torch.ones(1, rows, heads, dim, dtype=getattr(torch, dtype)), torch.ones(1, heads, rows)
    result.add([(0, rows)], *block)
    with Operations(rows * heads * dim) as seen:
        result.add([(0, rows)], *block)
    merge = MERGES["torch"]
    assert sum(seen.bytes) == rows * heads * dim * merge.traffic(size)
    assert len(seen.bytes) == merge.kernels - (size == 4)


def test_ring_flash_attentions_merge_is_counted_as_it_is_written():
    torch = pytest.importorskip("torch")
    from tests.attention.attention_merges import Operations

    rows, heads, dim = 64, 2, 128
    out, lse = torch.ones(1, rows, heads, dim), torch.ones(1, rows, heads, 1)
    block, block_lse = out.bfloat16(), torch.ones(1, heads, rows)
    with Operations(out.numel()) as seen:
        block, block_lse = block.to(torch.float32), block_lse.transpose(-2, -1).unsqueeze(-1)
        out = out - torch.sigmoid(block_lse - lse) * (out - block)
        lse = lse - torch.nn.functional.logsigmoid(lse - block_lse)
    merge = MERGES["ring-flash-attention"]
    assert sum(seen.bytes) == out.numel() * merge.traffic(2)
    assert len(seen.bytes) == merge.kernels


def test_machines_without_triton_merge_by_torch():
    for name in ("mi300x-8", "dgx-h100", "h100-cluster", "hgx-a100"):
        assert kernels_of(machine(name)).merge == "fused"
    assert kernels_of(machine("cpu")).merge == "torch"


def test_every_run_of_rows_is_a_launch(mesh):
    times = KernelTimes.of(mesh, "bf16")
    once, thrice = (times.merge(100, 8, 128, 2, runs) for runs in (1, 3))
    assert thrice - once == pytest.approx(2 * times.launch)
    calls = [KernelCall(((0, 50), (60, 110)), ((0, 0, 64),))] * 2
    alone = 2 * times.attention(100, 64, 32, 128)
    assert seconds_of(times, calls, Problem(100), 32) == pytest.approx(
        alone + times.merge(100, 32, 128, 2, 2)
    )


def test_short_merges_run_in_the_cache(mesh):
    times = KernelTimes.of(mesh, "bf16")
    size, rate = times.cache
    assert (size, rate) == (256 << 20, pytest.approx(11.9e12, rel=0.001))

    def per_row(rows):
        return (times.merge(rows, 32, 128, 2) - times.merge(0, 32, 128, 2)) / rows

    fitting = size // (6 * 32 * 128)
    assert per_row(fitting) == pytest.approx(10 * 32 * 128 / rate)
    assert per_row(fitting + 1) == pytest.approx(10 * 32 * 128 / times.bandwidth)
    assert times.merge(0, 32, 128, 2) == pytest.approx(2.1e-6)


def test_merges_launches_and_messages_cost_kernels_time(mesh):
    def share(name, length, communication=0.0, causal=False):
        problem = Problem(length, causal=causal)
        divided = Divided(make_schedule(name, 8), problem)
        result = simulate(
            attention_plan(divided.schedule, problem),
            machine=mesh,
            timing=AttentionKernels.of(mesh, divided, communication),
            capacity=False,
        )
        flops = 4 * problem.dim * problem.heads * length**2 / 8 / (2 if causal else 1)
        return flops / KernelTimes.of(mesh, "bf16").peak / max(result.work_ps("tensor")) * 1e12

    assert share("ring", 1_000_000) == pytest.approx(0.288, rel=0.02)
    assert share("ring", 10_000) < 0.6 * share("ring", 1_000_000)
    # Two kernels and two merges per step instead of one.
    assert share("hamilton", 20_000, causal=True) < share("zigzag", 20_000, causal=True)
    # All links busy hold 56 of 304 units, one link 8.
    assert share("hamilton", 80_000, 1.0) < share("ring", 80_000, 1.0) <= share("ring", 80_000)
    assert share("ulysses", 80_000) > share("ring", 80_000)


def test_auto_follows_the_prediction_for_the_machine_given(monkeypatch):
    torch = pytest.importorskip("torch")
    from megatile.attention import choice, make_schedule

    asked = []

    def choose(where, ranks, problem):
        asked.append((where, ranks, problem))
        return "direct"

    monkeypatch.setattr("megatile.attention.predict.best_schedule", choose)
    q, k = torch.zeros(1, 3, 8, 64), torch.zeros(1, 3, 2, 64)
    chosen = choice.predicted("mi300x-8", make_schedule("hamilton", 8), q, k, True, 1000, 1000)
    assert chosen.name == "direct"
    assert asked == [("mi300x-8", 8, Problem(1024, 8, 64, 2, kv_length=1024, causal=True, dtype="f32"))]


def test_auto_keeps_its_schedule_where_nothing_can_be_predicted():
    torch = pytest.importorskip("torch")
    from megatile.attention import choice, make_schedule

    many = make_schedule("hamilton", 9)
    x = torch.zeros(1, 3, 8, 64)
    assert choice.predicted("mi300x-8", many, x, x, False, 64, 64) is many


@pytest.mark.parametrize("name", ["mi300x-8", "dgx-h100"])
@pytest.mark.parametrize(("length", "dim"), [(1, 1), (8, 8), (16, 16)])
def test_tiny_problems_have_times_too(name, length, dim):
    found = predict(machine(name), Problem(length, heads=1, dim=dim), schedules=["ring", "hamilton"])
    assert all(p.time_ps > 0 for p in found.predictions)


@pytest.mark.parametrize("ranks", [0, -1])
def test_attention_needs_a_device(mesh, ranks):
    with pytest.raises(ScheduleError, match=f"at least one device, got ranks={ranks}"):
        predict(mesh, Problem(64), ranks=ranks)


def test_one_device_has_nothing_to_exchange(mesh):
    found = predict(mesh, Problem(1000), ranks=1)
    assert {p.busiest_link_ps for p in found.predictions} == {0}
    assert "on 1 device of" in str(found)
    assert found.why.startswith("one device has nothing to exchange")


def test_machines_without_a_network(mesh):
    described = mesh.to_dict()
    described["networks"] = [n for n in described["networks"] if n["name"] != "xgmi"]
    lonely = HDA.from_dict(described)
    assert predict(lonely, Problem(1000), ranks=1).winner.time_ps > 0
    with pytest.raises(RouteError, match="no network joins them"):
        predict(lonely, Problem(1000), schedules=["ring"])
    one = predict("cpu", Problem(64, 2, 16, dtype="f32"), schedules=["ring"])
    assert one.winner.ranks == 1


def test_more_ranks_than_devices(mesh):
    with pytest.raises(MegatileError, match="needs 9 units of 'device', machine 'mi300x-8' has 8"):
        predict(mesh, Problem(64), ranks=9)


@pytest.mark.parametrize("length", [1, 7, 10_000_000])
def test_any_length_has_a_winner(mesh, length):
    found = predict(mesh, Problem(length, causal=True), schedules=["zigzag", "hamilton"])
    assert found.winner.time_ps <= 1.01 * found.baseline.time_ps
    assert all(p.exposed_ps >= 0 for p in found.predictions)
    if length > 1_000_000:
        assert found.winner.exposed_ps < 0.001 * found.winner.time_ps


def test_fewer_heads_than_ranks_and_shared_kv_heads(mesh):
    few = predict(mesh, Problem(1024, heads=4))
    assert not any(p.schedule == "ulysses" for p in few.predictions)
    names = ["ring", "hamilton"]
    shared, own = (predict(mesh, Problem(8192, 32, 128, kv), schedules=names) for kv in (4, 32))
    for a, b in zip(shared.predictions, own.predictions, strict=True):
        assert a.communication_ps < b.communication_ps  # an eighth of the bytes
        assert a.busiest_link_ps * 8 == pytest.approx(b.busiest_link_ps, rel=0.05)


def test_work_without_end_is_left_out_and_said_so():
    """16 nodes: what takes minutes is not simulated unasked, nor what takes gigabytes at all."""
    hda, problem = machine("h100-cluster", nodes=16), Problem(2**20, 32)
    found = predict(hda, problem, schedules=["ulysses:8+ring", "hamilton"])
    assert [p.schedule for p in found.predictions] == ["ulysses:8+ring"]
    assert found.unfit == (("hamilton", "2064512 messages between 128 ranks are too many to simulate"),)
    with pytest.raises(ScheduleError, match="name it: schedule hamilton:8x16"):
        predict(hda, problem, schedules=["hamilton:8x16"], most=MAX_MESSAGES_WITHOUT_ASKING)
    with pytest.raises(ScheduleError, match="390144 messages"):
        predict(hda, problem, schedules=["hamilton:8x16"], backward=True, most=MAX_MESSAGES_WITHOUT_ASKING)


def test_progress_goes_from_schedule_to_schedule(mesh):
    heard = []
    names = ["ring", "hamilton"]
    predict(mesh, Problem(1024, 4, 64), schedules=names, progress=lambda *what: heard.append(what))
    assert heard == [("ring, 1024 tokens", 0, 2), ("hamilton, 1024 tokens", 1, 2)]


def test_the_reason_is_compute_where_communication_is_hidden():
    found = predict("hgx-a100", Problem(65_536, causal=True), schedules=["zigzag", "ulysses"])
    best, base = found.winner, found.baseline
    assert (best.schedule, base.schedule) == ("ulysses", "zigzag")
    assert base.exposed_ps < 0.01 * base.time_ps
    assert "zigzag computes" in found.why
    assert "links" not in found.why


def test_a_tie_is_called_one():
    found = predict("dgx-h100", Problem(65_536, causal=True), schedules=["zigzag", "ulysses"])
    slower = replace(found.predictions[0], time_ps=found.predictions[1].time_ps - 1)
    assert replace(found, predictions=(slower, found.predictions[1])).why.endswith(
        "; zigzag is faster by less than 1% but communicates longer, so it does not win"
    )
