"""``targets/interpret/run.py``: ``mt.run``."""

from tests.targets.interpret.shared import f32, fails

import megatile.language as T
from megatile.targets.interpret.errors import PartialError, ReplicaMismatchError


def test_replicas_that_differ_at_the_end() -> None:
    @T.program
    def p(X: T.Tensor((4,), "f32")):
        with T.Kernel(device=4):
            with T.Scale("device") as (r, _):
                x = T.view(X, layout=T.Replica)
                T.fill(x, r)

    fails(
        ReplicaMismatchError,
        "copies of 'X' differ at the end: device 1, 2, 3 from device 0.*T.allreduce on the view",
        p,
        f32(4),
        line="x = T.view(X, layout=T.Replica)",
    )


def test_partial_at_the_end() -> None:
    @T.program
    def p(X: T.Tensor((4,), "f32")):
        with T.Kernel(device=4):
            with T.Scale("device") as (r, _):
                x = T.view(X, layout=T.Partial("sum"))
                T.fill(x, r)

    fails(
        PartialError, "'X' still holds partial terms at the end.*T.allreduce or T.reduce_scatter", p, f32(4)
    )
