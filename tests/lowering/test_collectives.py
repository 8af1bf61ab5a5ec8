"""Collectives inside programs: by the library's algorithms with the program's tiles, and what is uneven."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.lowering.machines import user_machine

import megatile as mt
import megatile.language as T
from megatile.plan import model as pm
from megatile.plan.model import Plan
from megatile.sim.launches import Launch
from megatile.sim.machine_run import MachineRun

ROWS, COLUMNS = 16, 6


def program(
    kind: str,
    algorithm: str | None = None,
    devices: int = 4,
    op: str = "sum",
    root: int = 1,
    impl: Any = None,
) -> Any:
    """Every device's rows of X, put through a collective, are its rows of Y."""
    n = devices
    large = n if kind in ("reduce_scatter",) else 1
    out = {"allgather": n * ROWS, "reduce_scatter": ROWS}.get(kind, ROWS)

    @T.program
    def kernel(X: T.Tensor((n * ROWS * large, COLUMNS), "f32"), Y: T.Tensor((n * out, COLUMNS), "f32")):
        with T.Kernel(device=n), T.Scale("device"):
            x, y = T.view(X, layout=T.FullRow), T.view(Y, layout=T.FullRow)
            a = T.alloc((ROWS * large, COLUMNS), "f32", level="l2")
            b = T.alloc((out, COLUMNS), "f32", level="l2")
            T.copy(a, x)
            if kind == "allreduce":
                T.allreduce(a, op=op, algorithm=algorithm, impl=impl)
                T.copy(b, a)
            elif kind == "broadcast":
                T.broadcast(a, root=root, algorithm=algorithm)
                T.copy(b, a)
            elif kind == "allgather":
                T.allgather(b, a, algorithm=algorithm)
            elif kind == "reduce_scatter":
                T.reduce_scatter(b, a, op=op, algorithm=algorithm)
            else:
                T.all_to_all(b, a, algorithm=algorithm)
            T.copy(y, b)

    return kernel


def wanted(kind: str, x: np.ndarray, n: int, op: str = "sum", root: int = 1) -> np.ndarray:
    parts = x.reshape(n, -1, COLUMNS)
    total = {"sum": parts.sum(0), "max": parts.max(0)}[op]
    if kind == "allreduce":
        return np.concatenate([total] * n)
    if kind == "broadcast":
        return np.concatenate([parts[root]] * n)
    if kind == "allgather":
        return np.concatenate([x] * n)
    if kind == "reduce_scatter":
        return total
    return parts.reshape(n, n, -1, COLUMNS).swapaxes(0, 1).reshape(-1, COLUMNS)


def arrays(kind: str, n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(n)
    rows = n * ROWS * (n if kind == "reduce_scatter" else 1)
    x = rng.integers(-9, 9, (rows, COLUMNS)).astype("f4")
    return x, np.zeros_like(wanted(kind, x, n))


def checked(prog: Any, x: np.ndarray, y: np.ndarray, expected: np.ndarray, machine: Any) -> Any:
    """The program's result by its Plan in time is what is expected, and what the interpreter gives."""
    lowered = mt.lower(prog, x, y, machine=machine)
    mt.check(lowered)
    result = mt.simulate(lowered, x, y)
    np.testing.assert_array_equal(result.outputs["Y"], expected)
    mt.run(prog, x, y, machine=machine)
    np.testing.assert_array_equal(y, expected)
    return lowered, result


NAMED = [
    ("allreduce", "ring"), ("allreduce", "ring_bidirectional"), ("allreduce", "tree"),
    ("allreduce", "double_tree"), ("allreduce", "direct"), ("allreduce", "halving_doubling"),
    ("allreduce", "recursive_doubling"), ("allreduce", "bruck"), ("allreduce", "in_network"),
    ("allreduce", "by_dimension"), ("allreduce", "hamilton"), ("allreduce", None),
    ("allgather", "ring"), ("allgather", "direct"), ("allgather", "bruck"), ("allgather", "halving_doubling"),
    ("allgather", None), ("reduce_scatter", "ring"), ("reduce_scatter", "direct"),
    ("reduce_scatter", "halving_doubling"), ("reduce_scatter", "bruck"), ("reduce_scatter", None),
    ("all_to_all", "direct"), ("all_to_all", "pairwise"), ("all_to_all", "bruck"), ("all_to_all", None),
    ("broadcast", "ring"), ("broadcast", "tree"), ("broadcast", "direct"), ("broadcast", "binomial"),
    ("broadcast", "in_network"), ("broadcast", None),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "algorithm"), NAMED)
def test_an_algorithm_with_the_programs_tiles(kind: str, algorithm: str | None) -> None:
    x, y = arrays(kind, 4)
    checked(program(kind, algorithm), x, y, wanted(kind, x, 4), "dgx-h100")


