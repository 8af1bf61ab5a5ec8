"""A sample of what ``benchmarks/cuda_instructions.py`` counts: by NVIDIA's compiler, nothing is spilled."""

import os
import shutil
from pathlib import Path

import pytest

import megatile as mt
from cuda_instructions import PROGRAMS, report


@pytest.mark.parametrize(("name", "arch"), [("flash attention", "sm_90"), ("gemm fp8", "sm_80")])
def test_no_register_is_spilled(name: str, arch: str, tmp_path: Path) -> None:
    if shutil.which("nvcc") is None or shutil.which("ptxas") is None:
        pytest.skip("needs nvcc and ptxas")
    source = mt.compile(PROGRAMS[name](), target="cuda").source
    counts, registers, spilled = report(source, arch, tmp_path, dict(os.environ))
    assert spilled == 0
    assert 64 < registers < 256
    assert not counts or counts["ldmatrix"] > 0
