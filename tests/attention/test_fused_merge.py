"""The fused merge without a GPU: interpreted, compiled for both vendors, and chosen where it can run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: there is nothing to merge")

from tests.attention.attention_merges import Operations, many_merges  # noqa: E402

from megatile.attention import hamilton_attention  # noqa: E402
from megatile.attention.errors import AttentionError  # noqa: E402
from megatile.attention.merge import merge_form  # noqa: E402
from megatile.timing.attention_kernels import MERGES  # noqa: E402

NO_TRITON = "Triton is not installed: the fused merge can be neither compiled nor interpreted"


def test_thousands_of_merges_are_as_exact_as_one():
    error, plain, out = many_merges(4000, "torch")
    assert plain > 1e-5  # what a single f32 comes to
    assert error <= 2**-21 + 1e-7  # half of the last digit of 8 to 16, and a little
    assert out < 2e-6


def test_the_interpreted_kernel_merges_as_torch_does():
    """Triton decides when it is imported, so the cases have a process of their own."""
    pytest.importorskip("triton", reason=NO_TRITON)
    cases = Path(__file__).with_name("fused_merge_cases.py")
    source = Path(sys.modules["megatile"].__file__).parents[1]
    paths = [str(source), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", "0", str(cases)],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(paths)},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^\d+ passed", done.stdout, re.MULTILINE), done.stdout
    assert "skipped" not in done.stdout


# -- compiled ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """The kernel for bf16 blocks of 128 columns (f32 and odd sizes on request), as text for one vendor."""
    pytest.importorskip("triton", reason=NO_TRITON)
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from megatile.attention.fused_merge import merge_kernel, tile_of

    targets = {"NVIDIA": GPUTarget("cuda", 90, 32), "AMD": GPUTarget("hip", "gfx942", 64)}

    def make(vendor, dtype="bf16", dim=128):
        rows, width = tile_of(dim)
        constants = {"DIM": dim, "WIDTH": width, "ROWS": rows}
        constants |= dict.fromkeys(("block_column", "out_column", "lse_row", "block_lse_row"), 1)
        tensors = dict.fromkeys(("block_lse", "out", "lse", "rest"), "*fp32") | {"block": f"*{dtype}"}
        signature, attributes = {}, {}
        for number, name in enumerate(merge_kernel.arg_names):
            signature[name] = "constexpr" if name in constants else tensors.get(name, "i32")
            # As a launch finds them: aligned memory, strides that are multiples of 16.
            if dim % 16 == 0 and name not in (*constants, "rows", "heads"):
                attributes[number,] = [["tt.divisibility", 16]]
        source = ASTSource(merge_kernel, signature, constants, attributes)
        found = triton.compile(source, target=targets[vendor], options={"enable_fp_fusion": False})
        return found, rows * width

    before = os.environ.get("TRITON_CACHE_DIR")
    os.environ["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("triton"))
    yield make
    os.environ.pop("TRITON_CACHE_DIR") if before is None else os.environ.update(TRITON_CACHE_DIR=before)


def accesses(text):
    """Of Triton's own text: what is loaded and stored, as (operation, shape, bits)."""
    found = re.findall(r"tt\.(load|store) .*: tensor<([\dx]+)x!tt\.ptr<[a-z]+(\d+)>>", text)
    assert len(found) == len(re.findall(r"tt\.(?:load|store)\b", text))
    return [(operation, shape, int(bits)) for operation, shape, bits in found]


