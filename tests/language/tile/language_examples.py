"""Loads examples as modules and takes the programs out of their runs."""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import megatile as mt

FOLDER = Path(__file__).parents[3] / "examples"
NAMES = sorted(p.stem for p in FOLDER.glob("[0-9]*.py") if "megatile.language as T" in p.read_text("utf-8"))


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def runs(
    name: str, monkeypatch: Any, machine: Any = "dgx-h100"
) -> list[tuple[Any, tuple[Any, ...], tuple[Any, ...]]]:
    """Every run of an example as (program, arrays before, arrays after)."""
    module = load(name)
    seen = []
    original = mt.run

    def spy(prog: Any, *arrays: Any, **options: Any) -> Any:
        before = tuple(a.copy() for a in arrays)
        result = original(prog, *arrays, **options)
        seen.append((prog, before, arrays))
        return result

    monkeypatch.setattr(module.mt, "run", spy)
    try:
        module.main(machine)
    finally:
        monkeypatch.setattr(module.mt, "run", original)
    return seen
