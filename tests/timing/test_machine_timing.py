"""``timing/machine_timing.py``: a machine as the commands of a plan see it."""

import pytest

import megatile as mt
from megatile.timing.machine_timing import Timing, TimingError, as_timing


def test_a_plain_timing_changes_nothing_and_is_made_once() -> None:
    dgx = mt.machine("dgx-h100")
    view = as_timing(None).view(dgx, "device")
    assert (view.engines, view.networks, view.control, view.roofline) == (dgx.engines, {}, True, True)
    assert Timing().view(dgx, "block") is view


def test_an_engine_that_moves_data_comes_first_and_needs_no_control_path() -> None:
    dgx = mt.machine("dgx-h100")
    view = Timing().view(dgx, "device").with_engine(dgx.engines[-1])
    assert view.engines == (dgx.engines[-1], *dgx.engines)
    assert not view.control


def test_latency_of_memories_is_hidden_where_an_engine_prefetches() -> None:
    for name in ("dgx-h100", "cpu"):
        machine = mt.machine(name)
        ahead = any(engine.prefetch for engine in machine.engines)
        assert bool(Timing().view(machine, "device").counted) == ahead


def test_what_is_not_a_timing_is_refused() -> None:
    with pytest.raises(TimingError, match=r"timing='nccl' is not a timing.*give a Timing"):
        as_timing("nccl")  # type: ignore[arg-type]
