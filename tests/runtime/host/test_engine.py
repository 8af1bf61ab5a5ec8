"""``runtime/host/engine.py``: the seam between the host and the simulator."""

from __future__ import annotations

import numpy as np
import pytest
from tests.runtime.host.overlap_cases import run

import megatile as mt
from megatile.core.limits import TimeBudgetExceeded, time_limit
from megatile.runtime.host.engine import Engine


def test_the_trace_has_both() -> None:
    with mt.host("ahbm", algorithm="ring") as torch:

        def body(rank):
            x, y = torch.empty(64).fill_(1), torch.empty(64).fill_(2)
            works = [torch.distributed.all_reduce(t, async_op=True) for t in (x, y)]
            for work in works:
                work.wait()
            return x.numpy()[0], y.numpy()[0]

        assert set(run(torch, body).values()) == {(2, 4)}
        together = [w for group in torch.engine.groups() if len(group) > 1 for w in group]
        trace = torch.trace
    assert len(together) == 2
    sends = [e for e in trace if e.operation == "send"]
    assert sends
    assert max(e.end_ps for e in trace) <= torch.engine.end_ps
    assert min(e.start_ps for e in sends) >= together[0].submit_ps


def test_work_that_overlaps_heeds_a_time_limit() -> None:
    machine = mt.machine("ahbm")
    plan, engine = mt.collective("all_reduce", machine=machine, nbytes=65536), Engine(machine, data=False)
    pair = [engine.submit(plan, at, [0], beside=True)[0] for at in (0, 100)]
    with pytest.raises(TimeBudgetExceeded, match="has not ended within the time given"), time_limit(1e-9):
        engine.settle(*pair)
    engine.settle(*pair)
    assert pair[0].end_ps > pair[1].submit_ps


@pytest.mark.parametrize("name", ["ahbm", "dgx-h100"])
def test_work_that_nothing_overlaps_takes_the_time_it_takes_on_a_new_machine(name) -> None:
    machine = mt.machine(name)
    plans = [mt.collective("all_reduce", machine=machine, nbytes=n, algorithm="ring") for n in (4096, 65536)]
    lasting, rng, at = Engine(machine, data=False), np.random.default_rng(0), 0

    def ends(engine, begin, offset):
        pair = [
            engine.submit(p, begin + late, [0], beside=True)[0]
            for p, late in zip(plans, (0, offset), strict=True)
        ]
        engine.settle(*pair)
        return [launch.end_ps - begin for launch in pair]

    for offset in rng.integers(0, 4000, 8).tolist():
        found = ends(lasting, at, offset)
        assert found == ends(Engine(machine, data=False), 0, offset)
        at += max(found)


def test_work_that_is_alike_on_two_devices_is_shown_on_both() -> None:
    with mt.host("ahbm", sips=2) as torch:
        for number in range(2):
            torch.accelerator.set_device_index(number)
            x = torch.empty(64).fill_(1)
            _ = x * 2.0
        devices = [
            {e.unit for e in torch.engine.trace_of(w)} for w in torch.engine.launches if w.plan is not None
        ]
    assert len(devices) >= 2
    assert devices[0] != devices[-1]
    assert not devices[0] & devices[-1]
