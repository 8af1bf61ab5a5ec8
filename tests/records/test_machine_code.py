"""Object code of the engine that is kept and of no use is made again."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatile.core.cached import CACHE_VARIABLE, read_cached, write_cached
from megatile.records import machine_code
from megatile.sim import plain

llvm = pytest.importorskip("llvmlite.binding", reason="needs llvmlite")


def test_an_object_that_does_not_load_or_lacks_its_symbol(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    # The engine itself takes seconds.
    monkeypatch.setattr(
        machine_code, "translate", lambda nodes, by_hand: "define i64 @run(i64 %s) { ret i64 7 }"
    )
    assert machine_code.MachineCode(plain.FUNCTIONS)._run(0) == 7
    (path,) = (tmp_path / "cache").iterdir()
    good = read_cached(path)
    machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
    empty = machine.emit_object(llvm.parse_assembly("define i64 @other() { ret i64 0 }"))
    for bad in (b"no object code", b"", empty):
        write_cached(path, bad)
        assert machine_code.MachineCode(plain.FUNCTIONS)._run(0) == 7
        assert read_cached(path) == good
    monkeypatch.setattr(machine_code, "translate", None)
    assert machine_code.MachineCode(plain.FUNCTIONS)._run(0) == 7, "what is kept is used"
