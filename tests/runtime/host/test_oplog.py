"""``runtime/host/oplog.py``: the op log."""

from __future__ import annotations

import numpy as np
import pytest
from tests.runtime.host.replay_cases import double

import megatile as mt
from megatile.runtime.host.oplog import ReplayError


def test_parquet_tells_the_same(tmp_path) -> None:
    pytest.importorskip("pyarrow", reason="needs pyarrow")
    import pyarrow.parquet as parquet

    with mt.host("ahbm", log=True) as torch:
        x = torch.tensor(np.ones(4), dtype="f16", name="x")
        torch.launch("double", double, x)
        path = torch.op_log.write(tmp_path / "ops.parquet")
    assert mt.replay(path, {"x": np.ones(4)})["x"].tolist() == [2] * 4
    assert "mul" in parquet.read_table(path)["op"].to_pylist()
    (tmp_path / "no.parquet").write_text("no")
    with pytest.raises(ReplayError, match="cannot be read as Parquet"):
        mt.replay(tmp_path / "no.parquet")
