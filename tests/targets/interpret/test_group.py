"""``targets/interpret/group.py``: units that run one region together."""

import re

import pytest
from tests.targets.interpret.shared import f32, fails

import megatile as mt
import megatile.language as T
from megatile.targets.interpret.errors import DeadlockError


def test_collective_under_if() -> None:
    @T.program
    def p(X: T.Tensor((4, 4), "f32")):
        with T.Kernel(device=4):
            with T.Scale("device") as (r, _):
                x = T.view(X, layout=T.FullRow)
                if r < 2:
                    T.allreduce(x)

    fails(
        DeadlockError,
        "T.allreduce is not reached by device 2, 3; device [01] waits there, under the 'if' of line",
        p,
        f32(4, 4),
        line="T.allreduce(x)",
    )


def test_the_branch_around_a_meeting_is_named() -> None:
    @T.program
    def p(X: T.Tensor((4,), "f32")):
        with T.Kernel(device=4), T.Scale("device") as (r, _):
            if r < 3:
                T.barrier()
            if r == 1:
                T.clear(X)

    with pytest.raises(DeadlockError) as caught:
        mt.run(p, f32(4))
    said = re.search(r"test_group.py:(\d+): .* under the 'if' of line (\d+)", str(caught.value))
    assert said is not None
    assert int(said[2]) == int(said[1]) - 1


def test_barrier_under_if() -> None:
    @T.program
    def p(X: T.Tensor((4,), "f32")):
        with T.Kernel(block=1, threads=256):
            with T.Scale("warpgroup") as (wg, _):
                if wg == 0:
                    T.barrier()

    fails(DeadlockError, "T.barrier is not reached by warpgroup 1", p, f32(4), line="T.barrier()")


def test_only_units_that_do_not_come_are_named() -> None:
    @T.program
    def p(X: T.Tensor((4,), "f32")):
        with T.Kernel(device=4):
            with T.Scale("device") as (r, _):
                if r != 2:
                    T.barrier()

    fails(DeadlockError, "T.barrier is not reached by device 2; device", p, f32(4), line="T.barrier()")


def test_put_into_an_instance_that_is_not_resident() -> None:
    @T.program
    def p(X: T.Tensor((4,), "f32")):
        with T.Kernel(block=20000, threads=1024):
            with T.Scale("block") as (r, n):
                t = T.alloc((4,), "f32", level="l1")
                T.copy(t, X, dst=n - 1 - r)

    fails(DeadlockError, "block 19999 is not resident yet: more instances were launched than fit", p, f32(4))
