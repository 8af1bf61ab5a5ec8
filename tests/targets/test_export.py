"""``mt.export``: TileLang text through our own door gives what the interpreter gives; CUDA and C texts."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from tests.targets.cuda.test_examples import example
from tests.targets.round_trip import round_trip
from tests.targets.sixteen import allgather_gemm, dynamic_shapes, warp_specialisation

import megatile as mt
import megatile.language as T
from megatile.compat.tilelang.takeover import Finder

ONE_GRID = ("20", "21", "25", "26", "27", "28", "37")
SEVERAL_RANKS = ("24", "29", "30", "31", "32", "33", "34", "35", "36", "44", "45")
LOWERED = """
import importlib.util, re, sys
import tilelang
from tilelang import tvm
target = tvm.target.Target({"kind": "cuda", "arch": "sm_80"})
for file in sys.argv[1:]:
    spec = importlib.util.spec_from_file_location("kernel", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    name = re.search(r"^def (\\w+)", open(file).read(), re.M).group(1)
    with target:
        made = tilelang.lower(getattr(module, name), target=target)
    assert "__global__" in made.kernel_source
    print("lowered", file)
"""


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch):
    """``import tilelang`` is ours while the test runs."""
    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
    before = {name for name in sys.modules if name.split(".")[0] in ("tilelang", "tvm")}
    yield
    for name in [m for m in sys.modules if m.split(".")[0] in ("tilelang", "tvm") and m not in before]:
        del sys.modules[name]


def loaded(text: str, path: Path):
    """The kernel that a TileLang text defines."""
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    name = re.search(r"^def (\w+)", text, re.MULTILINE)
    assert name is not None
    return module.tilelang.compile(getattr(module, name.group(1)))


@pytest.mark.parametrize("number", ONE_GRID)
def test_examples_run_through_the_door(number: str, door: None, tmp_path: Path, monkeypatch) -> None:
    module = example(number)
    run = mt.run

    def exported(prog, *arrays, machine, **_):
        with monkeypatch.context() as now:
            now.setattr(module.mt, "run", run)
            loaded(mt.export(prog, "tilelang", machine=machine), tmp_path / "kernel.py")(*arrays)

    monkeypatch.setattr(module.mt, "run", exported)
    module.main()


@pytest.mark.parametrize("number", SEVERAL_RANKS)
def test_examples_of_several_devices_run_through_the_door(number: str, tmp_path: Path, monkeypatch) -> None:
    module = example(number)
    run = mt.run

    def exported(prog, *arrays, machine, **_):
        with monkeypatch.context() as now:
            now.setattr(module.mt, "run", run)
            found = round_trip(prog, *arrays, folder=tmp_path, machine=machine)
        for array, result in zip(arrays, found, strict=True):
            array[...] = result

    monkeypatch.setattr(module.mt, "run", exported)
    module.main()


def test_symbolic_extents_stay_open(tmp_path: Path) -> None:
    program, arrays, wanted = dynamic_shapes()
    text = mt.export(program, "tilelang")
    assert "T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 32), threads=128)" in text
    found = round_trip(program, *arrays, folder=tmp_path, shapes=())
    np.testing.assert_allclose(found[2], wanted()[2], rtol=1e-4, atol=1e-4)


def test_roles_wait_by_parity() -> None:
    text = mt.export(warp_specialisation()[0], "tilelang")
    assert "empty_0 = T.alloc_barrier([256] * 2)" in text  # of both consumers
    assert "T.barrier_wait(full_1[k_2 % 2], k_2 // 2 % 2)" in text
    assert "T.gemm(a[k_2 % 2, 64 : 128, 0 : 16], b[k_2 % 2, 0 : 16, 0 : 64], c_2)" in text


@pytest.mark.parametrize("put", [False, True])
def test_blocks_of_a_cluster_meet_where_their_regions_end(put: bool, tmp_path: Path) -> None:
    """Phases are barriers in one kernel; a block has started before a put to it, and outlives it."""

    @T.program
    def phases(X: T.Tensor((4, 8), "f32"), W: T.Tensor((4, 8), "f32"), Y: T.Tensor((4, 8), "f32")):
        with T.Kernel(cluster=2, block=2, threads=128), T.Scale("cluster") as (c, _):
            with T.Scale("block") as (b, m):
                t = T.alloc((8,), "f32", level="l1")
                u = T.alloc((8,), "f32", level="l1")
                T.copy(t, X[c * 2 + b, :])
                if put:
                    T.copy(u, t, dst=(b + 1) % m)
                T.copy(W[c * 2 + b, :], t)
            with T.Scale("block") as (b, m):
                v = T.alloc((8,), "f32", level="l1")
                T.copy(v, W[c * 2 + (b + 1) % m, :])
                T.copy(Y[c * 2 + b, :], v)

    x = np.arange(32, dtype=np.float32).reshape(4, 8)
    found = round_trip(phases, x, np.zeros_like(x), np.zeros_like(x), folder=tmp_path)
    np.testing.assert_array_equal(found[2], x[[1, 0, 3, 2]])
    lines = [line.strip() for line in mt.export(phases, "tilelang").splitlines()]
    meets = [at for at, line in enumerate(lines) if line == "T.cluster_sync()"]
    puts = [at for at, line in enumerate(lines) if line.startswith("T.copy_cluster")]
    assert len(meets) == 1 + put
    assert all(any(at < p for at in meets) and any(at > p for at in meets) for p in puts)


def test_a_missing_wait_is_found_in_the_exported_text(tmp_path: Path) -> None:
    program, arrays, _ = allgather_gemm()
    text = mt.export(program, "tilelang")
    assert text.count("T.wait_ge") == 1
    broken = re.sub(r"( +)T\.wait_ge\(.*\n", r"\1pass\n", text)
    with pytest.raises(mt.MegatileError, match="race|written"):
        round_trip(program, *arrays, folder=tmp_path, text=broken)


def everything(rows: int, columns: int):
    @T.program
    def program(
        A: T.Tensor((rows, columns), "bf16"), N: T.Tensor((2,), "i32"), R: T.Tensor((rows, columns), "f32"),
        S: T.Tensor((1,), "f32"),
    ):  # fmt: skip
        with T.Kernel(block=T.ceildiv(rows, 8), threads=64) as bx:
            a = T.alloc((8, columns), "f32", level="l1")
            b = T.alloc((8, columns), "f32", level="l1")
            top = T.alloc((8,), "f32", level="l1")
            steps = 0
            for k in T.serial(N[0]):
                if k % 2 == 0 and not (k > 3 and k < 5):
                    steps = steps + 2
                else:
                    steps = steps - 1
            T.copy(a, A[bx * 8, 0])
            T.cumsum(a, b, dim=1, reverse=True)
            T.reduce_absmax(b, top, dim=1)
            for i, j in T.Parallel(8, columns):
                x = T.max(T.abs(b[i, j]), 0.5) ** 2.0 - T.cast(T.cast(b[i, j], "f16"), "f32")
                b[i, j] = T.if_then_else(
                    i > 3 or j % 3 == 1, -T.infinity("f32"), x / (top[i] + steps) - T.floor(-(x * 3))
                )
            T.copy(R[bx * 8, 0], b)
            for i, j in T.Parallel(8, columns):
                if bx * 8 + i < rows:
                    T.atomic_add(S[0], T.cast(j // 2 << 1, "f32"))

    return program


def test_every_kind_of_expression_means_the_same(door: None, tmp_path: Path) -> None:
    rows, columns = 13, 10
    program = everything(rows, columns)
    a = np.random.default_rng(0).standard_normal((rows, columns)).astype(ml_dtypes.bfloat16)
    results = []
    for which in (mt.run, loaded(mt.export(program, "tilelang"), tmp_path / "kernel.py")):
        r, s = np.zeros((rows, columns), np.float32), np.zeros(1, np.float32)
        which(*([program] if which is mt.run else []), a, np.array([7, 0], np.int32), r, s)
        results.append((r, s))
    k_results = np.zeros((rows, columns), np.float32), np.zeros(1, np.float32)
    mt.compile(program, target="cuda")(a, np.array([7, 0], np.int32), *k_results)
    for got in (results[1], k_results):
        for mine, wanted in zip(got, results[0], strict=True):
            np.testing.assert_allclose(mine, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("number", "said"),
    [
        ("23", "Alloc at scale 'cluster' has no counterpart in TileLang"),
        ("39", "Loop without a known number of steps"),
    ],
)
def test_what_tilelang_has_no_word_for_is_reported_with_its_line(number: str, said: str, monkeypatch) -> None:
    module = example(number)
    monkeypatch.setattr(
        module.mt, "run", lambda prog, *_, machine, **__: mt.export(prog, "tilelang", machine=machine)
    )
    with pytest.raises(mt.MegatileError, match=said) as raised:
        module.main()
    assert raised.value.place.line > 1


def shared_rows(rows: int):
    """Four blocks, each of which doubles its rows through a view."""

    @T.program
    def kernel(A: T.Tensor((rows, 8), "f32")):
        with T.Kernel(block=4, threads=32):
            mine = T.view(A, layout=T.FullRow)
            t = T.alloc((2, 8), "f32", level="l1")
            for k in T.serial(2):
                T.copy(t, mine[k * 2, 0])
                for i, j in T.Parallel(2, 8):
                    t[i, j] = t[i, j] * 2.0
                T.copy(mine[k * 2, 0], t)

    return kernel


def test_views_are_slices_in_tilelang(door: None, tmp_path: Path) -> None:
    text = mt.export(shared_rows(16), "tilelang")
    assert "T.copy(A[bx * 4 + k * 2, 0], t)" in text
    a = np.arange(128, dtype=np.float32).reshape(16, 8)
    got = a.copy()
    loaded(text, tmp_path / "kernel.py")(got)
    np.testing.assert_array_equal(got, a * 2)


def test_uneven_views_are_refused_in_tilelang() -> None:
    with pytest.raises(mt.MegatileError, match="a view of 'A' whose parts are not equally long cannot"):
        mt.export(shared_rows(15), "tilelang")


def test_assertions_in_tilelang(door: None, tmp_path: Path) -> None:
    @T.program
    def halve(n: T.Tensor((1,), "i32"), out: T.Tensor((1,), "i32")):
        with T.Kernel(block=1, threads=32):
            T.device_assert(n[0] % 2 == 0, "an even number")
            out[0] = n[0] // 2

    text = mt.export(halve, "tilelang")
    assert "T.device_assert(n[0] % 2 == 0, 'an even number')" in text
    kernel = loaded(text, tmp_path / "kernel.py")
    got = np.zeros(1, np.int32)
    kernel(np.array([6], np.int32), got)
    assert got[0] == 3
    with pytest.raises(mt.MegatileError, match="an even number"):
        kernel(np.array([7], np.int32), got)


def test_other_languages() -> None:
    add = example("20").vector_add
    assert "Never run on a GPU" in mt.export(add(100), "cuda")
    assert "megatile_run" in mt.export(add(100), "c")
    with pytest.raises(mt.MegatileError, match="cannot be written as 'cuta'.*did you mean 'cuda'"):
        mt.export(add(100), "cuta")
    with pytest.raises(mt.MegatileError, match="is not a tile program"):
        mt.export(add, "c")


def test_the_package_lowers_it_to_cuda(tmp_path: Path) -> None:
    found = importlib.util.find_spec("tilelang")
    if found is None or "megatile" in str(found.loader):
        pytest.skip("needs tilelang (pip install tilelang)")
    programs = {
        "add": example("20").vector_add(1000),
        "gemm": example("21").gemm(200, 136, 96),
        "softmax": example("25").softmax(70, 150),
        "rmsnorm": example("26").rmsnorm(40, 128),
        "forward": example("27").flash_attention(1, 4, 2, 96, 64, dtype="f16"),
        "backward": example("28").flash_attention_backward(1, 2, 80, 16, True),
    }
    for name, program in programs.items():
        (tmp_path / f"{name}.py").write_text(mt.export(program, "tilelang"), encoding="utf-8")
    files = [str(tmp_path / f"{name}.py") for name in programs]
    done = subprocess.run(
        [sys.executable, "-c", LOWERED, *files], capture_output=True, text=True, check=False
    )
    assert done.stdout.count("lowered") == len(programs), done.stderr[-2000:]
