"""Plans on real processes: equal to execution with NumPy, and failures that name the unit at fault."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
from tests.patience import patience
from tests.runtime.launch_cases import mixed_plan, waiting_plan

import megatile as mt
import megatile.language as T
from megatile.core.expr import ONE, unit
from megatile.plan.build import PlanBuilder
from megatile.plan.execute import execute
from megatile.plan.model import Level, PlanError, Signal, Stream, Wait
from megatile.runtime.errors import LaunchError, MissingTorchError
from megatile.runtime.launch import launch

RNG = np.random.default_rng(0)


def test_a_plan_on_processes_equals_its_execution():
    pytest.importorskip("torch")
    plan = mixed_plan(3)
    inputs = {"x": RNG.normal(size=(3, 4, 6)).astype("f4"), "n": np.array([[0], [2], [3]])}
    expected, found = execute(plan, inputs), launch(plan, inputs, timeout=patience(60))
    assert set(found) == set(expected)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_allclose(
            found[name].astype("f4"), array.astype("f4"), rtol=2e-6, atol=1e-6, err_msg=name
        )
    assert found.choices == expected.choices
    assert found.seconds > 0


def test_a_ring_all_reduce_of_the_library_runs_on_four_processes():
    pytest.importorskip("torch")
    from megatile.collectives.planner import collective

    plan = collective("all_reduce", machine="dgx-h100", nbytes=4096, ranks=4, algorithm="ring")
    (name,) = [t.name for t in plan.tiles if t.role in ("input", "inout")]
    x = RNG.normal(size=(4, *plan.tile(name).shape)).astype("f4")
    found, expected = launch(plan, inputs={name: x}, timeout=patience(60)), execute(plan, {name: x})
    for tile, array in expected.items():
        np.testing.assert_array_equal(found[tile], array)
        np.testing.assert_allclose(array, np.broadcast_to(x.sum(0), array.shape), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["hamilton", "ulysses:2+zigzag"])
def test_attention_forward_and_backward_runs_on_processes(name):
    pytest.importorskip("torch")
    from megatile.attention.plans import Divided, Problem, attention_plan
    from megatile.attention.schedules import make_schedule

    schedule, problem = make_schedule(name, 4), Problem(29, 4, 8, 2, causal=True, dtype="f32")
    plan, divided = attention_plan(schedule, problem, backward=True), Divided(schedule, problem)
    q, d_out = RNG.normal(size=(2, 1, 29, 4, 8))
    k, v = RNG.normal(size=(2, 1, 29, 2, 8))
    inputs = divided.inputs(q, k, v, d_out)
    found, expected = launch(plan, inputs=inputs, timeout=patience(60)), execute(plan, inputs)
    tensors = [(*divided.outputs(r), *divided.gradients(r)) for r in (found, expected)]
    for ours, theirs in zip(*tensors, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=5e-6)


@T.program
def product(A: T.Tensor((32, 32), "f32"), B: T.Tensor((32, 32), "f32"), C: T.Tensor((32, 32), "f32")):
    """Two devices have a part of K each; their blocks meet before the sum."""
    with T.Kernel(device=2, block=(2, 2)) as (bx, by):
        with T.Scale("device"):
            a, b, c = T.view(A, layout=T.FullCol), T.view(B, layout=T.FullRow), T.view(C, layout=T.Replica)
        with T.Scale("block"):
            c_tile = T.alloc((16, 16), "f32")
            a_tile, b_tile = T.alloc((16, 16), "f32", level="l1"), T.alloc((16, 16), "f32", level="l1")
            T.copy(a_tile, a[by * 16, 0])
            T.copy(b_tile, b[0, bx * 16])
            T.gemm(a_tile, b_tile, c_tile, clear_accum=True)
            T.barrier()
            T.copy(c[by * 16, bx * 16], c_tile)
        with T.Scale("device"):
            T.allreduce(c)


def test_blocks_run_in_the_process_of_their_unit():
    """Flags between levels, tiles of blocks, a barrier of blocks, and a collective of units."""
    pytest.importorskip("torch")
    arrays = [RNG.normal(size=(32, 32)).astype("f4") for _ in range(3)]
    low = mt.lower(product, *arrays, machine="dgx-h100")
    inputs = low.scatter(arrays)
    found, expected = launch(low.plan, inputs, timeout=60), execute(low.plan, inputs)
    assert low.plan.levels
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-5, err_msg=name)
    np.testing.assert_allclose(found["C"][1], arrays[0] @ arrays[1], rtol=1e-4, atol=1e-4)


@T.program
def neighbours(y: T.Tensor((8,), "f32")):
    """A block reads what another one left in its own tile, also when that one has ended."""
    with T.Kernel(device=2, block=4), T.Scale("device"):
        mine = T.view(y, layout=T.Shard(0))
        with T.Scale("block") as (b, n):
            own, got = T.alloc((1,), "f32", level="l1"), T.alloc((1,), "f32", level="l1")
            T.fill(own, b + 1)
            T.barrier()
            T.copy(got, own, src=(b + 1) % n)
            T.copy(mine[b : b + 1], got)


def test_blocks_read_tiles_of_their_neighbours():
    pytest.importorskip("torch")
    y = np.zeros(8, "f4")
    low = mt.lower(neighbours, y, machine="dgx-h100")
    inputs = low.scatter([y])
    found = launch(low.plan, inputs, timeout=60)
    np.testing.assert_array_equal(found["y"], [[2, 3, 4, 1]] * 2)
    np.testing.assert_array_equal(found["y"], execute(low.plan, inputs)["y"])


def test_blocks_wait_for_signals_of_other_processes():
    pytest.importorskip("torch")
    b = PlanBuilder("signals", scale="device", units=2)
    x = b.tile("x", (1,), "f32", memory="l2", role="inout")
    ready, done = b.flag("ready"), b.flag("done")
    b.compute("add", x, [x, x])
    b.signal(ready, to=(unit + 1) % 2)
    b.wait(done, 2)
    plan = b.finish()
    block = Level("block", "block", (2,), parent="device")
    body = (Wait("ready", ONE), Signal("done", unit // 2))
    plan = replace(plan, levels=(block,), streams=(*plan.streams, Stream(((0, 4, 1),), body, "block")))
    found = launch(plan, {"x": np.ones((2, 1))}, timeout=60)
    np.testing.assert_array_equal(found["x"], [[2], [2]])


def reaching_plan(units=4):
    """Puts, gets, a tile that pairs of units share, and flags that order them."""
    b = PlanBuilder("reaching", scale="device", units=units)
    x = b.tile("x", (3, 5), "f32", memory="l2", role="input")
    put = b.tile("put", (3, 5), "f32", memory="l2", role="output")
    got = b.tile("got", (5,), "bf16", memory="l2", role="output")
    pair = b.tile("pair", (2, 5), "f32", memory="l2", role="output", owner=unit // 2, owners=2)
    ready, done = b.flag("ready"), b.flag("done")
    b.compute("add", put.at((unit + 1) % units), [x, x])
    b.signal(ready, to=(unit + 1) % units)
    b.wait(ready, 1)
    b.signal(done, to=(unit + 1) % units)
    b.wait(done, 1)
    b.copy(got, put[2].at((unit + units - 1) % units))
    b.copy(pair[unit % 2], x[0])
    return b.finish()


def test_puts_gets_and_shared_tiles_work_between_processes():
    pytest.importorskip("torch")
    plan = reaching_plan()
    x = RNG.normal(size=(4, 3, 5)).astype("f4")
    found, expected = launch(plan, inputs={"x": x}, timeout=patience(60), repeat=2), execute(plan, {"x": x})
    np.testing.assert_array_equal(expected["put"], np.roll(2 * x, 1, axis=0))
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
    assert found["pair"].shape == (2, 2, 5)


def test_wrong_arguments_are_refused_before_anything_starts(monkeypatch):
    plan = waiting_plan()
    with pytest.raises(LaunchError, match="for 3 units, not 4 processes"):
        launch(plan, 4, {"x": np.zeros((3, 1))})
    with pytest.raises(
        LaunchError, match=r"^nproc is a ndarray, not a number of processes \(try: launch\(plan, inputs\)"
    ):
        launch(plan, np.zeros((3, 1)))
    with pytest.raises(PlanError, match=r"shape \(2, 1\), not \(3, 1\)"):
        launch(plan, inputs={"x": np.zeros((2, 1))})
    with pytest.raises(PlanError, match="input 'x' is missing"):
        launch(plan)
    with pytest.raises(PlanError, match="'z' is not an input"):
        launch(plan, inputs={"z": 1})
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingTorchError, match="torch"):
        launch(plan, inputs={"x": np.zeros((3, 1))})


def test_every_operation_has_a_torch_rule():
    pytest.importorskip("torch")
    from megatile.core.operations import OPERATIONS
    from megatile.runtime.torch_rules import RULES

    assert sorted(set(OPERATIONS) - set(RULES)) == []
