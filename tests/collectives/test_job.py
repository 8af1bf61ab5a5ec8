"""``collectives/job.py``: what is to be done."""

import numpy as np
import pytest

import megatile as mt
from megatile.collectives.job import CollectiveError, Job
from megatile.collectives.planner import predict

RANKS, EACH = 8, 1 << 18
EVEN = [[EACH] * RANKS] * RANKS
ONE = [[EACH if (i, j) == (0, 3) else 0 for j in range(RANKS)] for i in range(RANKS)]
TO_ONE = [[RANKS * EACH if j == 0 else 0 for j in range(RANKS)] for _ in range(RANKS)]


@pytest.mark.parametrize("rank", [-1, 8, 1.5])
@pytest.mark.parametrize("name", ["root", "peer"])
def test_a_rank_is_one_of_those_there_are(name, rank) -> None:
    with pytest.raises(CollectiveError, match=f"{name} {rank} is not a rank.*there are 8"):
        Job("broadcast", 8, 64, **{name: rank})
    assert getattr(Job("broadcast", 8, 64, **{name: 7}), name) == 7


def timed(splits, machine="dgx-h100", **options):
    found = predict("all_to_all", machine=machine, splits=splits, ranks=RANKS, **options)
    plan = mt.collective("all_to_all", machine=machine, splits=splits, ranks=RANKS, **options)
    assert mt.simulate(plan, machine=machine).time_ps == found.time_ps
    return found


@pytest.mark.parametrize("machine", ["dgx-h100", "mi300x-8"])
def test_the_busiest_rank_decides(machine) -> None:
    even, one, to_one = (timed(splits, machine) for splits in (EVEN, ONE, TO_ONE))
    assert (
        even.time_ps == predict("all_to_all", machine=machine, nbytes=RANKS * EACH * 4, ranks=RANKS).time_ps
    )
    assert one.time_ps <= even.time_ps
    # Rank 0 receives eight times what every rank receives when blocks are even.
    if machine == "dgx-h100":
        assert 4 * even.time_ps < to_one.time_ps < 9 * even.time_ps


def test_time_grows_with_the_largest_share_not_with_the_largest_block() -> None:
    rng = np.random.default_rng(1)
    skewed = rng.integers(0, 2 * EACH, (RANKS, RANKS))
    most = max(skewed.sum(0).max(), skewed.sum(1).max())
    found, even = timed(skewed.tolist()), timed(EVEN)
    assert found.time_ps == pytest.approx(even.time_ps * most / (RANKS * EACH), rel=0.15)
    padded = predict("all_to_all", machine="dgx-h100", nbytes=int(skewed.max()) * RANKS * 4, ranks=RANKS)
    assert found.time_ps < 0.85 * padded.time_ps


def test_data_go_where_splits_say() -> None:
    splits = np.random.default_rng(2).integers(0, 5, (4, 4))
    plan = mt.collective("all_to_all", machine="dgx-h100", splits=splits.tolist(), ranks=4)
    most = splits.max()
    x = np.arange(4 * 4 * most, dtype="f4").reshape(4, 4 * most)
    y = mt.execute(plan, {"x": x})["y"]
    for i in range(4):
        for j in range(4):
            n = splits[i, j]
            np.testing.assert_array_equal(y[j, i * most : i * most + n], x[i, j * most : j * most + n])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"splits": [[1, 2]]}, "8 rows of 8 numbers"),
        ({"splits": [[1] * 7 + [-1]] * 8}, "whole number of elements, got -1"),
        ({"splits": EVEN, "nbytes": 8}, "both say how much"),
        ({"splits": ONE, "in_place": True}, "all_to_all takes no splits"),
        ({"splits": ONE, "algorithm": "pairwise"}, "sends blocks of one size"),
    ],
)
def test_what_makes_no_sense_is_refused(options, said) -> None:
    with pytest.raises(mt.MegatileError, match=said):
        predict("all_to_all", machine="dgx-h100", ranks=RANKS, **options)
    with pytest.raises(mt.MegatileError, match="all_reduce takes no splits"):
        predict("all_reduce", machine="dgx-h100", ranks=RANKS, splits=ONE)
