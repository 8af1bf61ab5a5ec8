"""``megatile check-kernel`` and ``python -m megatile.tilelang``."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from megatile.__main__ import main

SOURCE = Path(__file__).parents[3] / "src"
GOOD = """
import numpy as np
import tilelang
import tilelang.language as T

@tilelang.jit
def product(A, B):
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), T.float16)
    B: T.Tensor((K, N), T.float16)
    C = T.empty((M, N), T.float32)
    with T.Kernel(T.ceildiv(N, 16), T.ceildiv(M, 16), threads=128) as (bx, by):
        a = T.alloc_shared((16, 16), T.float16)
        b = T.alloc_shared((16, 16), T.float16)
        c = T.alloc_fragment((16, 16), T.float32)
        T.clear(c)
        for k in T.Pipelined(T.ceildiv(K, 16), num_stages=2):
            T.copy(A[by * 16, k * 16], a)
            T.copy(B[k * 16, bx * 16], b)
            T.gemm(a, b, c)
        T.copy(c, C[by * 16, bx * 16])
    return C

if __name__ == "__main__":
    a = np.ones((32, 48), "f2")
    b = np.ones((48, 16), "f2")
    assert (product(a, b) == 48).all()
    print("the file's own words")
"""


def megatile(*arguments: str, **extra: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), **extra}
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=environment, check=False
    )


@pytest.fixture
def check_kernel(monkeypatch, capsys):
    """Call ``megatile check-kernel`` in this process: its code, standard output and errors."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["megatile", "check-kernel", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return SimpleNamespace(returncode=int(ended.value.code or 0), stdout=out, stderr=err)

    return call


@pytest.fixture
def good(tmp_path):
    path = tmp_path / "good.py"
    path.write_text(GOOD)
    return str(path)


def test_kernels_of_a_file_are_built_checked_and_run(good):
    done = megatile("-m", "megatile", "check-kernel", good, "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout[done.stdout.index("{") :])["kernels"]
    assert rows[0]["kernel"] == "product"
    assert rows[0]["launches"] == [{"grid": [1, 2]}]
    assert rows[0]["runs"] == 1
    # 32·48·2 + 48·16·2 bytes at 3350 GB/s; the result may stay in the cache, the products are less.
    assert rows[0]["least_us_on_the_machine"] == pytest.approx(4608 / 3350e9 * 1e6, rel=0.05)


def test_the_table_says_what_it_is_not(check_kernel, good):
    done = check_kernel(good, "-m", "dgx-h100")
    assert "product" in done.stdout
    assert "not a prediction" in done.stdout


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("T.copy(c, C[by * 16, bx * 16])", "T.copy(c, C[0, 0])"), "data race on 'C'"),
        (("T.gemm(a, b, c)", "T.gemm(a, b[0:8, :], c)"), "inner extents differ"),
        (
            ("T.clear(c)", "T.clear(c); d = T.alloc_shared((512, 512), T.float16)"),
            "of 'shared', but there are",
        ),
        (("if __name__", "if False and __name__"), "calls no kernel"),
        (("== 48", "== 47"), "fails: AssertionError"),
    ],
)
def test_mistakes_are_one_message(check_kernel, tmp_path, change, message):
    path = tmp_path / "wrong.py"
    assert change[0] in GOOD
    path.write_text(GOOD.replace(*change))
    done = check_kernel(path)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_that_is_not_there(check_kernel, tmp_path):
    done = check_kernel(tmp_path / "none.py")
    assert (done.returncode, "there is no file" in done.stderr) == (1, True)


def test_a_file_runs_unedited_as_a_module(good):
    assert "the file's own words" in megatile("-m", "megatile.tilelang", good).stdout
    assert megatile("-m", "megatile.tilelang", "none.py").stderr.startswith(
        "error: there is no file 'none.py'"
    )
    for name in ("none", "none.of"):
        said = megatile("-m", "megatile.tilelang", "-m", name).stderr
        assert said.startswith(f"error: there is no module '{name}'")
        assert said.count("\n") == 1
    assert megatile("-m", "megatile.tilelang", "-m").stderr.startswith("error: give a Python file")
    assert "No module named 'tilelang'" in megatile(good).stderr


def test_a_module_runs_with_tilelang_answered(tmp_path):
    (tmp_path / "test_theirs.py").write_text(
        "import tilelang.language as T\n\ndef test_bits():\n    assert T.float16.bits == 16\n"
    )
    folder = str(tmp_path / "test_theirs.py")
    done = megatile("-m", "megatile.tilelang", "-m", "pytest", "-q", "-p", "no:cacheprovider", folder)
    assert (done.returncode, "1 passed" in done.stdout) == (0, True), done.stdout


def test_nothing_outlives_the_block(monkeypatch):
    torch = pytest.importorskip("torch", reason="needs torch")
    import importlib.metadata

    from megatile.compat.tilelang.takeover import installed

    def state():
        cuda = {name: value for name, value in vars(torch.cuda).items() if not name.startswith("__")}
        ours = [name for name in sys.modules if name.split(".")[0] in ("tilelang", "tvm", "cuda")]
        return (
            cuda, ours, list(sys.meta_path), importlib.metadata.version, torch.Generator, torch.allclose,
            torch.testing.assert_close, torch.Tensor.is_cuda, torch.nn.Module.cuda,
            torch.multiprocessing.spawn, torch.set_default_device, torch.random.fork_rng,
            os.environ.get("TRITON_INTERPRET"),
        )  # fmt: skip

    monkeypatch.setitem(sys.modules, "cuda", ModuleType("cuda"))  # installed, as with torch for GPUs
    before = state()
    for _ in range(2):
        with installed():
            import tilelang
            from cuda import cudart

            assert cudart.cudaMemcpyKind.cudaMemcpyDefault == 4

            assert tilelang.cdiv(3, 2) == 2
            assert torch.zeros(2, device="cuda").is_cuda
            assert torch.cuda.is_available()
            assert importlib.metadata.version("cuda-python")
        assert state() == before


