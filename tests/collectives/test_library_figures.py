"""The figures of libraries: what they mean in predicted times."""

import pytest

from megatile.collectives.algorithms import find_algorithm
from megatile.collectives.job import CollectiveError
from megatile.collectives.libraries import offered
from megatile.collectives.planner import predict
from megatile.collectives.provenance import prove
from megatile.collectives.ranking import Floors, rank
from megatile.collectives.requests import make_job
from megatile.collectives.sweeps import count_wrong, sweep
from megatile.hda import machine
from megatile.plan.check import check
from megatile.timing import TimingError
from megatile.timing.collective_choice import rule_of, times_ps
from megatile.timing.collective_rule import RING_BLOCK


def nccl(name="dgx-h100", library="nccl", **figures):
    """A machine with other figures of its library's protocols: LL_start="7 us"."""
    changes = {}
    for key, value in figures.items():
        protocol, _, figure = key.partition("_")
        changes[f"transports.device.{library}.protocols.{protocol}.{figure}"] = value
    return machine(name, **changes)


def us(hda, nbytes, algorithm, protocol, **settings):
    found = predict(
        "all_reduce", machine=hda, nbytes=nbytes, algorithm=algorithm, protocol=protocol, settings=settings,
        in_place=True,
    )  # fmt: skip
    return found.time_ps / 1e6


def test_a_ring_is_a_start_and_a_step_per_slot():
    """The last slot sends nothing and takes as long as the others."""
    hda = nccl(LL_start="7 us", LL_step="0.5 us", LL_first="0 us")
    assert us(hda, 128, "ring", "LL") == pytest.approx(7 + 15 * 0.5, rel=0.01)


def test_in_switch_reduction_has_its_own_start_and_share():
    hda = nccl(NVLS_start="20 us", NVLS_share="50 %", NVLS_fill="0")
    rate = 450e9 * 0.873 * 0.5
    assert us(hda, 1 << 30, "in_network", None) == pytest.approx(20 + (1 << 30) / rate * 1e6, rel=0.01)


def test_the_launch_hides_behind_longer_kernels():
    hda = machine("mi300x-8", **{"transports.device.rccl.launch": "50 us"})
    captured = predict("all_reduce", machine=hda, nbytes=1 << 10, algorithm="rccl", launch=False)
    assert captured.time_ps < 50e6
    assert predict("all_reduce", machine=hda, nbytes=1 << 10, algorithm="rccl").time_ps == 50e6


@pytest.mark.parametrize(("name", "library"), [("dgx-h100", "nccl"), ("mi300x-8", "rccl")])
def test_a_library_is_a_choice_among_its_algorithms(name, library):
    for operation in ("all_reduce", "all_to_all"):
        found = predict(operation, machine=name, nbytes=1 << 16, algorithm=library)
        assert found.algorithm in offered(library, operation)
        assert found.explanation is not None
        assert {c.algorithm for c in found.explanation.candidates} <= set(offered(library, operation))


def steps_in_a_row(ranks, blocks, collectives=200):
    """Ring all-reduces one after another: a rank begins when it has all sums of the one before."""
    begins, middle = [0] * ranks, 0
    for number in range(collectives):
        ends = [0] * ranks
        for block in range(blocks):
            order = [(block + 1 + i) % ranks for i in range(ranks)]
            time = begins[order[0]]
            for one in order[1:]:
                time = max(time + 1, begins[one])
            ends[block] = max(ends[block], time)
            for one in order[:-1]:
                time += 1
                ends[one] = max(ends[one], time)
        begins = ends
        if number == collectives // 2:
            middle = max(ends)
    return (max(begins) - middle) / (collectives - 1 - collectives // 2)


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 8, 16])
def test_steps_of_rings_with_empty_blocks(ranks):
    rule = rule_of(machine("dgx-h100"))
    for blocks in range(1, ranks + 1):
        steps = 2 * (ranks - 1) - rule.saved_steps("all_reduce", ranks, RING_BLOCK * blocks)
        assert steps_in_a_row(ranks, blocks) == pytest.approx(steps, rel=0.02), blocks
    assert rule.saved_steps("all_reduce", ranks, RING_BLOCK * ranks) == 0