@pytest.mark.parametrize("vendor", ["NVIDIA", "AMD"])
@pytest.mark.parametrize(("dtype", "bits"), [("bf16", 16), ("fp16", 16), ("fp32", 32)])
def test_everything_is_read_and_written_once(compiled, vendor, dtype, bits):
    kernel, _ = compiled(vendor, dtype)
    whole, rows = "16x128", "16"
    assert sorted(accesses(kernel.asm["ttir"])) == sorted(
        [("load", whole, bits), ("load", whole, 32), ("store", whole, 32)]
        + [("load", rows, 32)] * 3
        + [("store", rows, 32)] * 2
    )
    elements = sum(b // 8 for _, shape, b in accesses(kernel.asm["ttir"]) if shape == whole)
    assert elements == MERGES["fused"].traffic(bits // 8)  # as the prediction counts them
    assert "scf." not in kernel.asm["ttir"]  # no loops
    assert "f64" not in kernel.asm["ttir"]


def test_nvidia_code_moves_16_bytes_at_a_time_and_spills_nothing(compiled):
    kernel, tile = compiled("NVIDIA")
    code = kernel.asm["ptx"]
    wide = {kind: len(re.findall(rf"{kind}\.global\.v4\.b32", code)) for kind in ("ld", "st")}
    threads = 32 * kernel.metadata.num_warps
    assert wide == {"ld": tile * (2 + 4) // (16 * threads), "st": tile * 4 // (16 * threads)}
    assert not re.search(r"(ld|st)\.local", code)
    assert len(kernel.asm["cubin"]) > 0
    last_load, barrier = (max(m.start() for m in re.finditer(x, code)) for x in (r"ld\.global", r"bar\.sync"))
    assert last_load < barrier < code.index("st.global")


def test_amd_code_moves_16_bytes_at_a_time_and_spills_nothing(compiled):
    kernel, tile = compiled("AMD")
    code = kernel.asm["amdgcn"]
    wide = {x: len(re.findall(rf"(?:global|buffer)_{x}_dwordx4", code)) for x in ("load", "store")}
    threads = 64 * kernel.metadata.num_warps
    assert wide == {"load": tile * (2 + 4) // (16 * threads), "store": tile * 4 // (16 * threads)}
    assert "scratch_" not in code
    assert len(kernel.asm["hsaco"]) > 0


@pytest.mark.parametrize("vendor", ["NVIDIA", "AMD"])
@pytest.mark.parametrize("dim", [1, 40, 96, 192, 4096])
def test_any_number_of_columns_compiles(compiled, vendor, dim):
    kernel, _ = compiled(vendor, dim=dim)
    assert len(accesses(kernel.asm["ttir"])) == 8


def test_a_run_of_rows_is_one_launch_and_nothing_else(monkeypatch):
    pytest.importorskip("triton", reason=NO_TRITON)
    from megatile.attention import fused_merge, merge

    grids = []

    class Launches:
        def __getitem__(self, grid):
            return lambda *args, **kwargs: grids.append(grid)

    monkeypatch.setattr(merge, "merge_form", lambda device: "fused")
    monkeypatch.setattr(fused_merge, "merge_kernel", Launches())
    result = merge.Accumulator(2, 100, 3, 128, torch.device("cpu"))
    block = torch.ones(2, 100, 3, 128, dtype=torch.bfloat16), torch.ones(2, 3, 100)
    result.add([(0, 100)], *block)
    with Operations(2 * 100 * 3 * 128) as seen:
        result.add([(0, 100)], *block)
        result.add([(2, 20), (50, 51)], block[0][:, :19], block[1][:, :, :19])
    assert not seen.bytes  # no kernel of torch's own
    assert len(grids) == 3 * MERGES["fused"].kernels
    assert grids == [(2 * 3 * 7,), (2 * 3 * 2,), (2 * 3 * 1,)]  # 16 rows of one head each


# -- chosen -----------------------------------------------------------------------------------------------


def test_the_form_can_be_asked_for_and_seen(monkeypatch):
    monkeypatch.delenv("MEGATILE_ATTENTION_MERGE", raising=False)
    assert merge_form("cpu") == "torch"
    for form, message in (
        ("fussed", "MERGE is one of fused, torch, got 'fussed'.*did you mean 'fused'"),
        ("fused", "is for GPUs, these tensors are on 'cpu'|needs Triton"),
    ):
        monkeypatch.setenv("MEGATILE_ATTENTION_MERGE", form)
        x = torch.zeros(1, 4, 2, 8)
        with pytest.raises(AttentionError, match=f"(?s){message}"):
            hamilton_attention(x, x, x)
    monkeypatch.setenv("MEGATILE_ATTENTION_MERGE", "torch")
    assert merge_form("cuda") == "torch"


def test_gpus_without_triton_merge_by_torch(monkeypatch):
    monkeypatch.delenv("MEGATILE_ATTENTION_MERGE", raising=False)
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "megatile.attention.fused_merge", raising=False)
    monkeypatch.delattr("megatile.attention.fused_merge", raising=False)
    assert merge_form("cuda") == "torch"
    monkeypatch.setenv("MEGATILE_ATTENTION_MERGE", "fused")
    with pytest.raises(AttentionError, match=r"(?s)needs Triton.*pip install triton"):
        merge_form("cuda")


def test_gpus_on_which_the_kernel_does_not_run_merge_by_torch(monkeypatch):
    """No compiler, no driver: said once, and nothing is lost."""
    pytest.importorskip("triton", reason=NO_TRITON)
    from megatile.attention import fused_merge

    monkeypatch.delenv("MEGATILE_ATTENTION_MERGE", raising=False)
    with pytest.warns(RuntimeWarning, match="merged by torch's own kernels: Triton's did not run"):
        assert not fused_merge.runs_on(torch.device("cpu"))
    monkeypatch.setattr(fused_merge, "runs_on", lambda device: False)
    assert merge_form("cuda") == "torch"
    monkeypatch.setattr(fused_merge, "runs_on", lambda device: True)
    assert merge_form("cuda:1") == "fused"


def test_importing_attention_does_not_import_triton():
    code = (
        "import sys, torch\nalone = 'triton' in sys.modules\n"  # torch's own imports are its own
        "import megatile, megatile.attention as a\n"
        "a.hamilton_attention, a._update_out_and_lse\n"
        "assert not any(name.startswith('megatile.attention.fused') for name in sys.modules)\n"
        "assert ('triton' in sys.modules) == alone\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
