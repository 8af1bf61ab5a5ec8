"""Every example program, lowered: the executed Plan gives what the interpreter gives."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import megatile as mt

FOLDER = Path(__file__).parents[2] / "examples"
EXAMPLES = sorted((*FOLDER.glob("[23][0-9]_*.py"), *FOLDER.glob("4[45]_*.py")))


def programs_of(path: Path) -> list[tuple[Any, list[Any], str]]:
    """The programs that an example runs, each with its arrays as they were, and the machine."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: list[tuple[Any, list[Any], str]] = []

    class Watched:
        def __getattr__(self, name: str) -> Any:
            return getattr(mt, name)

        @staticmethod
        def run(prog: Any, *arrays: Any, machine: str = "dgx-h100", **options: Any) -> Any:
            found.append((prog, [np.array(a) for a in arrays], machine))
            return mt.run(prog, *arrays, machine=machine, **options)

    module.mt = Watched()  # type: ignore[attr-defined]
    module.main()
    return found


def same(got: np.ndarray, wanted: np.ndarray) -> bool:
    """Equal within what another order of sums in the type changes."""
    if got.dtype.kind in "iub":
        return bool(np.array_equal(got, wanted))
    wide = (got.astype(np.float64), wanted.astype(np.float64))
    loose = 2e-2 if got.dtype.itemsize < 4 else 1e-4
    return bool(np.allclose(*wide, rtol=loose, atol=loose, equal_nan=True))


def test_blocks_do_not_wait_for_a_put_that_does_not_concern_them() -> None:
    (path,) = (p for p in EXAMPLES if p.stem.startswith("30_"))
    ((prog, arrays, machine),) = programs_of(path)
    lines = [line.strip() for line in str(mt.lower(prog, *arrays, machine=machine).plan).splitlines()]
    go, put, done = (
        next(i for i, line in enumerate(lines) if word in line) for word in ("signal(go", " @ (", "wait(done")
    )
    assert go < put < done


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_executes_as_it_is_interpreted(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for prog, arrays, machine in programs_of(path):
        wanted = [a.copy() for a in arrays]
        mt.run(prog, *wanted, machine=machine)
        lowered = mt.lower(prog, *arrays, machine=machine)
        mt.check(lowered)
        got = mt.execute(lowered, *arrays)
        for param, before, after in zip(lowered.program.params, arrays, wanted, strict=True):
            assert same(got.get(param.name, before), after), f"{path.stem}: {param.name}"
        assert mt.Plan.from_text(str(lowered.plan)) == lowered.plan
        assert mt.Plan.from_json(lowered.plan.to_json()) == lowered.plan
