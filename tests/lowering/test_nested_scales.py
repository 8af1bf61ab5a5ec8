"""Three nested regions: nodes, clusters and dies are scales like devices."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.language.tile.random_nodes import nested_program
from tests.lowering.machines import USER

import megatile as mt
import megatile.language as T
from megatile.lowering.errors import LoweringError
from megatile.targets.common.errors import CompileError

DIES = USER.replace("four-cards", "dies").replace("clocks: {box", "clocks: {rack")
"""The same machine with cards of two dies, and three boxes in a rack."""
for old, new in {
    "    - {name: card, num_units: 24}": [
        "    - {name: chiplet, num_units: 12}",
        "    - {name: card, num_units: 2}",
    ],
    "    - {name: box, num_units: 4}": [
        "    - {name: box, num_units: 4}",
        "    - {name: rack, num_units: 3}",
    ],
    "  - {name: device, target: card}": [
        "  - {name: die, target: chiplet}",
        "  - {name: device, target: card}",
    ],
    "networks:": [
        "networks:",
        "  - {name: d2d, level: card, connects: chiplet, topology: ring, bandwidth: 9 GB/s, latency: 1 us}",
        "  - {name: ether, level: rack, connects: box, topology: switch, bandwidth: 10 GB/s, latency: 3 us}",
    ],
}.items():
    DIES = DIES.replace(old, "\n".join(new))


def place(machine: str, folder: Path) -> str:
    if machine != "dies":
        return machine
    path = folder / "dies.yaml"
    path.write_text(DIES, encoding="utf-8")
    return str(path)


def same(prog: Any, machine: str, wanted: np.ndarray, *arrays: np.ndarray) -> Any:
    """Interpreter, Plan and simulation give the wanted result; return the simulation."""
    *inputs, out = arrays
    mt.run(prog, *(a.copy() for a in inputs), out, machine=machine)
    np.testing.assert_array_equal(out, wanted)
    lowered = mt.lower(prog, *arrays, machine=machine)
    mt.check(lowered)
    name = lowered.program.params[-1].name
    np.testing.assert_array_equal(mt.execute(lowered, *inputs, np.zeros_like(out))[name], wanted)
    result = mt.simulate(lowered, *inputs, np.zeros_like(out))
    np.testing.assert_array_equal(result.outputs[name], wanted)
    assert mt.Plan.from_text(str(lowered.plan)) == lowered.plan
    return result


@pytest.mark.parametrize("batch", range(5))
def test_random_programs_of_nodes_devices_and_blocks(batch: int) -> None:
    for seed in range(batch * 6, batch * 6 + 6):
        case = nested_program(seed)
        x, y = case.arrays(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            same(case.program, "h100-cluster", case.wanted(x), x, y)
            if any("node" in str(p) for _, p in case.steps) or any(word == "put" for word, _ in case.steps):
                with pytest.raises(CompileError, match="with scale='node' cannot be compiled yet"):
                    mt.compile(case.program, machine="h100-cluster", threads=2)
                continue
            compiled = mt.compile(case.program, machine="h100-cluster", threads=2)
        got = np.zeros_like(y)
        compiled(x.copy(), got)
        np.testing.assert_array_equal(got, case.wanted(x))


@pytest.mark.parametrize("blocks", [False, True])
def test_puts_and_signals_to_another_node_also_compile(blocks: bool) -> None:
    @T.program
    def kernel(X: T.Tensor((12, 8), "f32"), Y: T.Tensor((12, 8), "f32")):
        with T.Kernel(node=3, device=2, block=2, threads=32), T.Scale("node") as (r, n):
            xn, yn = T.view(X, layout=T.FullRow), T.view(Y, layout=T.FullRow)
            with T.Scale("device"):
                x, y = T.view(xn, layout=T.FullRow), T.view(yn, layout=T.FullRow)
                inbox = T.alloc((2, 8), "f32", level="l2")
                told = T.alloc((1,), "i32", level="l2")
                if blocks:
                    with T.Scale("block") as (b, _n):
                        T.copy(inbox[b, 0], x[b : b + 1, :], dst=(r + 1) % n, scale="node")
                        T.signal(told[0], dst=(r + 1) % n, scale="node")
                else:
                    T.copy(inbox, x, dst=(r + 1) % n, scale="node")
                    T.signal(told[0], dst=(r + 1) % n, scale="node", amount=2)
                T.wait(told[0], 2)
                T.copy(y, inbox)

    x = np.arange(96, dtype="f4").reshape(12, 8)
    wanted = np.roll(x, 4, axis=0)
    same(kernel, "h100-cluster", wanted, x, np.zeros_like(x))
    mt.run(kernel, x, y := np.zeros_like(x), machine="h100-cluster", schedule="adversarial")
    np.testing.assert_array_equal(y, wanted)
    mt.compile(kernel, machine="h100-cluster", threads=2)(x, y := np.zeros_like(x))
    np.testing.assert_array_equal(y, wanted)
    mt.launch(kernel, x, y := np.zeros_like(x), machine="h100-cluster", processes=2)
    np.testing.assert_array_equal(y, wanted)


NESTS = [
    ("dies", "node", "device"), ("dies", "device", "die"), ("dies", "node", "die"),
    ("dgx-h100", "device", "cluster"), ("h100-cluster", "node", "cluster"),
]  # fmt: skip


@pytest.mark.parametrize(("machine", "outer", "inner"), NESTS)
@pytest.mark.parametrize("among", [None, "outer", "blocks"])
def test_any_two_scales_around_blocks(
    machine: str, outer: str, inner: str, among: str | None, tmp_path: Path
) -> None:
    """Every inner unit doubles its rows by blocks, or sums them with its peers in its own or other units."""

    @T.program
    def kernel(X: T.Tensor((12, 8), "f32"), Y: T.Tensor((12, 8), "f32")):
        with T.Kernel(**{outer: 3, inner: 2, "block": 2, "threads": 32}), T.Scale(outer):
            xo, yo = T.view(X, layout=T.FullRow), T.view(Y, layout=T.FullRow)
            with T.Scale(inner):
                xi, yi = T.view(xo, layout=T.FullRow), T.view(yo, layout=T.FullRow)
                if among == "blocks":
                    with T.Scale("block") as (b, _n):
                        row = T.alloc((1, 8), "f32")
                        T.copy(row, xi[b, 0])
                        for i, j in T.Parallel(1, 8):
                            row[i, j] = row[i, j] * 2.0
                        T.copy(yi[b, 0], row)
                else:
                    t = T.alloc((2, 8), "f32", level="l2")
                    T.copy(t, xi)
                    T.allreduce(t, scale=outer if among == "outer" else None)
                    T.copy(yi, t)

    x = np.random.default_rng(0).integers(-9, 9, (12, 8)).astype("f4")
    parts = x.reshape(3, 2, 2, 8)
    summed = np.broadcast_to(parts.sum(0 if among == "outer" else 1, keepdims=True), parts.shape)
    wanted = x * 2 if among == "blocks" else summed.reshape(x.shape)
    same(kernel, place(machine, tmp_path), wanted, x, np.zeros_like(x))


def hierarchical(n: int, flat: bool) -> Any:
    """An all-reduce over all devices: within nodes, between nodes, within nodes; or of all at once."""

    @T.program
    def kernel(X: T.Tensor((8, n), "f32"), Y: T.Tensor((8, n), "f32")):
        with T.Kernel(node=2, device=4), T.Scale("node"):
            xn, yn = T.view(X, layout=T.FullRow), T.view(Y, layout=T.FullRow)
            with T.Scale("device"):
                xd, yd = T.view(xn, layout=T.FullRow), T.view(yn, layout=T.FullRow)
                if flat:
                    T.copy(yd, xd)
                    T.allreduce(yd)
                    T.allreduce(yd, scale="node")
                else:
                    part = T.alloc((1, n // 4), "f32", level="l2")
                    T.reduce_scatter(part, xd)
                    T.allreduce(part, scale="node")
                    T.allgather(yd, part)

    return kernel


def test_an_all_reduce_by_levels_sends_a_quarter_between_nodes() -> None:
    x = np.random.default_rng(1).integers(-9, 9, (8, 64)).astype("f4")
    wanted = np.broadcast_to(x.sum(0), x.shape)
    for flat in (False, True):
        same(hierarchical(64, flat), "h100-cluster", wanted, x, np.zeros_like(x))
    by_levels, at_once = (
        mt.simulate(hierarchical(1 << 22, flat), machine="h100-cluster").time_ns for flat in (False, True)
    )
    between = mt.machine("h100-cluster").network("infiniband")
    quarter = (1 << 22) / 4 * 4 / float(between.bandwidth) * 1e9
    assert at_once - by_levels > 2 * quarter  # at least half an array less


def test_devices_keep_to_their_nodes() -> None:
    """Four devices of each of two nodes are not the eight of one."""
    lowered = mt.lower(hierarchical(64, False), machine="h100-cluster")
    places = [int(lowered.plan.place.evaluate({"unit": u})) for u in range(8)]
    assert places == [0, 1, 2, 3, 8, 9, 10, 11]


def test_a_statement_of_a_node_itself_is_refused_at_its_line() -> None:
    @T.program
    def kernel(X: T.Tensor((8, 8), "f32")):
        with T.Kernel(node=2, device=4), T.Scale("node"):
            x = T.view(X, layout=T.FullRow)
            T.allreduce(x)

    with pytest.raises(
        LoweringError, match=r"a collective of a 'node' itself.*T.Scale\(\"device\"\)"
    ) as caught:
        mt.lower(kernel, machine="h100-cluster")
    assert caught.value.place is not None


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("view", "T.allgather of a view with scale='node'"),
        ("region", "is not inside a region of 'cluster'"),
        ("tile", "which is not one tile per 'node'"),
        ("units", "there are 2 units of scale 'node'"),
    ],
)
def test_mistakes_are_named(statement: str, words: str) -> None:
    @T.program
    def kernel(X: T.Tensor((8, 8), "f32")):
        with T.Kernel(node=2, device=4, block=1, threads=32), T.Scale("node") as (r, _n):
            xn = T.view(X, layout=T.FullRow)
            with T.Scale("device"):
                x = T.view(xn, layout=T.FullRow)
                if statement == "view":
                    T.allgather(x, scale="node")
                if statement == "region":
                    T.allreduce(x, scale="cluster")
                if statement == "units":
                    T.barrier(units=3, scale="node")
                if statement == "tile":
                    with T.Scale("block"):
                        t = T.alloc((1, 8), "f32")
                        T.copy(t, x, dst=1 - r, scale="node")

    with pytest.raises(mt.MegatileError, match=words):
        mt.run(kernel, np.zeros((8, 8), "f4"), machine="h100-cluster")


@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("word", ["allreduce", "both", "barrier"])
@pytest.mark.parametrize(
    ("machine", "outer", "inner"), [("dies", "device", "die"), ("dgx-h100", "device", "cluster")]
)
def test_blocks_inside_an_instance_meet_those_of_others(
    machine: str, outer: str, inner: str, word: str, blocks: int, tmp_path: Path
) -> None:
    """Blocks of a die run in its stream; each sums its rows with the blocks of its number in other dies, also
    among those of its own, or reads what they wrote before a barrier."""
    rows = 4 * blocks

    @T.program
    def kernel(X: T.Tensor((rows, 8), "f32"), Y: T.Tensor((rows, 8), "f32")):
        grid = {outer: 2, inner: 2, "block": blocks, "threads": 32}
        with T.Kernel(**grid), T.Scale(outer) as (p, _p), T.Scale(inner) as (d, n):
            box = T.alloc((blocks, 8), "f32", level="l2")
            with T.Scale("block") as (b, _n):
                row = T.alloc((1, 8), "f32")
                me = (p * 2 + d) * blocks + b
                T.copy(row, X[me, 0])
                if word == "barrier":
                    T.copy(box[b, 0], row)
                    T.barrier(scale=inner)
                    T.copy(row, box[b, 0], src=(d + 1) % n, scale=inner)
                else:
                    T.allreduce(row, scale=inner)
                if word == "both":
                    T.allreduce(row, scale="block")
                T.copy(Y[me, 0], row)

    x = np.arange(8.0 * rows, dtype="f4").reshape(rows, 8)
    parts = x.reshape(2, 2, blocks, 8)
    sums = np.broadcast_to(parts.sum(1, keepdims=True), parts.shape)
    wanted = {
        "barrier": parts[:, ::-1],
        "allreduce": sums,
        "both": np.broadcast_to(sums.sum(2, keepdims=True), parts.shape),
    }[word].reshape(x.shape)
    same(kernel, place(machine, tmp_path), wanted, x, np.zeros_like(x))


def test_a_program_after_its_passes_runs_with_what_they_chose() -> None:
    @T.program
    def kernel(X: T.Tensor((4, 8), "f32"), Y: T.Tensor((4, 8), "f32")):
        with T.Kernel(cluster=1, block=4), T.Scale("cluster"), T.Scale("block") as (b, _):
            row = T.alloc((1, 8), "f32")
            T.copy(row, X[b, 0])
            T.allreduce(row, scale="block")
            T.copy(Y[b, 0], row)

    chosen = mt.lower(kernel, machine="dgx-h100").program
    x, y = np.ones((4, 8), "f4"), np.zeros((4, 8), "f4")
    mt.run(chosen, x, y, machine="dgx-h100")
    np.testing.assert_array_equal(y, 4 * x)
