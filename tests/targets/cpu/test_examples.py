"""Every example of the tile language, compiled: each compares its results with NumPy itself."""

import importlib.util
from pathlib import Path

import pytest

import megatile as mt

EXAMPLES = Path(__file__).parents[3] / "examples"
NAMES = sorted(path.stem for path in EXAMPLES.glob("[23][0-9]_*.py"))


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