@pytest.mark.parametrize("kind", ["allreduce", "allgather", "reduce_scatter", "all_to_all", "broadcast"])
@pytest.mark.parametrize("machine", ["h100-cluster", "mi300x-8", "four-cards"])
def test_the_planners_choice_elsewhere(kind: str, machine: str, tmp_path: Path) -> None:
    x, y = arrays(kind, 4)
    where = user_machine(tmp_path) if machine == "four-cards" else machine
    checked(program(kind), x, y, wanted(kind, x, 4), where)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("algorithm", ["ring", "tree", "halving_doubling", None])
def test_any_number_of_devices(n: int, algorithm: str | None) -> None:
    x, y = arrays("allreduce", n)
    prog = program("allreduce", algorithm, n, "max")
    checked(prog, x, y, wanted("allreduce", x, n, "max"), "dgx-h100")


def test_algorithms_differ_in_plan_and_time() -> None:
    names = ("ring", "tree", "direct", "halving_doubling", "in_network")
    for impl in ("kernel", "copy_engine"):
        names = names if impl == "kernel" else names[:-1]
        progs = {name: program("allreduce", name, impl=impl) for name in names}
        lowered = {name: mt.lower(prog, machine="dgx-h100") for name, prog in progs.items()}
        assert len({str(low.plan) for low in lowered.values()}) == len(names)
        times = {name: mt.simulate(low).time_ps for name, low in lowered.items()}
        assert len(set(times.values())) == len(names)
    with pytest.raises(mt.MegatileError, match="'in_network' is done by the network"):
        mt.lower(program("allreduce", "in_network", impl="copy_engine"), machine="dgx-h100")
    best = mt.simulate(program("allreduce", impl="copy_engine"), machine="dgx-h100").time_ps
    assert best <= min(times.values())


def test_a_library_does_it_unless_other_engines_are_asked_for() -> None:
    found = {}
    for impl in (None, "kernel", "copy_engine", "lsu"):
        lowered = mt.lower(program("allreduce", "ring", impl=impl), machine="dgx-h100")
        result = mt.simulate(lowered)
        found[impl] = result.model, result.time_ps
    assert [model for model, _ in found.values()] == [
        "NCCL ring, LL", "NCCL ring, LL", "copy engines", "peer stores by SMs",
    ]  # fmt: skip
    assert len({time for _, time in found.values()}) == 3
    with pytest.raises(mt.MegatileError, match="no implementation 'pigeon' of collective"):
        mt.lower(program("allreduce", impl="pigeon"), machine="dgx-h100")
    with pytest.raises(mt.MegatileError, match="no transport 'nccl'"):
        mt.lower(program("allreduce", impl="nccl"), machine="mi300x-8")
    with pytest.raises(mt.MegatileError, match="describes no library for collectives of a device"):
        mt.lower(program("allreduce", impl="kernel"), machine="tpu-v5p")


def test_collectives_of_one_program_have_a_transport_each() -> None:
    """Of another size or operation, what the library takes is another; alike ones have one."""

    @T.program
    def kernel(X: T.Tensor((4 * 256, 64), "f32"), Y: T.Tensor((4 * 1024, 64), "f32")):
        with T.Kernel(device=4), T.Scale("device"):
            x, y = T.view(X, layout=T.FullRow), T.view(Y, layout=T.FullRow)
            T.allreduce(x)
            T.allgather(y, x)
            T.allreduce(x)

    plan = mt.lower(kernel, machine="dgx-h100").plan
    assert [t.model_name() for t in plan.transports] == ["NCCL ring, LL"] * 2
    starts = [s for s in plan.streams[0].body if isinstance(s, pm.Start)]
    assert [s.collective for s in starts] == ["all_reduce", "all_gather", "all_reduce"]
    assert [s.transport for s in starts] == ["nccl", plan.transports[1].name, "nccl"]
    assert Plan.from_text(str(plan)) == Plan.from_json(plan.to_json()) == plan


def test_large_and_small_sizes_have_other_choices() -> None:
    def chosen(rows: int) -> Any:
        @T.program
        def kernel(X: T.Tensor((8 * rows, 64), "f32")):
            with T.Kernel(device=8), T.Scale("device"):
                T.allreduce(T.view(X, layout=T.FullRow))

        return mt.simulate(kernel, machine="mi300x-8").model

    assert chosen(8) == "RCCL direct, MSCCL++"
    assert chosen(1 << 14) == "RCCL direct, Simple"
    assert chosen(1 << 18) == "RCCL hamilton, Simple"


