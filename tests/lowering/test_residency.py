"""``lowering/residency.py``: how many instances a hardware unit holds, where they lie, and how many
versions of a tile fit."""

import ctypes
import re
import subprocess
from pathlib import Path
from statistics import median

import pytest
from tests.targets.cuda.test_compile import gemm
from tests.targets.cuda.test_nvrtc import library, to_ptx

import megatile as mt
import megatile.language as T
from megatile.lowering.residency import bytes_of

# Rows, columns and depth of a tile, stages, threads; registers of a thread by ptxas 12.9 for sm_80 and sm_90.
PTXAS = {
    (32, 32, 32, 3, 128): (44, 40), (64, 32, 32, 3, 128): (56, 60), (64, 64, 32, 1, 128): (76, 78),
    (64, 64, 32, 3, 128): (86, 88), (128, 64, 32, 1, 128): (136, 128), (128, 64, 32, 3, 128): (138, 122),
    (128, 128, 32, 3, 128): (227, 230), (128, 128, 64, 1, 128): (168, 168),
    (192, 128, 32, 3, 128): (255, 255), (128, 128, 64, 3, 256): (124, 124),
    (256, 128, 64, 3, 256): (224, 228),
}  # fmt: skip


MACHINES = ("hgx-a100", "dgx-h100")


def program(rows: int, columns: int, depth: int, stages: int, threads: int = 128):
    return gemm(512, 512, 512, rows, columns, depth, "bf16", stages=stages, threads=threads)


def registers(prog, machine: str, threads: int = 128) -> float:
    """What we count for a thread."""
    low = mt.lower(prog, machine=machine)
    return bytes_of(low.state, low.state.levels["block"], 1)["registers"] / 4 / threads


@pytest.mark.parametrize("machine", MACHINES)
def test_registers_are_near_those_of_ptxas(machine: str) -> None:
    found = {key: registers(program(*key), machine, key[-1]) for key in PTXAS}
    apart = {key: found[key] / regs[MACHINES.index(machine)] - 1 for key, regs in PTXAS.items()}
    assert max(map(abs, apart.values())) < 0.28, apart
    assert median(map(abs, apart.values())) < 0.14, apart


def test_ptxas_still_says_so(tmp_path: Path) -> None:
    triton = pytest.importorskip("triton", reason="needs ptxas, which Triton brings")
    ptxas, text = Path(triton.__file__).parent / "backends/nvidia/bin/ptxas", tmp_path / "kernel.ptx"
    assert isinstance(library(), ctypes.CDLL)
    for key in ((64, 64, 32, 3, 128), (128, 128, 64, 3, 256)):
        text.write_text(to_ptx(mt.compile(program(*key), target="cuda").source))
        for chip, recorded in zip(("sm_80", "sm_90"), PTXAS[key], strict=True):
            told = subprocess.run(
                [ptxas, "-v", f"-arch={chip}", text, "-o", tmp_path / "kernel.cubin"],
                capture_output=True, text=True,
            )  # fmt: skip
            if "Unsupported .version" in told.stderr:
                pytest.skip("Triton's ptxas is older than NVRTC")
            told.check_returncode()
            (used,) = re.findall(r"Used (\d+) registers", told.stderr)
            assert abs(int(used) / recorded - 1) < 0.1


def test_blocks_whose_accumulators_fill_the_registers_do_not_fit_together() -> None:
    """Accumulators of four blocks are the whole register file; with their operands, those of two are."""
    low = mt.lower(program(128, 128, 32, 2), machine="dgx-h100")
    assert low.plan.levels[0].slots == 2
    assert "2 resident on each of 132 SMs, 0.06 waves (limited by registers)" in low.explain()


def test_compilers_spill_rather_than_refuse() -> None:
    assert registers(program(192, 128, 32, 3), "dgx-h100") == 255


def test_what_limits_does_not_depend_on_hash_order() -> None:
    for machine in ("dgx-h100", "mi300x-8"):
        low = mt.lower(program(64, 64, 32, 3), machine=machine)
        needed = list(bytes_of(low.state, low.state.levels["block"], 1))
        assert needed == [m.name for m in low.machine.memories if m.name in needed]
        assert len(needed) == 2


@pytest.mark.parametrize(("threads", "resident"), [(32, 32), (64, 32), (128, 16), (512, 4), (1024, 2)])
def test_threads_limit_the_blocks_of_an_sm(threads, resident):
    """2048 threads and 32 blocks fit on one SM of an H100."""

    @T.program
    def double(X: T.Tensor((4096, 1024), "f32"), Y: T.Tensor((4096, 1024), "f32")):
        with T.Kernel(block=4096, threads=threads) as b:
            x = T.alloc((1, 1024), "f32", level="l0")
            T.copy(x, X[b, 0])
            for i, j in T.Parallel(1, 1024):
                x[i, j] = x[i, j] * 2.0
            T.copy(Y[b, 0], x)

    (level,) = mt.lower(double, machine="dgx-h100").plan.levels
    assert level.slots == resident


def handed_on(blocks: int, reach: bool):
    """Two warp groups of each block, by flags of the block: its own, or (``reach``) the next block's."""

    @T.program
    def program(X: T.Tensor((blocks, 64), "f32"), Y: T.Tensor((blocks, 64), "f32")):
        with T.Kernel(block=blocks, warpgroup=2) as b:
            x = T.alloc((64,), "f32", level="l1")
            full = T.alloc((1,), "i32", level="l1")
            if reach:
                T.signal(full[0], dst=(b + 1) % blocks)
            with T.Scale("warpgroup") as (wg, _):
                if wg == 0:
                    T.copy(x, X[b, 0:64])
                    T.signal(full[0])
                else:
                    T.wait(full[0], 2 if reach else 1)
                    T.copy(Y[b, 0:64], x)

    return program


def test_blocks_that_signal_only_themselves_run_in_waves() -> None:
    assert mt.simulate(handed_on(5000, False), machine="dgx-h100").time_ns > 0
    with pytest.raises(mt.MegatileError, match="5000 instances of 'block' wait for each other"):
        mt.simulate(handed_on(5000, True), machine="dgx-h100")
