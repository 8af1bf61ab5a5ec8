"""What links take longer, collectives do: figures of transports hold for the latencies of their file."""

import pytest

import megatile as mt
from megatile.collectives.planner import predict
from megatile.hda import HDA
from megatile.hda.parameters import scaled
from megatile.timing.collective_choice import rule_of, times_ps

ASKED = [
    ("dgx-h100", "nvlink", 8, ("all_reduce", "all_gather", "all_to_all", "broadcast", "send_recv")),
    ("mi300x-8", "xgmi", 8, ("all_reduce", "all_gather")),
    ("v100-8", "nvlink", 4, ("reduce_scatter",)),
    ("h100-cluster", "infiniband", 16, ("all_reduce", "all_to_all", "broadcast")),
    ("mi300x-cluster", "roce", 16, ("all_reduce",)),
]
FACTORS = ("0.01x", "1x", "2x", "100x")


@pytest.mark.parametrize(("name", "network", "ranks", "operations"), ASKED)
def test_farther_is_slower_by_every_way_to_ask(name, network, ranks, operations):
    machines = [mt.machine(name, **{f"networks.{network}.latency": factor}) for factor in FACTORS]
    for operation in operations:
        for nbytes in (8, 1 << 20)[: 2 if ranks <= 8 else 1]:
            times = []
            for hda in machines:
                found = predict(operation, machine=hda, nbytes=nbytes, ranks=ranks, launch=False)
                rule = float(times_ps(rule_of(hda), operation, ranks, nbytes, graph=True))
                assert found.time_ps == pytest.approx(rule, rel=0.02), (operation, nbytes)
                times.append(found.time_ps)
            assert times == sorted(times), (operation, nbytes)
            assert times[1] < times[2] < times[3], (operation, nbytes)
            same = predict(operation, machine=name, nbytes=nbytes, ranks=ranks, launch=False)
            assert same.time_ps == times[1]


@pytest.mark.parametrize("algorithm", ["custom", "trtllm", "tree", "direct", "in_network"])
def test_named_algorithms_and_kernels_of_engines_feel_it(algorithm):
    times = [
        predict("all_reduce", machine=hda, nbytes=4096, algorithm=algorithm, launch=False).time_ps
        for hda in (mt.machine("dgx-h100", **{"networks.nvlink.latency": f}) for f in FACTORS)
    ]
    assert times == sorted(times)
    assert times[1] < times[3]


def test_each_step_is_later_by_the_path_of_its_link():
    # Two links of 468 ns and a switch. A ring all-gather of 8 ranks has 7 steps.
    near, far = ({"networks.nvlink.latency": f"{x} ns"} for x in (468, 568))
    times = [
        mt.predict_kernel(
            "all_gather", ranks=8, bytes=1 << 16, machine=mt.machine("dgx-h100", **over)
        ).time_us
        for over in (near, far)
    ]
    assert times[1] - times[0] == pytest.approx(7 * 0.2)


def test_the_latency_of_the_figures_is_kept():
    twice = scaled(
        scaled(mt.machine("dgx-h100"), {"networks.nvlink.latency": 2}), {"networks.nvlink.latency": 2}
    )
    assert twice.network("nvlink").latency_ps == 4 * twice.network("nvlink").measured_latency_ps
    assert HDA.from_dict(twice.to_dict()) == twice
    assert mt.machine("dgx-h100").network("nvlink").measured_latency_ps is None
    back = HDA.from_dict(twice.to_dict(), **{"networks.nvlink.latency": "468 ns"})
    asked = {"nbytes": 4096, "ranks": 8}
    assert (
        predict("all_reduce", machine=back, **asked).time_ps
        == predict("all_reduce", machine="dgx-h100", **asked).time_ps
    )


def test_files_that_extend_others_keep_their_figures_latency(tmp_path):
    file = tmp_path / "far.yaml"
    file.write_text("{extends: dgx-h100, networks: [{name: nvlink, latency: 1 us}]}", "utf-8")
    assert HDA.from_yaml(file).network("nvlink").measured_latency_ps == 468_000
    # EFA's file gives figures of its own.
    assert all(n.measured_latency_ps is None for n in mt.machine("h100-cluster-efa").networks)