def test_along_one_axis_of_a_grid() -> None:
    @T.program
    def kernel(X: T.Tensor((6, 8), "f32"), Y: T.Tensor((6, 8), "f32")):
        with T.Kernel(device=(2, 3)), T.Scale("device") as r:
            t = T.alloc((1, 8), "f32", level="l2")
            T.copy(t, X[r, 0])
            T.allreduce(t, axis=1, algorithm="ring")
            T.copy(Y[r, 0], t)

    x, y = np.arange(48, dtype="f4").reshape(6, 8), np.zeros((6, 8), "f4")
    checked(kernel, x, y, np.tile(x.reshape(3, 2, 8).sum(0), (3, 1)), "dgx-h100")


def test_of_blocks_in_a_loop_and_in_two_regions() -> None:
    @T.program
    def kernel(X: T.Tensor((4, 8), "f32"), Y: T.Tensor((4, 8), "f32")):
        with T.Kernel(block=4, threads=32) as bx, T.Scale("device"):
            with T.Scale("block"):
                a = T.alloc((1, 8), "f32")
                T.copy(a, X[bx, 0])
                for _ in T.serial(2):
                    T.allreduce(a, algorithm="ring")
                T.copy(Y[bx, 0], a)
            with T.Scale("block"):
                b = T.alloc((1, 8), "f32")
                T.copy(b, Y[bx, 0])
                T.allreduce(b, op="max", algorithm="tree")
                T.copy(Y[bx, 0], b)

    x, y = np.arange(32, dtype="f4").reshape(4, 8), np.zeros((4, 8), "f4")
    checked(kernel, x, y, np.tile(x.sum(0) * 4, (4, 1)), "dgx-h100")


def test_the_text_does_not_grow_with_the_units() -> None:
    sizes = {
        len(str(mt.lower(program("allreduce", "ring", n), machine="h100-cluster").plan).splitlines())
        for n in (4, 8, 32)
    }
    assert len(sizes) == 1


@pytest.mark.parametrize("sizes", [(8, 4), (9, 4), (7, 4), (3, 4)])
def test_a_divided_tensor_is_gathered(sizes: tuple[int, int]) -> None:
    rows, n = sizes

    @T.program
    def kernel(X: T.Tensor((rows, 5), "f32"), Y: T.Tensor((n, rows, 5), "f32")):
        with T.Kernel(device=n, block=2, threads=32), T.Scale("device"):
            x, y = T.view(X, layout=T.FullRow), T.view(Y, layout=T.Shard(0))
            everything = T.allgather(x)
            t = T.alloc((rows, 5), "f32", level="l2")
            T.copy(t, everything)
            for i, j in T.Parallel(rows, 5):
                y[0, i, j] = t[i, j] + everything[rows - 1 - i, j]

    x, y = np.arange(rows * 5, dtype="f4").reshape(rows, 5), np.zeros((n, rows, 5), "f4")
    checked(kernel, x, y, np.stack([x + x[::-1]] * n), "dgx-h100")


def test_a_gathered_tensor_is_not_written() -> None:
    @T.program
    def kernel(X: T.Tensor((8, 5), "f32")):
        with T.Kernel(device=4), T.Scale("device"):
            everything = T.allgather(T.view(X, layout=T.FullRow))
            T.clear(everything)

    with pytest.raises(mt.MegatileError, match="a write to 'X', which is gathered elsewhere"):
        mt.lower(kernel, machine="dgx-h100")


@pytest.mark.parametrize("machine", ["dgx-h100", "mi300x-8"])
def test_parts_as_long_as_data_says(machine: str) -> None:
    n, most = 3, 12

    @T.program
    def kernel(
        X: T.Tensor((n, most, 2), "f32"), C: T.Tensor((n, n), "i32"), Y: T.Tensor((n, most, 2), "f32"),
        R: T.Tensor((n, n), "i32"),
    ):  # fmt: skip
        with T.Kernel(device=n), T.Scale("device") as r:
            x = T.alloc((most, 2), "f32", level="l2")
            y = T.alloc((most, 2), "f32", level="l2")
            counts_1 = T.alloc((n,), "i32", level="l2")  # a name that lowering might take for itself
            received = T.alloc((n,), "i32", level="l2")
            T.copy(x, X[r, 0:most, 0:2])
            T.copy(counts_1, C[r, 0:n])
            T.clear(y)
            T.all_to_all(y, x, counts_1, received)
            T.copy(Y[r, 0:most, 0:2], y)
            T.copy(R[r, 0:n], received)

    counts = np.array([[2, 0, 5], [4, 4, 4], [1, 3, 0]], "i4")
    x = np.arange(n * most * 2, dtype="f4").reshape(n, most, 2)
    expected = np.zeros_like(x)
    for to in range(n):
        parts = [x[i, counts[i, :to].sum() : counts[i, : to + 1].sum()] for i in range(n)]
        found = np.concatenate(parts)
        expected[to, : len(found)] = found
    result = mt.simulate(kernel, x, counts, np.zeros_like(x), np.zeros_like(counts), machine=machine)
    np.testing.assert_array_equal(result.outputs["Y"], expected)
    np.testing.assert_array_equal(result.outputs["R"], counts.T)
    y, r = np.zeros_like(x), np.zeros_like(counts)
    mt.run(kernel, x, counts, y, r, machine=machine)
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize(
    ("kind", "algorithm", "words"),
    [
        ("allreduce", "rings", r"'rings' is not among the collective algorithms .*did you mean 'ring'"),
        ("allreduce", "os:system", "is not among the collective algorithms"),
        ("all_to_all", "tree", r"tree cannot do all_to_all over 4 ranks.*one of bruck"),
        ("allreduce", "hierarchical", "the ranks are not nested in equal groups"),
    ],
)
def test_what_cannot_be_is_said_with_its_line(kind: str, algorithm: str, words: str) -> None:
    with pytest.raises(mt.MegatileError, match=words) as caught:
        mt.lower(program(kind, algorithm), machine="dgx-h100")
    assert "test_collectives.py:" in str(caught.value)


