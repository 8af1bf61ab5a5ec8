"""``runtime/plan_work.py``: files of inputs that a process reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from megatile.plan.model import Tile


@pytest.mark.parametrize("shape", [(2, 3), (0, 3)])
def test_inputs_are_read_as_they_were_written(tmp_path: Path, shape: tuple[int, ...]) -> None:
    pytest.importorskip("torch")
    from megatile.runtime.plan_work import _read

    data = np.arange(np.prod(shape), dtype="f4").reshape(shape)
    (tmp_path / "in").write_bytes(data.tobytes())
    found = _read(tmp_path / "in", Tile("x", shape, "f32", "hbm")).numpy()
    assert found.shape == shape
    assert (found == data).all()
