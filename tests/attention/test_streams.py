"""Order of kernels and transfers on GPUs, by a stand-in for NCCL that keeps to the letter of its contract.

A transfer may happen at any time between its start and the first ``wait`` at either end; the stand-in takes
the latest. Until then the receiver's buffer holds no numbers, and the sender's must live and not change.
"""

from __future__ import annotations

import threading
import weakref
from dataclasses import replace
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: the attention functions cannot run")

from tests.attention.attention_cases import single_device, tensors, with_gradients  # noqa: E402
from tests.patience import patience  # noqa: E402

from megatile.attention import communication, make_schedule, shard_sequence  # noqa: E402
from megatile.attention.block_kernels import KernelOptions  # noqa: E402
from megatile.attention.differentiable import attend_divided  # noqa: E402
from megatile.attention.ownership import Ownership  # noqa: E402
from megatile.attention.schedules import GatherRoutes, Mask  # noqa: E402


class Message:
    """One transfer: both ends must have been started; done by the first of them that waits."""

    def __init__(self):
        self.source = self.target = None
        self.lock = threading.Lock()
        self.ready = {"send": threading.Event(), "receive": threading.Event()}
        self.done = False

    def start(self, side, tensor):
        if side == "send":
            self.source, self.version = weakref.ref(tensor), tensor._version
        else:
            tensor.fill_(float("nan"))
            self.target = tensor
        self.ready[side].set()

    def wait(self):
        for event in self.ready.values():
            assert event.wait(patience(30.0)), "the other end was never started"
        with self.lock:
            if self.done:
                return
            source = self.source()
            assert source is not None, "what is sent was freed before anyone waited"
            assert source._version == self.version, "what is sent was changed before anyone waited"
            self.target.copy_(source)
            self.done = True


class Nccl:
    """Stands in for ``torch.distributed``; every rank is a thread."""

    group = SimpleNamespace(WORLD=None)
    ProcessGroup = object

    def __init__(self, ranks):
        self.ranks, self.here = ranks, threading.local()
        self.messages, self.counts, self.lock = {}, {}, threading.Lock()
        self.waits = 0

    def get_backend(self, group):
        return "nccl"

    def get_world_size(self, group):
        return self.ranks

    def get_global_rank(self, group, rank):
        return rank

    def isend(self):
        raise AssertionError("NCCL wants point-to-point messages in batches")

    def irecv(self):
        self.isend()

    def P2POp(self, op, tensor, peer, group):
        return ("send" if op == self.isend else "receive", tensor, peer)

    def batch_isend_irecv(self, operations):
        return [self._work([self._start(*operation) for operation in operations])]

    def all_to_all(self, incoming, outgoing, group, async_op):
        assert async_op
        started = []
        for peer in range(self.ranks):
            started.append(self._start("send", outgoing[peer], peer))
            started.append(self._start("receive", incoming[peer], peer))
        return self._work(started)

    def _start(self, side, tensor, peer):
        me = self.here.rank
        ends = (me, peer) if side == "send" else (peer, me)
        with self.lock:
            number = self.counts[side, ends] = self.counts.get((side, ends), 0) + 1
            message = self.messages.setdefault((ends, number), Message())
        message.start(side, tensor)
        return message

    def _work(self, messages):
        def wait():
            self.waits += 1
            for message in messages:
                message.wait()

        return SimpleNamespace(wait=wait)


def on_threads(ranks, function, nccl):
    results, errors = [None] * ranks, []

    def run(rank):
        nccl.here.rank = rank
        try:
            results[rank] = function(rank)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("name", "ranks"),
    [("ring", 3), ("zigzag", 4), ("striped", 3), ("direct", 4), ("hamilton", 3), ("hamilton", 4),
     ("hamilton:2x2", 4), ("hamilton:2", 5), ("ulysses", 2), ("ulysses:2+hamilton", 6),
     ("gathered zigzag", 4), ("gathered ring", 3)],
)  # fmt: skip
def test_transfers_that_happen_as_late_as_allowed_change_nothing(name, ranks, causal, monkeypatch):
    nccl = Nccl(ranks)
    monkeypatch.setattr(communication, "dist", nccl)
    length, schedule = 5 * ranks + 3, make_schedule(name.split()[-1], ranks)
    if name.startswith("gathered"):
        schedule = replace(schedule, routes=GatherRoutes(ranks))
    q, k, v, d_out = tensors(0, *[(1, length, h, 8) for h in (4, 2, 2, 4)])
    exact = with_gradients(
        lambda *x: single_device(*x, causal=causal), [x.double() for x in (q, k, v)], d_out.double()
    )

    def part(x, rank):
        return shard_sequence(x, schedule=schedule, causal=causal, rank=rank, ranks=ranks)

    local = tuple(part(q, rank).shape[1] for rank in range(ranks))
    mask = Mask.of(causal, (-1, -1))
    ownership = Ownership.of(schedule, mask, causal, False, (length,), (length,), local, local)
    options = KernelOptions(8**-0.5)

    def rank_work(rank):
        members = SimpleNamespace(rank=rank, size=ranks, group=object())
        inputs, d_part = [part(x, rank) for x in (q, k, v)], part(d_out, rank)
        return with_gradients(
            lambda *x: attend_divided(*x, members, ownership, options, None)[0], inputs, d_part
        )

    for rank, got in enumerate(on_threads(ranks, rank_work, nccl)):
        for found, whole in zip(got, exact, strict=True):
            torch.testing.assert_close(found.double(), part(whole, rank), rtol=0, atol=1e-5)
    assert nccl.waits > 0
    assert all(message.done for message in nccl.messages.values())


def test_the_stand_in_notices_buffers_that_are_freed_changed_or_read_early():
    nccl = Nccl(1)
    nccl.here.rank = 0
    for spoil in ("free", "change"):
        sent, received = torch.ones(3), torch.zeros(3)
        work = nccl.batch_isend_irecv([("receive", received, 0), ("send", sent, 0)])[0]
        assert received.isnan().all()
        if spoil == "free":
            del sent
        else:
            sent.add_(1)
        with pytest.raises(AssertionError, match="before anyone waited"):
            work.wait()
