"""``runtime/errors.py``: who is at fault when processes fail."""

import pytest

from megatile.runtime.errors import LaunchError, check_timeout, failure, how_ended, named


def report(text: str, own: bool) -> dict[str, object]:
    return {"text": text, "own": own}


@pytest.mark.parametrize(
    ("reports", "dead", "message", "units"),
    [
        ({0: report("waits for 2", False)}, [2], "rank 2 of 4: ended by signal SIGKILL", (2,)),
        ({0: report("waits", False), 1: report("ValueError", True)}, [], "rank 1 of 4: ValueError", (1,)),
        (
            {1: report("waits", False), 0: report("late", False)},
            [],
            r"rank 0 of 4: late \(also rank 1\)",
            (0, 1),
        ),
    ],
    ids=["died", "failed by itself", "only waited"],
)
def test_the_dead_are_at_fault_then_those_that_failed_by_themselves(
    reports: dict[int, object], dead: list[int], message: str, units: tuple[int, ...]
) -> None:
    error = failure("rank", reports, dead, lambda _: how_ended(-9), of=" of 4")
    with pytest.raises(LaunchError, match=f"^{message}$"):
        raise error
    assert error.units == units


def test_few_units_are_named() -> None:
    assert (named("unit", [3]), named("unit", [1, 2])) == ("unit 3", "units 1, 2")
    assert named("rank", range(20)) == "ranks 0, 1, 2, 3, 4, 5, 6, 7, …"
    assert (how_ended(3), how_ended(-15)) == ("ended with exit code 3", "ended by signal SIGTERM")


@pytest.mark.parametrize("timeout", [0, -1, True, "5", float("nan"), None])
def test_a_timeout_is_seconds_above_zero(timeout: object) -> None:
    check_timeout(0.5)
    with pytest.raises(LaunchError, match=r"timeout=.*give seconds, more than 0"):
        check_timeout(timeout)
