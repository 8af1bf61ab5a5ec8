"""Examples of one device, compiled: each compares its results with NumPy itself."""

import importlib.util
from pathlib import Path

import pytest

import megatile as mt

EXAMPLES = Path(__file__).parents[3] / "examples"
NAMES = [
    "20_vector_add", "21_gemm_block", "23_gemm_cluster", "25_softmax", "26_rmsnorm", "27_flash_attention",
    "28_flash_attention_backward", "39_ticket_queue",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("threads", [1, 2])
def test_example(name: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def compiled(prog, *arrays, machine, **_):
        mt.compile(prog, threads=threads, machine=machine)(*arrays)

    monkeypatch.setattr(module.mt, "run", compiled)
    module.main()