def test_tensors_without_values_are_not_compared():
    torch = pytest.importorskip("torch", reason="needs torch")
    from megatile.compat.tilelang.cpu_torch import NotComparedError
    from megatile.compat.tilelang.takeover import installed

    empty = torch.empty(2, device="meta")
    with installed() as comparisons:
        for compare in (torch.allclose, torch.equal):
            with pytest.raises(NotComparedError, match="tensors without values were not compared"):
                assert compare(empty, empty)
        torch.testing.assert_close(empty, empty)
        assert torch.allclose(torch.ones(2), torch.ones(2))
        assert not torch.equal(torch.ones(2), torch.zeros(2))
    assert comparisons.skipped == 3


def test_a_file_says_what_it_did_not_compare(tmp_path):
    pytest.importorskip("torch", reason="needs torch")
    path = tmp_path / "empty.py"
    path.write_text(
        "import tilelang, torch\nx = torch.empty(2, device='meta')\ntorch.testing.assert_close(x, x)\n"
    )
    done = megatile("-m", "megatile.tilelang", str(path))
    assert (done.returncode, done.stderr) == (0, "not compared: 1 comparison of tensors without values\n")
    path.write_text(path.read_text() + "assert torch.allclose(x, x)\n")
    done = megatile("-m", "megatile.tilelang", str(path))
    assert done.returncode == 1
    assert "NotComparedError" in done.stderr
    assert "not compared: 2 comparisons of tensors without values\n" in done.stderr


def test_kernels_are_predicted_at_larger_extents(check_kernel, good):
    def predicted(*options):
        done = check_kernel(good, "--json", *options)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout[done.stdout.index("{") :])["kernels"][0]

    small, large = predicted(), predicted("--at", "M=512,N=512,K=512")
    for row in (small, large):
        assert row["predicted_us_on_the_machine"] >= row["least_us_on_the_machine"] > 0
    assert large["predicted_us_on_the_machine"] > 2 * small["predicted_us_on_the_machine"]
    assert small["runs"] == large["runs"] == 1


def test_extents_that_are_none_are_refused(check_kernel, good):
    done = check_kernel(good, "--at", "M=many")
    assert done.returncode == 1
    assert done.stderr.startswith("error: --at M=many: 'M=many' is not an extent")


REAL = """
import tilelang
import tilelang.language as T
import torch

@tilelang.jit(out_idx=[-1])
def doubled(M, N, block=64):
    @T.prim_func
    def main(A: T.Tensor((M, N), "float16"), B: T.Tensor((M, N), "float16")):
        with T.Kernel(T.ceildiv(N, block), T.ceildiv(M, block), threads=128) as (bx, by):
            a = T.alloc_shared((block, block), "float16")
            T.copy(A[by * block, bx * block], a)
            for i, j in T.Parallel(block, block):
                a[i, j] = a[i, j] + a[i, j]
            T.copy(a, B[by * block, bx * block])

    return main

def main(M=8192, N=8192):
    kernel = doubled(M, N)
    a = torch.randn(M, N, dtype=torch.float16, device="cuda")
    assert torch.allclose(a, a), "stops what follows, unless it is set aside"
    torch.testing.assert_close(kernel(a), a + a)
    print("once", float((kernel(a) - a).abs().max()) > 0)

main(M=8192)
"""


def checked(check_kernel, path, *options):
    done = check_kernel(path, "--json", *options)
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads(done.stdout[done.stdout.index("{") :])


def test_a_file_runs_with_small_sizes_and_is_predicted_at_its_own(check_kernel, tmp_path):
    pytest.importorskip("torch", reason="needs torch")
    path = tmp_path / "real.py"
    path.write_text(REAL)
    text, found = checked(check_kernel, path)
    [row] = found["kernels"]
    assert text.count("once True") == 1
    assert found["made_small"] == {"m": 8192, "n": 8192}
    assert found["not_compared"] == 2
    assert (row["runs"], row["launches"]) == (2, [{"grid": [4, 4]}])
    assert row["predicted_launches"] == [{"grid": [128, 128]}]
    # 2 · 8192² · 2 bytes at 3350 GB/s, but for 50 MiB of results that may stay in the cache
    least = (4 * 8192**2 - 50 * 2**20) / 3350e9 * 1e6
    assert row["least_us_on_the_machine"] == pytest.approx(least, rel=0.05)
    assert least < row["predicted_us_on_the_machine"] < 2 * least
    [other] = checked(check_kernel, path, "--at", "M=1024,N=2048")[1]["kernels"]
    assert other["predicted_launches"] == [{"grid": [32, 16]}]


def test_sizes_that_belong_together_are_left_as_they_are(check_kernel, tmp_path):
    pytest.importorskip("torch", reason="needs torch")
    path = tmp_path / "fixed.py"
    path.write_text(REAL.replace("torch.randn(M, N", "torch.randn(320, 320").replace("8192", "320"))
    found = checked(check_kernel, path)[1]
    assert found["made_small"] == {}
    assert found["kernels"][0]["launches"] == found["kernels"][0]["predicted_launches"] == [{"grid": [5, 5]}]