def test_a_library_leaves_blocks_of_a_ring_empty():
    hda = nccl(LL_start="7 us", LL_step="0.5 us", LL_first="0 us", LL_next="0 us")
    for nbytes, steps in ((8, 8), (16, 8), (32, 8), (64, 12), (128, 14)):
        found = predict("all_reduce", machine=hda, nbytes=nbytes, algorithm="nccl", in_place=True)
        assert found.model == "NCCL ring, LL"
        assert found.time_ps / 1e6 == pytest.approx(7 + (steps + 1) * 0.5, rel=0.01)
        assert us(hda, nbytes, "ring", None) == found.time_ps / 1e6


def test_channels_come_with_size():
    sizes = (1 << 12, 1 << 15, 1 << 20, 1 << 26)
    plans = [predict("all_reduce", machine="dgx-h100", nbytes=n, algorithm="ring").plan for n in sizes]
    assert [plan.transports[0].channels for plan in plans] == [1.0, 1.0, 24.0, 24.0]


def test_an_algorithm_without_a_protocol_says_so():
    hda = machine("dgx-h100")
    assert us(hda, 1 << 20, "ring", "LL128") > 0
    for name, protocol in (("tree", "LL128"), ("ring", "NVLS"), ("in_network", "LL")):
        with pytest.raises(CollectiveError, match=f"'{name}' has no protocol '{protocol}'"):
            predict("all_reduce", machine=hda, nbytes=64, algorithm=name, protocol=protocol)


@pytest.mark.parametrize(
    ("nbytes", "launch", "algorithm", "protocol"),
    [
        (8, True, "ring", "LL"),
        (512, True, "ring", "LL"),
        (1024, True, "direct", "LL"),
        (256 << 10, True, "direct", "LL"),
        (512 << 10, True, "direct", "Simple"),
        (16, False, "ring", "LL"),
        (32, False, "direct", "MSCCL++"),
        (1 << 20, False, "direct", "MSCCL++"),
        (2 << 20, False, "direct", "Simple"),
    ],
)
def test_rccl_has_all_pairs_for_some_sizes(nbytes, launch, algorithm, protocol):
    hda = machine("mi300x-8")
    found = predict("all_reduce", machine=hda, nbytes=nbytes, algorithm="rccl", launch=launch)
    assert (found.algorithm, found.candidate.protocol) == (algorithm, protocol)


def test_variables_of_nccl_are_options():
    asked = {"machine": "dgx-h100", "nbytes": 64 << 20}
    assert predict("all_reduce", **asked).model == "NCCL in network, NVLS"
    without = predict("all_reduce", **asked, env={"NCCL_NVLS_ENABLE": "0"})
    assert without.model == "NCCL ring, Simple"
    assert (
        predict("all_reduce", **asked, env={"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring"}).model == "NCCL ring, LL"
    )


def test_a_library_that_the_machine_has_not_is_named():
    with pytest.raises(TimingError, match="machine 'mi300x-8' has no transport 'nccl'"):
        predict("all_reduce", machine="mi300x-8", nbytes=64, algorithm="nccl")


@pytest.mark.parametrize(("name", "library"), [("dgx-h100", "nccl"), ("mi300x-8", "rccl")])
def test_prices_of_libraries_are_lower_bounds(name, library):
    hda = machine(name)
    for nbytes in (8, 64, 4096, 1 << 17, 1 << 20):
        job, _ = make_job("all_reduce", machine=hda, nbytes=nbytes)
        for candidate in rank(hda, job, offered(library, "all_reduce"), library=library):
            if candidate.time_ps is not None:
                assert candidate.price_ps <= candidate.time_ps


def test_lanes_of_rings_over_nodes_do_not_hold_one_another_up():
    hda = machine("h100-cluster", nodes=2)
    in_order, staggered = (us(hda, 1 << 20, "rail_rings", "Simple", lag=lag) for lag in (1, 2))
    assert staggered < 0.95 * in_order


@pytest.mark.parametrize("lag", [1, 5])
@pytest.mark.parametrize(("gpus", "nodes"), [(2, 2), (3, 2), (4, 3)])
@pytest.mark.parametrize("operation", ["all_reduce", "all_gather", "reduce_scatter"])
def test_staggered_rings_are_right(operation, gpus, nodes, lag):
    hda = machine("h100-cluster", gpus=gpus, nodes=nodes)
    for count, in_place, chunks in ((1, True, 1), (13, False, 1), (257, True, 3)):
        settings = {"lag": lag, "chunks": chunks}
        job, _ = make_job(operation, machine=hda, nbytes=4 * count, in_place=in_place)
        plan = find_algorithm("rail_rings").plan(job, **settings)
        check(plan)
        prove(plan, job)
    found = predict(operation, machine=hda, nbytes=4 * 257, algorithm="rail_rings", settings={"lag": lag})
    assert count_wrong(found) == 0


