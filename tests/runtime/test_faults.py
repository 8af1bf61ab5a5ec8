"""A sample of ``python -m tests.runtime.faults``: whatever is lost is said, and nothing is left behind."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from tests.runtime.faults import FORKS, Fault, attempt, cases

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None or not Path("/proc/self/environ").exists(),
    reason="needs torch, and /proc to find processes",
)
SAMPLE = [
    ("plan", Fault("stop", "begin", 2)),
    ("plan", Fault("disk", amount=1)),
    ("search", Fault("stop", "begin", 1)),
    ("search", Fault("fork", amount=1)),
]


@pytest.mark.parametrize(("job", "fault"), SAMPLE, ids=str)
def test_what_is_lost_is_said(job: str, fault: Fault) -> None:
    assert (job, fault) in list(cases(list(FORKS)))
    assert attempt(job, fault) is None
