"""``runtime/host/times.py``: where the time of a host script went."""

from __future__ import annotations

import pytest
from tests.runtime.host.overlap_cases import busy, run

import megatile as mt
from megatile.runtime.host.times import compute_ps


def test_the_report_is_of_the_busiest_device() -> None:
    with mt.host("ahbm", sips=4, algorithm="ring") as torch:

        def body(rank):
            x = torch.zeros(4096)
            for _ in range(1 + rank):
                torch.launch("busy", busy, x, 4096, 20)
            work = [torch.distributed.all_reduce(x, async_op=True), torch.distributed.barrier(async_op=True)]
            for one in work:
                one.wait()

        run(torch, body)
        report = torch.report()
        times = [compute_ps(w.known) / 1000 for w in torch.engine.launches if w.name == "busy"]
    assert len(times) == 10
    assert 4 * times[0] <= report["pe_exec_ns"] < 5 * times[0]
    assert report["pe_exec_ns"] + report["network_ns"] == pytest.approx(report["kernels_ns"])
    assert 4 * times[0] < report["bound_ns"] <= report["total_ns"]
