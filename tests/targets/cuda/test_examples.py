"""Every example of one device as CUDA source, run on the CPU: each compares its results with NumPy itself."""

import importlib.util
from pathlib import Path

import pytest

import megatile as mt
from megatile.core.errors import MegatileError

EXAMPLES = Path(__file__).parents[3] / "examples"
ONE_DEVICE = ("20", "21", "22", "23", "25", "26", "27", "28", "37", "38", "39")


def example(number: str):
    (path,) = EXAMPLES.glob(f"{number}_*.py")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def as_cuda(prog, *arrays, machine, **_):
    mt.compile(prog, target="cuda", machine=machine)(*arrays)


@pytest.mark.parametrize("number", ONE_DEVICE)
def test_example(number: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = example(number)
    monkeypatch.setattr(module.mt, "run", as_cuda)
    module.main()


def test_flash_mla_on_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    module = example("29")
    many = module.flash_mla
    monkeypatch.setattr(module, "flash_mla", lambda *sizes: many(*sizes[:-1], devices=1))
    monkeypatch.setattr(module.mt, "run", as_cuda)
    module.main()


def test_what_cannot_be_written_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    module = example("24")
    monkeypatch.setattr(module.mt, "run", as_cuda)
    with pytest.raises(MegatileError, match="runs on 4 units of scale 'device'"):
        module.main()
