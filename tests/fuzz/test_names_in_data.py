"""Names of files and modules that stand in data are neither opened nor imported."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from megatile.collectives.choice_table import read_entry
from megatile.core.errors import MegatileError, Place
from megatile.hda import HDA, machine
from megatile.timing.database import Database, Measurement, predict_kernel
from megatile.trace import TraceBuilder, read_trace, write_trace

DATA = Path(__file__).parents[1] / "data"
NAME = "megatile_named_in_data"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module whose import is a mistake, and a machine file that cannot be read, in the working folder."""
    (tmp_path / f"{NAME}.py").write_text("raise SystemExit('imported')\n")
    (tmp_path / f"{NAME}.yaml").write_text("not a machine\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return NAME


def test_a_component_of_a_kernbench_file(module: str, tmp_path: Path) -> None:
    text = (
        (DATA / "topology.yaml")
        .read_text()
        .replace("kind: pe_gemm,", f"kind: pe_gemm, impl: '{module}:run',")
    )
    assert module in text
    (tmp_path / "topology.yaml").write_text(text)
    assert HDA.from_yaml(tmp_path / "topology.yaml").engines
    assert module not in sys.modules


def test_an_algorithm_of_a_table_of_choices(module: str) -> None:
    with pytest.raises(MegatileError, match="there is no algorithm"):
        read_entry([f"{module}:run", {}, "auto"], Place("t.json"))
    assert module not in sys.modules


def test_a_machine_of_a_database_and_of_a_trace(module: str, tmp_path: Path) -> None:
    name = str(tmp_path / f"{module}.yaml")
    shape = {"m": 64, "n": 64, "k": 64}
    with Database(tmp_path / "d.sqlite") as database:
        database.add([Measurement(name, "gemm", "bf16", "", shape, 1.0)])
        found = predict_kernel("gemm", machine=machine("dgx-h100"), dtype="bf16", database=database, **shape)
    assert found.origin.kind == "rule"
    b = TraceBuilder(name)
    b.add(unit="u", engine="dma", operation="copy", start_ps=0, end_ps=1)
    assert read_trace(write_trace(b.build(), tmp_path / "t.json")).machine == name
