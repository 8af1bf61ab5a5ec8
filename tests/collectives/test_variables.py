"""Variables of NCCL that cannot decide anything, and groups of one rank."""

from __future__ import annotations

import pytest

import megatile as mt
from megatile.collectives import predict


@pytest.mark.parametrize(
    ("machine", "fields", "message"),
    [
        ("dgx-h100", {"algorithm": "fastest"}, "have no effect with algorithm='fastest'"),
        ("dgx-h100", {"algorithm": "ring"}, "have no effect with algorithm='ring'"),
        ("dgx-h100", {"protocol": "LL"}, "have no effect with protocol='LL'"),
        ("tpu-v5p", {}, "on 'tpu-v5p'"),
    ],
)
def test_variables_that_decide_nothing_are_refused(machine: str, fields: dict, message: str) -> None:
    with pytest.raises(mt.MegatileError, match=message):
        predict(
            "all_reduce", machine=machine, nbytes=1 << 20, ranks=4, env={"NCCL_PROTO": "Simple"}, **fields
        )


@pytest.mark.parametrize("name", ["dgx-h100", "v100-8", "l20-8"])
def test_one_rank_exchanges_nothing(name: str) -> None:
    found = predict("all_reduce", machine=name, nbytes=1 << 20, ranks=1, launch=False)
    assert found.time_ps <= 1_000_000
