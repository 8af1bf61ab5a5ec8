"""The sizes of a sweep, as nccl-tests counts them."""

import pytest

from megatile.collectives.job import Job
from megatile.collectives.planner import predict
from megatile.collectives.sweeps import sizes, small_twin, sweep
from megatile.hda import machine


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ((8, 64, 2.0), [8, 16, 32, 64]),
        ((8, 63, 2.0), [8, 16, 32]),
        ((1, 4, 1.1), [1, 2, 3, 4]),
        ((4, 20, 2.0, 8), [4, 12, 20]),
        ((4, 19, 2.0, 8), [4, 12]),
        ((64, 8, 2.0), []),
    ],
)
def test_sizes_grow_by_a_factor_or_a_step(asked, found):
    assert list(sizes(*asked)) == found


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


def test_small_twin_is_divided_the_same_way():
    job = Job("all_reduce", 8, (1 << 28) + 3)
    twin = small_twin(job)
    assert twin.count < job.count
    assert twin.count % (8 * 64) == job.count % (8 * 64)
