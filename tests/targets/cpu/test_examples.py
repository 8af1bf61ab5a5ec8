"""Every example of the tile language, compiled, in threads and in processes: each compares its results with
NumPy itself."""

import importlib.util
from pathlib import Path

import pytest

import megatile as mt

EXAMPLES = Path(__file__).parents[3] / "examples"
NAMES = sorted(
    path.stem
    for path in EXAMPLES.glob("[0-9]*.py")
    if "import megatile.language as T" in path.read_text("utf-8")
)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("way", [1, 2, "processes"])
def test_example(name: str, way: int | str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def compiled(prog, *arrays, machine, **_):
        if isinstance(way, int):
            mt.compile(prog, threads=way, machine=machine)(*arrays)
        else:
            mt.launch(prog, *arrays, machine=machine, processes=2)

    monkeypatch.setattr(module.mt, "run", compiled)
    module.main()
