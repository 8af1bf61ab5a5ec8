"""Random programs at four scales, compiled: equal to NumPy with one thread and with two, and what the
sanitizers for addresses and undefined behaviour find in them is nothing.

``MEGATILE_RANDOM_PROGRAMS=300`` tries more of them.
"""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from tests.language.tile.random_programs import random_program

import megatile as mt
from megatile.language.tile.errors import ProgramWarning
from megatile.targets.common.toolchain import compiler

COUNT = int(os.environ.get("MEGATILE_RANDOM_PROGRAMS", "16"))
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def check(seed: int, options: tuple[str, ...] = ()) -> None:
    case = random_program(seed)
    expected = case.expected()
    for threads in (1, 2):
        arrays = case.arrays()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ProgramWarning)
            mt.compile(case.program, machine="dgx-h100", threads=threads, options=options)(*arrays)
        for got, wanted in zip(arrays[4:], expected, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-4, err_msg=str(case.steps))


@pytest.mark.parametrize("seed", range(COUNT))
def test_random_program(seed: int) -> None:
    check(seed)


def sanitized(code: str) -> subprocess.CompletedProcess[str]:
    """Python with the sanitizer's library loaded before anything else."""
    asked = [*compiler(), "-print-file-name=libasan.so"]
    library = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    if not Path(library).is_absolute():
        pytest.skip("this C compiler has no sanitizer for addresses")
    before = {"LD_PRELOAD": library, "ASAN_OPTIONS": "detect_leaks=0"}
    begin = f"import sys; sys.path[:] = {sys.path!r}\n"
    return subprocess.run(
        [sys.executable, "-c", begin + code],
        env={**os.environ, **before},
        capture_output=True,
        text=True,
        check=False,
    )


def test_sanitizers_find_nothing() -> None:
    done = sanitized(
        f"""
from {__name__} import SANITIZERS, check
for seed in range({COUNT} // 8):
    check(seed, SANITIZERS)
print("done")
"""
    )
    assert done.stdout == "done\n", done.stderr


def test_sanitizers_find_what_is_there() -> None:
    wrong = "long megatile(long *a, long i) { return a[i]; }"
    done = sanitized(
        f"""
import ctypes
import numpy as np
from {__name__} import SANITIZERS
from megatile.targets.common.toolchain import Making
a = np.zeros(1000)
Making({wrong!r}, SANITIZERS).load().megatile(ctypes.c_void_p(a.ctypes.data), ctypes.c_long(1000))
"""
    )
    assert "heap-buffer-overflow" in done.stderr
