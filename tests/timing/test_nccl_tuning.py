"""``timing/nccl_tuning.py``: the model by which NCCL chooses algorithm and protocol."""

import pytest

from megatile.hda import machine
from megatile.timing.collective_choice import choose, rule_of
from megatile.timing.machine_timing import TimingError


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
