"""Attention commands are timed one by one, by the extents of their queries and keys."""

import pytest

from megatile.attention.kernel_times import AttentionKernels, seconds_of
from megatile.attention.plans import Divided, Problem, attention_plan
from megatile.attention.schedules import make_schedule
from megatile.hda import machine
from megatile.plan import model as pm
from megatile.sim import simulate
from megatile.timing.attention_kernels import AttentionRule, KernelTimes
from megatile.timing.rules import Command


@pytest.fixture(scope="module")
def hda():
    return machine("mi300x-8")


@pytest.fixture(scope="module")
def times(hda):
    return KernelTimes.of(hda, "bf16")


def traced(hda, schedule, problem, ranks=8, backward=False):
    """The attention commands of every unit, in order: their names and times."""
    divided = Divided(make_schedule(schedule, ranks), problem)
    plan = attention_plan(divided.schedule, problem, backward=backward)
    kernels = AttentionKernels.of(hda, divided)
    trace = simulate(plan, machine=hda, timing=kernels, capacity=False).trace
    found = {unit: [] for unit in trace.units}
    for event in trace:
        if event.engine.startswith("tensor"):
            found[event.unit].append((event.operation, event.duration_ps))
    return divided, found


def command(operation, rows, columns, heads=32, dim=128, pairs=None, begins=True):
    extents = (1, rows, heads, dim), (2, 1, columns, heads, dim), (1, rows, heads, dim + 2)
    flops = 4 * dim * heads * (rows * columns if pairs is None else pairs)
    moved = 2 * 2 * columns * heads * dim + begins * rows * heads * (2 * dim + 4 * (dim + 2))
    return Command(operation, flops, "bf16", None, 0.0, 0, nbytes=moved, operands=extents)


def ps(seconds):
    return pytest.approx(seconds * 1e12, abs=2)


def test_a_command_takes_what_its_kernel_does(times):
    rule = AttentionRule(times)
    alone = times.attention(1000, 4096, 32, 128)
    assert rule(command("attention", 1000, 4096)) == ps(alone)
    assert rule(command("attention_add", 1000, 4096)) == ps(alone + times.merge(1000, 32, 128, 2))
    cut = times.columns(1000, 1000, 500_500)
    assert cut == 500.5 + 64
    assert rule(command("attention", 1000, 1000, pairs=500_500)) == ps(times.attention(1000, cut, 32, 128))


def test_parts_of_one_kernel_add_up_to_it(times):
    rule = AttentionRule(times)
    parts = [rule(command("attention_add", 1000, 512, begins=number == 0)) for number in range(7)]
    assert sum(parts) == pytest.approx(rule(command("attention_add", 1000, 7 * 512)), abs=8)
    assert parts[0] > parts[1] == parts[6]


def test_units_held_by_messages_slow_a_command_for_its_share_of_the_time(times):
    one = command("attention", 128 * 304, 4096, heads=1)
    alone, half, whole = (AttentionRule(times, share, 56)(one) for share in (0.0, 0.5, 1.0))
    assert whole - times.launch * 1e12 == pytest.approx(2 * (alone - times.launch * 1e12), abs=2)
    assert half == pytest.approx((alone + whole) / 2, abs=2)


def test_without_extents_a_bound_from_below_is_given(times):
    rule, known = AttentionRule(times), command("attention", 1000, 4096)
    unknown = Command("attention", known.flops, "bf16", None, 0.0, 0)
    assert 0 < rule(unknown) < rule(known)


@pytest.mark.parametrize("name", ["ring", "zigzag", "striped", "hamilton"])
@pytest.mark.parametrize("causal", [False, True])
def test_commands_of_a_rank_add_up_to_its_kernels(hda, times, name, causal):
    divided, found = traced(hda, name, Problem(8192, causal=causal))
    division = divided.division
    for rank, commands in enumerate(found.values()):
        calls = [call for step in range(division.routes.exchanges + 1) for call in division.calls(step, rank)]
        whole = seconds_of(times, calls, divided.problem, divided.problem.heads)
        assert sum(time for _, time in commands) == pytest.approx(whole * 1e12, rel=1e-6)
        assert commands[0][0] == "attention"
        assert {name for name, _ in commands[1:]} <= {"attention_add"}


def test_commands_with_equal_work_and_other_shapes_differ(hda, times):
    """Zig-zag: all queries over half of the keys, or half of the queries over all keys, by one statement."""
    _, found = traced(hda, "zigzag", Problem(8192, causal=True))
    kinds = {time for commands in found.values() for _, time in commands[1:]}
    width, merge = 32, lambda rows: times.merge(rows, 32, 128, 2)
    expected = {times.attention(r, c, width, 128) + merge(r) for r, c in ((1024, 512), (512, 1024))}
    assert sorted(kinds) == [ps(seconds) for seconds in sorted(expected)]


def test_a_backward_pass_is_timed_by_command(hda, times):
    _, found = traced(hda, "ring", Problem(4096), ranks=2, backward=True)
    commands = next(iter(found.values()))
    groups = times.groups(2048, 2048, 32, 128)
    of_kv = times.launch + 2 * times.groups(2048, 2048 + times.kernels.ramp, 32, 128)
    of_q = groups / 2 + times.merge(2048, 32, 128, 2, form="fused")
    assert [time for name, time in commands if name == "attention_grad_kv_add"] == [ps(of_kv)] * 2
    assert [time for name, time in commands if name == "attention_grad_q_add"] == [ps(of_q)] * 2


@pytest.mark.parametrize("name", ["ring", "zigzag", "striped", "hamilton", "direct", "ulysses:2+zigzag"])
@pytest.mark.parametrize(
    "problem", [Problem(999, causal=True), Problem(4096, 8, 64, 2, causal=True, window=(700, 0))]
)
def test_flops_and_bytes_of_a_statement_say_its_extents(name, problem):
    """What the simulator keeps answers by."""
    plan = attention_plan(make_schedule(name, 8), problem, backward=True)
    every = list(pm.statements(plan.streams[0].body))
    indices = [statement.index for statement in every if isinstance(statement, pm.Loop)]
    timed = [s for s in every if isinstance(s, pm.Compute) and s.engine == "tensor"]
    assert len(timed) > 3
    for statement in timed:
        known = {}
        for unit in range(8):
            for step in range(1, 8):
                values = {"unit": unit, **dict.fromkeys(indices, step)}
                work = tuple(int(e.evaluate(values)) for e in (statement.work.flops, statement.work.bytes))
                shapes = [tuple(int(e.evaluate(values)) for e in r.shape) for r in statement.reads[:2]]
                if work[0]:
                    assert known.setdefault(work, shapes) == shapes
