"""The engine's order of events: chunks travel while kernels work."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: the attention functions cannot run")

from megatile.attention.backward import attention_backward  # noqa: E402
from megatile.attention.block_kernels import BackwardInputs, CpuFlash, KernelOptions  # noqa: E402
from megatile.attention.engine import AttentionEngine  # noqa: E402
from megatile.attention.heads import HeadExchange, exchange_heads  # noqa: E402
from megatile.attention.schedules import Mask, division_for, make_schedule  # noqa: E402


class Recorder(CpuFlash):
    """A kernel and a communicator in one that write down what happens; every peer sends ones."""

    def __init__(self):
        self.events = []

    def forward(self, *arguments):
        self.events.append("kernel")
        return super().forward(*arguments)

    def backward(self, *arguments):
        self.events.append("kernel")
        return super().backward(*arguments)

    def exchange(self, sends, sizes, like, doing):
        self.events.append(f"start {'f32' if like.dtype == torch.float32 else 'kv'}")
        recorder, received = self, {peer: like.new_ones(size) for peer, size in sizes.items()}

        class Pending:
            def wait(self):
                recorder.events.append("wait")
                return received

        return Pending()


def events(schedule, backward):
    routes = make_schedule(schedule, 3).routes
    pieces = make_schedule(schedule, 3).layout(False).pieces([12])
    division = division_for(routes, pieces, pieces, Mask(), [12], [12])
    recorder = Recorder()
    engine = AttentionEngine(division, 0, recorder, recorder, KernelOptions(1.0))
    q, (k, v) = torch.randn(1, 4, 1, 8).bfloat16(), torch.randn(2, 4, 1, 1, 8).bfloat16()
    out, lse, last = engine.forward(q, k, v)
    if backward:
        recorder.events.clear()
        attention_backward(engine, BackwardInputs(out, q, k, v, out, lse), last)
    return recorder.events


@pytest.mark.parametrize("schedule", ["ring", "hamilton", "direct"])
def test_forward_starts_an_exchange_before_the_kernels_it_hides_behind(schedule):
    assert events(schedule, False) == ["start kv", "kernel", "wait", "start kv", "kernel", "wait", "kernel"]


@pytest.mark.parametrize("schedule", ["ring", "hamilton"])
def test_backward_moves_kv_ahead_and_gradients_one_step_behind(schedule):
    assert events(schedule, True) == [
        "start kv", "kernel", "start f32", "wait",  # step 2: KV of step 1 comes while its kernels work
        "kernel", "wait", "start f32",  # step 1: gradients of step 2 arrive and go on
        "kernel", "wait",  # step 0: the rank's own KV never left
    ]  # fmt: skip


def test_backward_without_relaying_sends_gradients_straight_home():
    assert events("direct", True) == [
        "start kv", "kernel", "wait",
        "start kv", "kernel", "start f32", "wait",
        "kernel", "wait", "start f32", "wait",
    ]  # fmt: skip


def test_ulysses_has_q_k_and_v_under_way_before_it_waits():
    recorder = Recorder()
    exchange = HeadExchange(recorder, 0, (3, 3))
    inputs = [torch.randn(1, 3, heads, 8).bfloat16().requires_grad_() for heads in (4, 2, 2)]
    results = exchange_heads((exchange,) * 3, inputs, (4, 2, 2), to_heads=True)
    assert [tuple(x.shape) for x in results] == [(1, 6, 2, 8), (1, 6, 1, 8), (1, 6, 1, 8)]
    assert recorder.events == ["start kv"] * 3 + ["wait"] * 3
    recorder.events.clear()
    grads = torch.autograd.grad(results, inputs, [torch.ones_like(x) for x in results])
    assert [x.shape for x in grads] == [x.shape for x in inputs]
    assert recorder.events == ["start kv"] * 3 + ["wait"] * 3
