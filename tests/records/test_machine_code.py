"""Object code of the engine that is kept and of no use is made again."""

from __future__ import annotations

import platform
import struct
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


@pytest.mark.skipif(platform.machine() != "x86_64", reason="relocations of x86-64")
def test_parts_of_the_code_may_lie_gigabytes_apart() -> None:
    """LLVM ends the process where a relocation of 32 bits does not reach, which only the loader decides."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    text = "@x = global i64 1\ndefine i64 @run() { %v = call i64 @f()\n ret i64 %v }\n"
    text += "define i64 @f() noinline { %v = ptrtoint ptr @x to i64\n ret i64 %v }"
    code = machine_code._target_machine().emit_object(llvm.parse_assembly(text))
    (sections,), (count,) = struct.unpack_from("<Q", code, 0x28), struct.unpack_from("<H", code, 0x3C)
    kinds = set()
    for at in range(sections, sections + 64 * count, 64):
        (kind,) = struct.unpack_from("<I", code, at + 4)
        offset, size = struct.unpack_from("<QQ", code, at + 24)
        if kind == 4:  # relocations with addends
            kinds |= {struct.unpack_from("<I", code, i + 8)[0] for i in range(offset, offset + size, 24)}
    assert kinds <= {1, 24}, "only R_X86_64_64 and R_X86_64_PC64"
    assert kinds
