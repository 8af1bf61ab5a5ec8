"""Work that goes on at the same time shares the machine: never longer than one after another, never free."""

from __future__ import annotations

import numpy as np
import pytest

import megatile as mt
from megatile.core.limits import TimeBudgetExceeded, time_limit
from megatile.runtime.host.engine import Engine
from megatile.runtime.host.times import compute_ps

SIZE = 1 << 20


def run(torch, body) -> dict[int, object]:
    found: dict[int, object] = {}

    def worker(rank: int) -> None:
        torch.accelerator.set_device_index(rank)
        torch.distributed.init_process_group()
        found[rank] = body(rank)

    torch.multiprocessing.spawn(worker, nprocs=torch.shape.devices)
    return found


def spans(torch, name: str) -> list[tuple[int, int]]:
    return [(w.submit_ps, w.end_ps) for w in torch.engine.launches if w.name == name]


@pytest.mark.parametrize("machine", ["ahbm", "dgx-h100"])
def test_two_collectives_share_time_and_links(machine: str) -> None:
    with mt.host(machine, algorithm="ring", data=False) as torch:
        dist = torch.distributed

        def alone(rank):
            x = torch.empty(16 * SIZE)
            dist.all_reduce(x)  # its queues are installed
            before = torch.clock_ps
            dist.all_reduce(x)
            return torch.clock_ps - before

        def both(rank):
            x, y = torch.empty(16 * SIZE), torch.empty(16 * SIZE)
            before = torch.clock_ps
            works = [dist.all_reduce(t, async_op=True) for t in (x, y)]
            for work in works:
                work.wait()
            return torch.clock_ps - before

        one = max(run(torch, alone).values())
        two = max(run(torch, both).values())
        first, second = spans(torch, "all_reduce")[-2:]
    assert first[0] == second[0]
    assert 1.3 * one < two <= 2.05 * one


def busy(x, count, steps, tl):
    """Arithmetic of the vector engine alone."""
    tile = tl.load(x, shape=(count,), dtype="f16")
    for _ in range(steps):
        tile = tile * 1.0
    tl.store(x, tile)


def test_a_collective_beside_a_kernel_on_other_engines() -> None:
    with mt.host("ahbm", algorithm="ring") as torch:
        dist = torch.distributed

        def body(rank):
            x, y = torch.empty(SIZE).fill_(rank), torch.zeros(4096)
            torch.launch("busy", busy, y, 4096, 500)
            dist.all_reduce(x)
            begin = torch.clock_ps
            dist.all_reduce(x)
            one = torch.clock_ps - begin
            begin = torch.clock_ps
            torch.launch("busy", busy, y, 4096, 500)
            other = torch.clock_ps - begin
            begin = torch.clock_ps
            work = dist.all_reduce(x, async_op=True)
            torch.launch("busy", busy, y, 4096, 500)
            work.wait()
            both = torch.clock_ps - begin
            return one, other, both, x.numpy()[0]

        for one, other, both, value in run(torch, body).values():
            assert max(one, other) <= both < 0.9 * (one + other)
            assert value == 1 * 2 * 2 * 2 / 2  # 0 + 1, then doubled twice


def test_launches_of_one_device_take_turns() -> None:
    with mt.host("ahbm") as torch:
        x, y = torch.zeros(4096), torch.zeros(4096)
        made = torch.clock_ps
        assert made == 2 * torch.engine.control_ps(), "page tables learn of both by a message"
        one = torch.launch("busy", busy, x, 4096, 5, _defer_wait=True)
        two = torch.launch("busy", busy, y, 4096, 5, _defer_wait=True)
        assert torch.clock_ps == made
        assert [one.state, two.state] == ["submitted", "submitted"]
        torch.accelerator.synchronize()
        assert two.submit_ps == one.end_ps
        assert torch.clock_ps == two.end_ps


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


def test_the_same_again_takes_the_same_time() -> None:
    def once() -> float:
        with mt.host("ahbm", algorithm="ring", sips=4) as torch:

            def body(rank):
                x = torch.tensor(np.ones(100 + rank), dtype="f32")
                y = torch.zeros(512)
                for _ in range(3):
                    work = torch.distributed.all_reduce(y, async_op=True)
                    torch.launch("busy", busy, x.to("f16"), 100, 2 + rank)
                    work.wait()

            run(torch, body)
            return torch.time_ns

    assert once() == once()


def test_the_switch_prints_messages_at_the_time_of_the_machine(monkeypatch, capfd) -> None:
    monkeypatch.setenv("MEGATILE_TRACE", "comm")
    with mt.host("ahbm", "ccl.yaml", algorithm="ring_allreduce_tcm") as torch:
        run(torch, lambda rank: [torch.distributed.all_reduce(torch.zeros(8)) for _ in range(2)])
        launches = [w for w in torch.engine.launches if w.plan]
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 8, "two ranks, a block of the first and one of the second phase, twice"
    assert "sip0/cube0/pe0 -> sip1/cube0/pe0 8 B, there at " in lines[0]
    assert "ipcq.W #0" in lines[0]
    assert "ring_allreduce.py" in lines[0]
    first, second = (float(line.split()[1]) for line in (lines[0], lines[4]))
    assert second - first == pytest.approx((launches[1].submit_ps - launches[0].submit_ps) / 1e6, rel=1e-2)


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


def test_a_rank_that_polls_lets_time_pass_for_those_that_wait() -> None:
    """Rank 1 joins after its kernel; rank 0 asks whether that is done, or just lets others go on."""
    with mt.host("ahbm", algorithm="ring") as torch:
        seen: list[int] = []

        def body(rank):
            x, y = torch.ones(64), torch.zeros(4096)
            if rank:
                torch.launch("busy", busy, y, 4096, 50)
                seen.append(torch.clock_ps)
                torch.distributed.all_reduce(x)
            else:
                while not seen:
                    torch.distributed.cooperative_yield()
                work = torch.distributed.all_reduce(x, async_op=True)
                while not work.is_completed():
                    pass
            return torch.clock_ps, x.numpy()[0]

        found = run(torch, body)
    assert [value for _, value in found.values()] == [2, 2]
    assert found[0][0] >= found[1][0] > seen[0] > 0


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