def test_a_root_that_changes_has_no_algorithm() -> None:
    def spread(algorithm: str | None) -> Any:
        @T.program
        def kernel(X: T.Tensor((4, 8), "f32"), Y: T.Tensor((4, 8), "f32")):
            with T.Kernel(device=4), T.Scale("device") as r:
                t = T.alloc((1, 8), "f32", level="l2")
                for k in T.serial(4):
                    T.copy(t, X[r, 0])
                    T.broadcast(t, root=k, algorithm=algorithm)
                T.copy(Y[r, 0], t)

        return kernel

    x, y = np.arange(32, dtype="f4").reshape(4, 8), np.zeros((4, 8), "f4")
    checked(spread(None), x, y, np.tile(x[3], (4, 1)), "dgx-h100")
    with pytest.raises(mt.MegatileError, match="from a root that is not a number"):
        mt.lower(spread("tree"), machine="dgx-h100")


def test_sums_on_a_device_have_its_memory_although_blocks_run_there_too() -> None:
    """A device's own command takes as long beside regions of blocks as it takes alone."""

    def added(blocks: bool) -> int:
        @T.program
        def kernel(X: T.Tensor((512, 512), "f32")):
            with T.Kernel(device=2, block=1, threads=32), T.Scale("device"):
                t = T.alloc((512, 512), "f32", level="l2")
                T.clear(t)
                if blocks:
                    with T.Scale("block"):
                        x = T.alloc((1, 32), "f32")
                        T.clear(x)
                        T.copy(X[0, 0], x)
                T.allreduce(t, algorithm="ring")
                T.copy(X, t)

        found = mt.simulate(kernel, machine="dgx-h100")
        return max(e.end_ps - e.start_ps for e in found.trace if e.operation == "add")

    assert added(True) == added(False)


def test_a_time_is_asked_for_at_most_once_per_algorithm(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GEMM of the README: bounds take no run, and the times of a machine are asked for once."""
    runs = Counter[str]()
    start = MachineRun.start

    def counted(self: MachineRun, launch: Launch, **keywords: Any) -> Any:
        runs[launch.plan.name] += 1
        return start(self, launch, **keywords)

    monkeypatch.setattr(MachineRun, "start", counted)
    machine = mt.machine("dgx-h100", **{"networks.nvlink.latency": "501 ns"})

    @T.program
    def gemm(A: T.Tensor((256, 512), "f32"), B: T.Tensor((512, 128), "f32"), C: T.Tensor((256, 128), "f32")):
        with T.Kernel(device=4, block=(2, 4), threads=256) as (bx, by):
            with T.Scale("device"):
                a = T.view(A, layout=T.FullCol)
                b = T.view(B, layout=T.FullRow)
                c = T.view(C, layout=T.Replica)
            with T.Scale("block"):
                a_tile = T.alloc((64, 32), "f32", level="l1")
                b_tile = T.alloc((32, 64), "f32", level="l1")
                c_tile = T.alloc((64, 64), "f32", level="l0")
                T.clear(c_tile)
                for k in T.Pipelined(a.shape[1] // 32, num_stages=2):
                    T.copy(a_tile, a[by * 64, k * 32])
                    T.copy(b_tile, b[k * 32, bx * 64])
                    T.gemm(a_tile, b_tile, c_tile)
                T.copy(c[by * 64, bx * 64], c_tile)
            with T.Scale("device"):
                T.allreduce(c, impl="copy_engine")

    for _ in range(2):
        mt.lower(gemm, machine=machine)
        assert set(runs.values()) == {1}
