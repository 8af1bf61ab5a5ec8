"""``targets/interpret/machine.py``: the interpreter."""

from typing import Any

import numpy as np
import pytest
from tests.targets.interpret.shared import f32, fails, looked_at

import megatile as mt
import megatile.language as T
from megatile.targets.interpret.errors import DeadlockError, RunError


def test_wait_without_signal() -> None:
    @T.program
    def p(X: T.Tensor((4,), "f32")):
        with T.Kernel(device=2):
            with T.Scale("device"):
                flag = T.alloc((1,), "i32", level="l2")
                T.wait(flag, 1)

    fails(
        DeadlockError,
        r"deadlock: device 0 waits at T.wait \(line \d+\) until 'flag' is 1, and it is 0; device 1 waits at "
        r"T.wait.*'flag' is signalled nowhere.*needs a signal",
        p,
        f32(4),
        line="T.wait(flag, 1)",
    )


def test_waiting_for_an_instance_that_is_not_resident() -> None:
    @T.program
    def p(X: T.Tensor((4,), "f32")):
        with T.Kernel(block=20000, threads=1024):
            with T.Scale("block"):
                T.barrier()

    fails(
        DeadlockError,
        r"deadlock: block 0 waits at T.barrier.*are not resident, only \d+ fit at "
        r"once.*ending the region",
        p,
        f32(4),
    )


def test_checks_can_be_switched_off() -> None:
    @T.program
    def p(X: T.Tensor((8,), "f32")):
        with T.Kernel(block=2) as bx:
            x = T.alloc((8,), "f32")
            T.fill(x, bx)
            T.copy(X, x)

    x = f32(8)
    mt.run(p, x, checks=False)
    assert set(x) <= {0.0, 1.0}


def test_a_breakpoint_shows_all_scalars() -> None:
    stops: list[Any] = []
    arrays = f32(8), np.full(1, 3, np.int32)
    mt.run(looked_at(), *arrays, on_breakpoint=stops.append)
    assert {stop.unit for stop in stops} == {"block 0, warpgroup 1", "block 1, warpgroup 1"}
    last = stops[-1].vars
    assert last == {"k": 1, "n": 3, "half": 3, "bx": 1, "w": 1, "size": 2, "scalar": 3} or last.items() >= {
        "k": 1, "n": 3, "half": 3, "bx": 1, "w": 1, "size": 2,
    }.items()  # fmt: skip
    np.testing.assert_array_equal(stops[-1]["x"], [3, 3, 3, 3])
    with pytest.raises(RunError, match="there is no tile 'y'.*tiles there are"):
        stops[-1]["y"]
    lines: list[str] = []
    mt.run(looked_at(), *arrays, output=lines.append)
    assert len(lines) == 4
    assert "[block 1, warpgroup 1] breakpoint at line" in lines[-1] and "half = 3" in lines[-1]
