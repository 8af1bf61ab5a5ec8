"""Work that goes on at the same time shares the machine: never longer than one after another, never free."""

from __future__ import annotations

import numpy as np
import pytest
from tests.runtime.host.overlap_cases import busy, run

import megatile as mt

SIZE = 1 << 20


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
