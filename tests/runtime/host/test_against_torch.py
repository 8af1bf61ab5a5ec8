"""The same script on real processes of torch and on a simulated machine gives the same numbers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.patience import patience
from tests.runtime.host.torch_script import script

import megatile as mt

pytest.importorskip("torch", reason="needs torch")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The results of torch itself, for all sizes."""
    there = tmp_path_factory.mktemp("torch")
    program = Path(__file__).with_name("torch_script.py")
    subprocess.run([sys.executable, str(program), str(there)], check=True, timeout=patience(120))
    return there


@pytest.mark.parametrize("size", [2, 4])
def test_torch_is_the_judge(size: int, folder: Path) -> None:
    found: dict[int, dict] = {}

    def worker(rank: int) -> None:
        torch.accelerator.set_device_index(rank)
        torch.distributed.init_process_group()
        found[rank] = script(rank, size, torch, lambda a: torch.empty(a.shape, dtype="f32").copy_(a))

    with mt.host("ahbm", sips=size) as torch:
        torch.multiprocessing.spawn(worker, nprocs=size)
    for rank, mine in found.items():
        theirs = np.load(folder / f"{size}.{rank}.npz")
        assert set(theirs.files) == set(mine)
        for name in mine:
            np.testing.assert_array_equal(mine[name], theirs[name], err_msg=f"rank {rank}: {name}")
