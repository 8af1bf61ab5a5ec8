"""``targets/common/toolchain.py``: the C compiler of this computer, and the code it has made."""

import ctypes
import math
from pathlib import Path

import numpy as np
import pytest
from tests.targets.cpu.shared import gemm

import megatile as mt
from megatile.core.cached import CACHE_VARIABLE
from megatile.targets.common.errors import CompileError
from megatile.targets.common.toolchain import Making
from megatile.targets.cpu.generator import PRELUDE


@pytest.mark.parametrize(
    ("command", "said"),
    [("true", "wrote no output"), ("false", "it said nothing"), ("cc 'x", r"\$CC is not a command"),
     ("{bad}", "cannot be loaded")],
)  # fmt: skip
def test_a_compiler_that_does_not_do(
    command: str, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bad = tmp_path / "bad"
    bad.write_text('#!/bin/sh\nwhile [ $# -gt 0 ]; do [ "$1" = -o ] && echo no > "$2"; shift; done\n')
    bad.chmod(0o755)
    monkeypatch.setenv("MEGATILE_CACHE", str(tmp_path))
    monkeypatch.setenv("CC", command.format(bad=bad))
    with pytest.raises(CompileError, match=said):
        Making("int one(void) { return 1; }").load()
    assert not list(tmp_path.glob("cpu-*")), "what is of no use is not kept"


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setitem(__import__("sys").modules, "ziglang", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(CompileError, match=r"there is no C compiler here .*megatile\[native\]"):
        mt.compile(gemm(7, 7, 7), threads=1)
    monkeypatch.setenv("CC", "nocompiler -x")
    with pytest.raises(CompileError, match="CC names 'nocompiler'"):
        mt.compile(gemm(7, 7, 7), threads=1)


def test_code_is_kept_and_a_damaged_file_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    source = "int answer(void) { return 42; }"
    assert Making(source).load().answer() == 42
    (path,) = tmp_path.iterdir()
    assert Making(source).was_cached
    whole = path.read_bytes()
    path.unlink()  # what is loaded keeps its file
    path.write_bytes(whole[:-40])
    assert not Making(source).was_cached
    monkeypatch.setenv(CACHE_VARIABLE, "/proc/nowhere")
    assert Making("int answer(void) { return 7; }").load().answer() == 7


_FUNCTIONS = {
    "exp": (np.exp, [(-104, 88.7), (-1, 1)]), "exp2": (np.exp2, [(-149, 127.9), (-1, 1)]),
    "log": (np.log, [(1e-44, 1e-38), (0.5, 2), (1e-3, 1e4)]), "log2": (np.log2, [(0.5, 2), (1e-3, 1e9)]),
    "tanh": (np.tanh, [(-12, 12), (-1e-3, 1e-3)]), "erf": (np.vectorize(math.erf), [(-5, 5), (-1e-3, 1e-3)]),
}  # fmt: skip


def test_functions_are_within_two_units_of_the_last_place() -> None:
    loops = "".join(
        f"void t_{f}(const float *x, float *y, long n) "
        f"{{ for (long i = 0; i < n; i += W) st_f32(y + i, v{f}(ld_f32(x + i))); }}\n"
        for f in _FUNCTIONS
    )
    for width in (16, 8):
        library = Making(f"#define W {width}\n{PRELUDE}{loops}").load()
        for name, (meaning, ranges) in _FUNCTIONS.items():
            for low, high in ranges:
                x = np.random.default_rng(1).uniform(low, high, 1 << 13).astype(np.float32)
                x[:3] = low, high, 1.0
                y = np.empty_like(x)
                args = [ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(y.ctypes.data), ctypes.c_long(x.size)]
                getattr(library, f"t_{name}")(*args)
                exact = meaning(x.astype(np.float64))
                error = np.abs(y - exact) / np.spacing(np.abs(exact.astype(np.float32)))
                assert error.max() < 2, f"{name} in {low}..{high}: {error.max()} at {x[error.argmax()]}"


def test_what_a_killed_compiler_leaves_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed, left = tmp_path / "killed", tmp_path / "left"
    killed.write_text(f'#!/bin/sh\ntouch "$TMPDIR/cc.s"\nls "$TMPDIR/cc.s" > "{left}"\nkill -9 $$\n')
    killed.chmod(0o755)
    monkeypatch.setenv("MEGATILE_CACHE", str(tmp_path))
    monkeypatch.setenv("CC", str(killed))
    with pytest.raises(CompileError, match="it said nothing"):
        Making("int two(void) { return 2; }").load()
    assert not Path(left.read_text().strip()).parent.exists()
