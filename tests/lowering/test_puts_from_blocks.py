"""Blocks that put, add and signal into the memory of other devices: meaning, mistakes, Plans and time."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.lowering.machines import user_machine

import megatile as mt
import megatile.language as T
from megatile.hda.model import Unit
from megatile.ir.parser import parse
from megatile.language.tile.errors import ProgramError
from megatile.plan import model as pm
from megatile.targets.common.errors import CompileError
from megatile.targets.interpret.errors import DataRaceError, DeadlockError

DEVICES, BLOCKS, N = 4, 3, 16


def passed_on(waits: int = 1, first: bool = False) -> Any:
    """Every block puts a row into the next device, and tells its block of that number (``first``: too early),
    which waits for ``waits`` signals."""

    @T.program
    def kernel(X: T.Tensor((DEVICES * BLOCKS, N), "f32"), Y: T.Tensor((DEVICES * BLOCKS, N), "f32")):
        with T.Kernel(device=DEVICES, block=BLOCKS, threads=32) as bx, T.Scale("device") as (r, n):
            x, y = T.view(X, layout=T.FullRow), T.view(Y, layout=T.FullRow)
            inbox = T.alloc((BLOCKS, N), "f32", level="l2")
            told = T.alloc((BLOCKS,), "i32", level="l2")
            with T.Scale("block"):
                row = T.alloc((1, N), "f32")
                T.copy(row, x[bx, 0])
                if first:
                    T.signal(told[bx], dst=(r + 1) % n, scale="device")
                T.copy(inbox[bx, 0], row, dst=(r + 1) % n, scale="device")
                if not first:
                    T.signal(told[bx], dst=(r + 1) % n, scale="device")
                T.wait(told[bx], waits, scale="device")
                T.copy(row, inbox[bx, 0])
                T.copy(y[bx, 0], row)

    return kernel


def added() -> Any:
    """Every block of every device adds to one tile of the first device, and is counted on the last."""

    @T.program
    def kernel(X: T.Tensor((DEVICES * BLOCKS, N), "f32"), S: T.Tensor((DEVICES, N), "f32")):
        with T.Kernel(device=DEVICES, block=BLOCKS, threads=32) as bx, T.Scale("device") as (_r, n):
            x, s = T.view(X, layout=T.FullRow), T.view(S, layout=T.FullRow)
            total = T.alloc((1, N), "f32", level="l2")
            count = T.alloc((1,), "i32", level="l2")
            T.clear(total)
            T.clear(count)
            T.barrier()
            with T.Scale("block"):
                row = T.alloc((1, N), "f32")
                T.copy(row, x[bx, 0])
                T.atomic_add(total[0, 0], row, dst=0, scale="device")
                T.atomic_add(count[0], 1, dst=n - 1, scale="device")
            T.barrier()
            T.copy(s, total)
            for j in T.Parallel(N):
                s[0, j] = s[0, j] + T.cast(count[0], "f32")

    return kernel


def rows() -> np.ndarray:
    return np.arange(DEVICES * BLOCKS * N, dtype="f4").reshape(-1, N)


@pytest.mark.parametrize("machine", ["dgx-h100", "mi300x-8"])
def test_rows_passed_on(machine: str) -> None:
    x, y = rows(), np.zeros_like(rows())
    wanted = np.roll(x, BLOCKS, axis=0)
    mt.run(passed_on(), x, y, machine=machine)
    np.testing.assert_array_equal(y, wanted)
    result = mt.simulate(passed_on(), x, np.zeros_like(y), machine=machine)
    np.testing.assert_array_equal(result.outputs["Y"], wanted)


@pytest.mark.parametrize(("schedule", "seed"), [("random", 1), ("random", 7), ("adversarial", 0)])
def test_whenever_puts_arrive(schedule: str, seed: int) -> None:
    x, y = rows(), np.zeros_like(rows())
    mt.run(passed_on(), x, y, schedule=schedule, seed=seed)
    np.testing.assert_array_equal(y, np.roll(x, BLOCKS, axis=0))


def test_sums_by_atomics() -> None:
    x, s = rows(), np.zeros((DEVICES, N), "f4")
    wanted = np.zeros_like(s)
    wanted[0] = x.sum(axis=0)
    wanted[-1] += DEVICES * BLOCKS
    mt.run(added(), x, s)
    np.testing.assert_array_equal(s, wanted)
    result = mt.simulate(added(), x, np.zeros_like(s), machine="dgx-h100")
    np.testing.assert_array_equal(result.outputs["S"], wanted)


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        ({"waits": 0}, r"data race on 'inbox': read by device \d, block \d here and written by a put of"),
        ({"first": True}, "data race on 'inbox'"),
    ],
)
def test_what_nothing_orders_is_a_race(mistake: dict[str, Any], words: str) -> None:
    x = rows()
    with pytest.raises(DataRaceError, match=words):
        mt.run(passed_on(**mistake), x, np.zeros_like(x))
    with pytest.raises(mt.MegatileError, match="race on tile 'inbox'"):
        mt.execute(passed_on(**mistake), x, np.zeros_like(x), machine="dgx-h100")


@pytest.mark.parametrize("fence", [None, "block", "device"])
def test_a_signal_to_a_third_device_tells_of_a_put_after_a_fence(fence: str | None) -> None:
    @T.program
    def kernel(X: T.Tensor((3, N), "f32")):
        with T.Kernel(device=3, block=1, threads=32), T.Scale("device") as (r, _n):
            x = T.view(X, layout=T.FullRow)
            inbox = T.alloc((1, N), "f32", level="l2")
            told = T.alloc((1,), "i32", level="l2")
            with T.Scale("block"):
                row = T.alloc((1, N), "f32")
                T.fill(row, 1.0)
                if r == 0:
                    T.copy(inbox[0, 0], row, dst=1, scale="device")
                    if fence is not None:
                        T.fence(fence)
                    T.signal(told[0], dst=2, scale="device")
                if r == 2:
                    T.wait(told[0], 1)
                    T.copy(row, inbox[0, 0], src=1, scale="device")
                    T.copy(x[0, 0], row)

    x = np.zeros((3, N), "f4")
    if fence == "device":
        mt.run(kernel, x, schedule="adversarial")
        assert x[2].tolist() == [1.0] * N
        got = mt.execute(kernel, np.zeros_like(x), machine="dgx-h100")
        np.testing.assert_array_equal(got["X"], x)
    else:  # a fence of blocks says nothing of puts to devices
        with pytest.raises(DataRaceError, match="data race on 'inbox'"):
            mt.run(kernel, x)


def test_a_signal_that_never_comes() -> None:
    x = rows()
    with pytest.raises(DeadlockError, match=r"waits at T.wait"):
        mt.run(passed_on(waits=2), x, np.zeros_like(x))
    with pytest.raises(mt.MegatileError, match="deadlock"):
        mt.execute(passed_on(waits=2), x, np.zeros_like(x), machine="dgx-h100")


def wrong(statement: str) -> Any:
    @T.program
    def kernel(X: T.Tensor((4, N), "f32")):
        with T.Kernel(device=4, block=1, threads=32), T.Scale("device") as (_r, n):
            x = T.view(X, layout=T.FullRow)
            flag = T.alloc((1,), "i32", level="l2")
            with T.Scale("block"):
                row = T.alloc((1, N), "f32")
                mine = T.alloc((1,), "i32")
                T.clear(row)
                if statement == "scale":
                    T.copy(x[0, 0], row, dst=1, scale="devise")
                if statement == "missing":
                    T.copy(x[0, 0], row, dst=1)
                if statement == "node":
                    T.copy(x[0, 0], row, dst=1, scale="node")
                if statement == "rank":
                    T.copy(x[0, 0], row, scale="device")
                if statement == "flag":
                    T.signal(mine[0], dst=1, scale="device")
                if statement == "wait":
                    T.wait(mine[0], 1, scale="device")
                if statement == "fence":
                    T.fence("blok")
                if statement == "lanes":
                    for i in T.Parallel(N):
                        T.atomic_add(x[0, i], 1.0, dst=1, scale="device")
                if statement == "far":
                    T.signal(flag[0], dst=n, scale="device")

    return kernel


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("scale", "there is no scale 'devise'.*did you mean 'device'"),
        ("missing", r"reaches into 'x', which is not one tile per 'block'.*scale=\"device\" reaches"),
        ("node", "is not inside a region of 'node'"),
        ("rank", "with scale= and no rank"),
        ("flag", "which is not one tile per 'device'"),
        ("wait", "which is one tile per 'block'"),
        ("fence", "did you mean 'block'"),
        ("lanes", "with dst= inside T.Parallel"),
        ("far", "there is no device 4: ranks go from 0 to 3"),
    ],
)
def test_mistakes_are_named(statement: str, words: str) -> None:
    with pytest.raises(mt.MegatileError, match=re.compile(words, re.DOTALL)) as caught:
        mt.run(wrong(statement), np.zeros((4, N), "f4"))
    assert statement == "far" or isinstance(caught.value, ProgramError)


def test_the_text_reads_back() -> None:
    for program in (passed_on().build(mt.machine("dgx-h100")), added().build(mt.machine("dgx-h100"))):
        assert 'scale="device"' in str(program)
        assert parse(str(program)) == program


@pytest.mark.parametrize("way", [1, 2, "processes"])
def test_compiled(way: int | str) -> None:
    for program, out in ((passed_on(), rows()), (added(), np.zeros((DEVICES, N), "f4"))):
        x, wanted, got = rows(), np.zeros_like(out), np.zeros_like(out)
        mt.run(program, x, wanted)
        if isinstance(way, int):
            mt.compile(program, machine="dgx-h100", threads=way)(x, got)
        else:
            mt.launch(program, x, got, machine="dgx-h100", processes=3)
        np.testing.assert_array_equal(got, wanted)


def test_compiled_blocks_that_wait_for_ever() -> None:
    with pytest.raises(DeadlockError, match="4 units wait for each other"):
        mt.compile(passed_on(waits=2), machine="dgx-h100", threads=2)(rows(), rows())


def test_the_cuda_target_says_that_it_cannot() -> None:
    with pytest.raises(CompileError, match="runs on 4 units of scale 'device'"):
        mt.compile(passed_on(), target="cuda", machine="dgx-h100")


def one_put(distance: int, elements: int) -> Any:
    @T.program
    def kernel(X: T.Tensor((16, elements), "f32")):
        with T.Kernel(device=16, block=1, threads=32), T.Scale("device") as (r, _n):
            inbox = T.alloc((1, elements), "f32", level="l2")
            with T.Scale("block"):
                tile = T.alloc((1, elements), "f32", level="l1")
                T.clear(tile)
                if r == 0:
                    T.copy(inbox[0, 0], tile, dst=distance, scale="device")

    return kernel


def test_puts_take_the_links_between_devices() -> None:
    """A put to a device of another node goes over the slower network between nodes."""
    size = 40_000
    times = {d: mt.simulate(one_put(d, size), machine="h100-cluster").time_ns for d in (0, 1, 8)}
    hda = mt.machine("h100-cluster")
    devices = [Unit("device", at) for at in (0, 1, 8)]
    slowest = {
        8: min(leg.network.bandwidth for leg in hda.route(devices[0], devices[2]).legs),
        1: min(leg.network.bandwidth for leg in hda.route(devices[0], devices[1]).legs),
    }
    assert times[0] < times[1] < times[8]
    for d in (1, 8):
        assert times[d] > size * 4 / float(slowest[d]) * 1e9


def shifted(by: int, impl: str | None = None, devices: int = 16) -> Any:
    """Every block puts a row into the device ``by`` further on, and reads what came to its own."""

    @T.program
    def kernel(X: T.Tensor((devices * 2, 1024), "f32"), Y: T.Tensor((devices * 2, 1024), "f32")):
        with T.Kernel(device=devices, block=2, threads=128) as b, T.Scale("device") as (r, n):
            x, y = T.view(X, layout=T.FullRow), T.view(Y, layout=T.FullRow)
            inbox = T.alloc((2, 1024), "f32", level="l2")
            told = T.alloc((2,), "i32", level="l2")
            with T.Scale("block"):
                row = T.alloc((1, 1024), "f32", level="l1")
                T.copy(row, x[b, 0])
                T.copy(inbox[b, 0], row, dst=(r + by) % n, scale="device", impl=impl)
                T.signal(told[b], dst=(r + by) % n, scale="device")
                T.wait(told[b], 1, scale="device")
                T.copy(row, inbox[b, 0])
                T.copy(y[b, 0], row)

    return kernel


@pytest.mark.parametrize(
    ("by", "devices", "expected"), [(8, 16, {"nic"}), (1, 16, {"nic", "lsu"}), (1, 8, {"lsu"})]
)
def test_puts_to_other_nodes_go_by_the_network_card(by: int, devices: int, expected: set[str]) -> None:
    """Where some of the units have their peer in the same node, those put by themselves."""
    low = mt.lower(shifted(by, devices=devices), machine="h100-cluster")
    copies = [s for body in low.plan.bodies for s in body if isinstance(s, pm.Compute)]
    assert {s.by for s in copies if s.write.at is not None} == expected
    x = np.arange(devices * 2 * 1024, dtype=np.float32).reshape(-1, 1024)
    out = mt.execute(low, x, np.zeros_like(x))["Y"]
    np.testing.assert_array_equal(out, np.roll(x, 2 * by, axis=0))
    bounds = mt.price(low)
    assert bounds.lower_ps <= mt.simulate(low, record=False).time_ps <= bounds.upper_ps


def test_lanes_do_not_put_into_other_nodes() -> None:
    mt.lower(shifted(8, "nic"), machine="h100-cluster")
    mt.lower(shifted(1, "nic"), machine="h100-cluster")
    for by, impl in ((8, "lsu"), (1, "lsu"), (8, "tma")):
        with pytest.raises(mt.MegatileError, match=f"'{impl}' cannot do this copy.*impl= may be nic"):
            mt.lower(shifted(by, impl), machine="h100-cluster")


def example(name: str) -> Any:
    path = Path(__file__).parents[2] / "examples" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    return module


@pytest.mark.parametrize("machine", ["dgx-h100", "h100-cluster", "mi300x-8", "four-cards"])
@pytest.mark.parametrize(
    ("name", "function"),
    [("44_allgather_gemm_tiles", "allgather_gemm"), ("45_gemm_reduce_scatter_tiles", "gemm_reduce_scatter")],
)
def test_products_tile_by_tile(name: str, function: str, machine: str, tmp_path: Path) -> None:
    prog = getattr(example(name), function)(128, 128, 32, bM=16)
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, shape).astype("f4") for shape in ((128, 32), (32, 128)))
    where = user_machine(tmp_path) if machine == "four-cards" else machine
    lowered = mt.lower(prog, machine=where)
    mt.check(lowered)
    result = mt.simulate(lowered, a, b, np.zeros((128, 128), "f4"))
    np.testing.assert_array_equal(result.outputs["C"], a @ b)
    assert mt.Plan.from_text(str(lowered.plan)) == lowered.plan


def test_the_plan_does_not_grow_with_blocks() -> None:
    def lines(blocks: int) -> int:
        @T.program
        def kernel(X: T.Tensor((2 * blocks, N), "f32")):
            with T.Kernel(device=2, block=blocks, threads=32) as bx, T.Scale("device") as (r, _n):
                x = T.view(X, layout=T.FullRow)
                inbox = T.alloc((blocks, N), "f32", level="l2")
                told = T.alloc((blocks,), "i32", level="l2")
                with T.Scale("block"):
                    row = T.alloc((1, N), "f32")
                    T.copy(row, x[bx, 0])
                    T.copy(inbox[bx, 0], row, dst=1 - r, scale="device")
                    T.signal(told[bx], dst=1 - r, scale="device")
                    T.wait(told[bx], 1)
                    T.copy(row, inbox[bx, 0])
                    T.copy(x[bx, 0], row)

        return len(str(mt.lower(kernel, machine="dgx-h100").plan).splitlines())

    assert lines(4) == lines(400)
