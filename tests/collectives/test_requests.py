"""``collectives/requests.py``: what a user asks of a collective."""

from __future__ import annotations

import pytest

import megatile as mt
from megatile.collectives import predict


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"nbytes": -4}, "-4 is not a size in bytes"),
        ({"nbytes": 64.0}, "64.0 is not a size in bytes"),
        ({"nbytes": None}, "needs a size in bytes"),
        ({"nbytes": "many"}, "many"),
        ({"nbytes": 10}, "8 or 12"),
        ({"ranks": 99}, "there is no unit 98"),
        ({"ranks": [-1, 2]}, "there is no unit -1"),
        ({"ranks": 0}, "at least one rank"),
        ({"ranks": []}, "at least one rank"),
        ({"ranks": [1, 1]}, "two ranks"),
        ({"ranks": "4"}, "is not a number or list of ranks"),
        ({"ranks": 2.5}, "is not a number or list of ranks"),
        ({"ranks": {1, 2}}, "is not a number or list of ranks"),
        ({"ranks": [1, "2"]}, "is not a number or list of ranks"),
        ({"scale": "gpuu"}, "did you mean 'gpu'"),
        ({"machine": "h200"}, "did you mean 'h200-8'"),
        ({"machine": 5}, "is not a machine"),
        ({"algorithm": "rings"}, "did you mean 'ring'"),
        ({"algorithm": None}, "None is not an algorithm"),
        ({"algorithm": "os.path:join"}, "is not an algorithm"),
        ({"algorithm": "nowhere.at:all"}, "cannot be imported"),
        ({"algorithm": "ring", "settings": {"chunk": 2}}, "did you mean 'chunks'"),
        ({"algorithm": "ring", "settings": {"chunks": 0}}, "of at least 1"),
        ({"algorithm": "ring", "settings": {"chunks": "4"}}, "of at least 1"),
        ({"algorithm": "tree", "settings": {"arity": 0}}, "of at least 1"),
        ({"algorithm": "by_dimension", "settings": {"both_ways": 1}}, "True or False"),
        ({"algorithm": "ring", "settings": [1]}, "options of one algorithm"),
        ({"settings": {"chunks": 4}}, "options of one algorithm"),
        ({"reduction": "mean"}, "avg"),
        ({"reduction": None}, "is not a reduction"),
        ({"root": 8}, "root 8 is not a rank"),
        ({"root": "0"}, "is not a rank"),
        ({"peer": 9}, "peer 9 is not a rank"),
        ({"dtype": "float31"}, "dtypes there are"),
        ({"memory": "l9"}, "no memory 'l9'"),
        ({"slot_memory": "l9"}, "no memory 'l9'"),
        ({"in_plase": True}, "did you mean 'in_place'"),
        ({"protocol": "fast"}, "protocols there are"),
        ({"among": ["rng"]}, "did you mean 'ring'"),
        ({"table": 7}, "give a dict"),
    ],
    ids=str,
)
def test_one_clear_error(fields, message):
    with pytest.raises(mt.MegatileError, match=message):
        predict("all_reduce", **({"machine": "dgx-h100", "nbytes": 64} | fields))


@pytest.mark.parametrize("operation", ["allsum", None, 3])
def test_operations_that_do_not_exist(operation):
    with pytest.raises(mt.MegatileError, match="is not a collective operation"):
        mt.collective(operation, machine="dgx-h100", nbytes=64)


@pytest.mark.parametrize("spelling", ["all_reduce", "AllReduce", "all-reduce", "allreduce"])
def test_spellings(spelling):
    plan = mt.collective(spelling, machine="dgx-h100", nbytes="1 KiB", algorithm="ring")
    assert plan == mt.collective("all_reduce", machine="dgx-h100", nbytes=1024, algorithm="ring")


@pytest.mark.parametrize(
    ("machine", "scale", "ranks"),
    [
        ("dgx-h100", "warp", 4),
        ("dgx-h100", "warp_group", 2),
        ("dgx-h100", "block", 3),
        ("dgx-h100", "cluster", 5),
        ("dgx-h100", "device", 8),
        ("h100-cluster", "node", None),
        ("ahbm", "pe", 8),
        ("ahbm", "cube", None),
        ("ahbm", "sip", None),
        ("cpu", "thread", 6),
    ],
)
def test_any_scale(machine, scale, ranks):
    """Through shared memory, inside a cluster, over dies, devices and nodes alike."""
    found = predict("all_reduce", machine=machine, scale=scale, ranks=ranks, nbytes=2 * 37, dtype="f16")
    mt.check(found.plan, mt.machine(machine))
    assert found.time_ps > 0


def test_warps_of_one_block_meet_in_shared_memory():
    near = predict("all_reduce", machine="dgx-h100", scale="warp", ranks=4, nbytes=1024)
    far = predict("all_reduce", machine="dgx-h100", scale="block", ranks=4, nbytes=1024)
    assert {channel.memory for channel in near.plan.channels} == {"shared"}
    # Neither pays for the launch of a kernel: both are part of one that runs already.
    assert 2 * near.time_ps < far.time_ps < 1_000_000


def test_more_chunks_than_elements():
    with pytest.raises(mt.MegatileError, match="cannot cut 2 elements into 1000000000 chunks"):
        predict("all_reduce", machine="dgx-h100", nbytes=8, algorithm="ring", settings={"chunks": 10**9})
    predict("all_reduce", machine="dgx-h100", nbytes=8, algorithm="ring", settings={"chunks": 3})
