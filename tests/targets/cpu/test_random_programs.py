"""Random programs at four scales, compiled: equal to NumPy with one thread, with two and in processes, and
what the sanitizers for addresses and undefined behaviour find in them is nothing.

``MEGATILE_RANDOM_PROGRAMS=300`` tries more of them.
"""

import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.language.tile.random_programs import RandomProgram, random_program
from tests.language.tile.random_reach import reaching_program

import megatile as mt
from megatile.language.tile.errors import ProgramWarning
from megatile.targets.common.toolchain import compiler

COUNT = int(os.environ.get("MEGATILE_RANDOM_PROGRAMS", "16"))
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def check(seed: int, options: tuple[str, ...] = ()) -> None:
    for case in (random_program(seed), reaching_program(seed)):
        for threads in (1, 2):
            equal(case, lambda *a, t=threads, p=case.program: compiled(p, t, options)(*a))


def compiled(program: Any, threads: int, options: tuple[str, ...]) -> Any:
    return mt.compile(program, machine="dgx-h100", threads=threads, options=options)


def equal(case: RandomProgram, run: Callable[..., Any]) -> None:
    arrays = case.arrays()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ProgramWarning)
        run(*arrays)
    for got, wanted in zip(arrays[4:], case.expected(), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-4, err_msg=str(case.steps))


@pytest.mark.parametrize("seed", range(COUNT))
def test_random_program(seed: int) -> None:
    check(seed)


@pytest.mark.parametrize("seed", range(COUNT))
def test_random_program_in_processes(seed: int) -> None:
    for case in (random_program(seed), reaching_program(seed)):
        count = min(2, case.config.units)
        equal(case, lambda *a, c=count, p=case.program: mt.launch(p, *a, machine="dgx-h100", processes=c))


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


def test_sanitizers_find_planted_errors() -> None:
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
