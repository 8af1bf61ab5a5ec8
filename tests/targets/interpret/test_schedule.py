"""``targets/interpret/schedule.py``: which unit goes next, and when puts arrive."""

import pytest
from tests.targets.interpret.shared import f32, fails

import megatile as mt
import megatile.language as T
from megatile.targets.interpret.errors import DataRaceError, RunError


@pytest.mark.parametrize(
    ("schedule", "seed"), [("round-robin", 0), ("adversarial", 0), *(("random", seed) for seed in range(4))]
)
@pytest.mark.parametrize("kinds", ["read and write", "write and write"])
def test_a_race_is_found_by_every_schedule(kinds: str, schedule: str, seed: int) -> None:
    """Also when one of the units has finished before the other begins."""

    @T.program
    def p(X: T.Tensor((4,), "f32")):
        with T.Kernel(block=2) as b:
            if b == 0:
                T.fill(X[0:2], 1)
            elif kinds == "read and write":
                T.copy(X[2:4], X[0:2])
            else:
                T.fill(X[1:3], 2)

    fails(DataRaceError, "data race on 'X'", p, f32(4), schedule=schedule, seed=seed)


def test_unknown_schedule() -> None:
    @T.program
    def p(X: T.Tensor((4,), "f32")):
        with T.Kernel(block=1):
            T.clear(X)

    with pytest.raises(RunError, match="there is no schedule 'randm' .*did you mean 'random'"):
        mt.run(p, f32(4), schedule="randm")