@pytest.mark.parametrize("operation", ["all_gather", "reduce_scatter"])
@pytest.mark.parametrize("nbytes", [1 << 16, 1 << 20, 1 << 28])
def test_rings_over_nodes_take_nearly_the_time_of_the_rule_by_themselves(operation, nbytes):
    """Their lanes do not wait for each other, as channels of the library do not."""
    for name in ("h100-cluster", "h100-cluster-efa"):
        found = predict(operation, machine=machine(name), nbytes=nbytes, ranks=16)
        assert found.algorithm == "rail_rings"
        assert 0.9 < found.plan.transports[0].pace < 1.1


def test_a_sweep_chooses_as_single_predictions_do():
    hda = machine("mi300x-8")
    sizes = [1 << k for k in (3, 9, 10, 12, 16, 18, 19, 20, 22, 24)]
    fields = {"in_place": True, "verify": False}
    for line, found in sweep("all_reduce", hda, sizes, ("auto", "rccl"), **fields):
        alone = predict("all_reduce", machine=hda, nbytes=line.size, algorithm=line.asked, in_place=True)
        assert (found.candidate.label, found.time_ps) == (alone.candidate.label, alone.time_ps)


@pytest.mark.parametrize(("name", "library"), [("dgx-h100", "nccl"), ("mi300x-8", "rccl")])
def test_of_equals_a_sweep_takes_the_same_as_a_single_prediction(name, library):
    """With a long launch all are equally fast."""
    hda = machine(name, **{f"transports.device.{library}.launch": "90 us"})
    fields = {"in_place": True, "ranks": 4, "among": ["ring", "tree", "direct", "recursive_doubling"]}
    for line, found in sweep("all_reduce", hda, [64, 1 << 12, 1 << 16], verify=False, **fields):
        alone = predict("all_reduce", machine=hda, nbytes=line.size, **fields)
        assert found.time_ps == alone.time_ps == 90_000_000
        assert found.candidate.key == alone.candidate.key


def test_floors_of_a_larger_size_are_not_used():
    hda, floors = machine("dgx-h100"), Floors()
    predict("all_reduce", machine=hda, nbytes=1 << 26, algorithm="nccl", floors=floors)
    small = predict("all_reduce", machine=hda, nbytes=64, algorithm="nccl", floors=floors)
    assert small.time_ps == predict("all_reduce", machine=hda, nbytes=64, algorithm="nccl").time_ps


@pytest.mark.parametrize("nbytes", [1 << 10, 1 << 20, 1 << 24])
def test_trees_inside_a_node_are_shown_and_bound_by_channels(nbytes):
    asked = {"machine": "dgx-h100", "nbytes": nbytes}
    tree, few = (
        predict("all_reduce", **asked, env={"NCCL_ALGO": "Tree", **more})
        for more in ({}, {"NCCL_MAX_NCHANNELS": "1"})
    )
    assert tree.algorithm == "node_tree"
    assert tree.model.startswith("NCCL node tree")
    rule = rule_of(machine("dgx-h100"))
    assert tree.time_ps == pytest.approx(
        float(times_ps(rule, "all_reduce", 8, nbytes, env={"NCCL_ALGO": "Tree"})), rel=0.02
    )
    # One channel carries 20 GB/s and sends everything up and down.
    assert few.time_ps == tree.time_ps if nbytes == 1 << 10 else few.time_ps > 2 * tree.time_ps


@pytest.mark.parametrize("name", ["dgx-h100", "h100-cluster", "mi300x-8", "v100-8"])
def test_a_barrier_of_a_library_is_an_all_reduce_of_one_element(name):
    barrier, reduced = (predict(op, machine=name, nbytes=4) for op in ("barrier", "all_reduce"))
    assert barrier.time_ps == pytest.approx(reduced.time_ps, rel=0.01)
    assert barrier.model == reduced.model
    check(barrier.plan, name)
