"""Count the instructions of our CUDA source: ``python benchmarks/cuda_instructions.py [--arch sm_90] [NAME]``

Needs ``nvcc`` and, for all but registers and spills, ``nvdisasm`` (``pip install nvidia-cuda-nvdisasm``, with
``--path FOLDER`` where it is not on the PATH). Prints static counts of SASS by kind, registers of a thread
and the bytes that it spills. No GPU is needed, and none is used: counts are no times.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import megatile as mt
import megatile.language as T

EXAMPLES = Path(__file__).parent.parent / "examples"
KINDS = {
    "mma": r"[HIQ]MMA", "ldmatrix": "LDSM", "shared loads": r"LDS(?!M)", "shared stores": "STS",
    "cp.async": "LDGSTS", "global loads": r"LDG\.", "of 16 B": r"LDG\.[\w.]*128", "global stores": "STG",
    "of 16 B ": r"STG\.[\w.]*128", "barriers": "BAR|SYNCS", "all": r"\w",
}  # fmt: skip
"""Columns: the instructions that count for each, by how they begin."""


def example(number: str) -> Any:
    (path,) = EXAMPLES.glob(f"{number}_*.py")
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def gemm(dtype: str, total: str = "f32", out: str = "f32", depth: int = 64, turned: bool = False) -> Any:
    """4096³ in tiles of 128 × 128, four warps, three stages."""
    size, tile = 4096, 128

    @T.program
    def product(
        A: T.Tensor((size, size), dtype), B: T.Tensor((size, size), dtype), C: T.Tensor((size, size), out)
    ):
        with T.Kernel(block=(size // tile, size // tile), threads=128) as (bx, by):
            a = T.alloc((tile, depth), dtype, level="l1")
            b = T.alloc((tile, depth) if turned else (depth, tile), dtype, level="l1")
            c = T.alloc((tile, tile), total, level="l0")
            T.clear(c)
            for k in T.Pipelined(size // depth, num_stages=3):
                T.copy(a, A[by * tile, k * depth])
                if turned:
                    T.copy(b, B[bx * tile, k * depth])
                else:
                    T.copy(b, B[k * depth, bx * tile])
                T.gemm(a, b, c, transpose_B=turned)
            T.copy(C[by * tile, bx * tile], c)

    return product


def convolution(
    size: int = 64, channels: int = 64, filters: int = 128, window: int = 3, rows: int = 128
) -> Any:
    """Patches are gathered to shared memory, a window's pixel at a time."""
    out = size - window + 1

    @T.program
    def conv(
        X: T.Tensor((size, size, channels), "f16"), F: T.Tensor((window * window * channels, filters), "f16"),
        Y: T.Tensor((out * out, filters), "f16"),
    ):  # fmt: skip
        with T.Kernel(block=T.ceildiv(out * out, rows), threads=128) as bx:
            a = T.alloc((rows, channels), "f16", level="l1")
            f = T.alloc((channels, filters), "f16", level="l1")
            y = T.alloc((rows, filters), "f32")
            T.clear(y)
            for t in T.serial(window * window):
                for i, j in T.Parallel(rows, channels):
                    at = T.min(bx * rows + i, out * out - 1)
                    a[i, j] = X[at // out + t // window, at % out + t % window, j]
                T.copy(f, F[t * channels, 0])
                T.gemm(a, f, y)
            T.copy(Y[bx * rows, 0], y)

    return conv


def specialised(size: int = 4096, depth: int = 64, slots: int = 3) -> Any:
    """One warp group loads, two multiply."""
    steps = size // depth

    @T.program
    def roles(
        A: T.Tensor((size, size), "f16"), B: T.Tensor((size, size), "f16"), C: T.Tensor((size, size), "f16")
    ):
        with T.Kernel(block=(size // 128, size // 128), warpgroup=3) as (bx, by):
            a = T.alloc((slots, 128, depth), "f16", level="l1")
            b = T.alloc((slots, depth, 128), "f16", level="l1")
            with T.Scale("warpgroup") as (wg, _):
                full = T.alloc((slots,), "i32", level="l1")
                empty = T.alloc((slots,), "i32", level="l1")
                c = T.alloc((64, 128), "f32")
                if wg == 0:
                    for k in T.serial(steps):
                        if k >= slots:
                            T.wait(empty[k % slots], k // slots * 2)
                        T.copy(a[k % slots, 0:128, 0:depth], A[by * 128, k * depth])
                        T.copy(b[k % slots, 0:depth, 0:128], B[k * depth, bx * 128])
                        T.signal(full[k % slots], dst=1)
                        T.signal(full[k % slots], dst=2)
                if wg >= 1:
                    T.clear(c)
                    for k in T.serial(steps):
                        T.wait(full[k % slots], k // slots + 1)
                        T.gemm(a[k % slots, (wg - 1) * 64 : wg * 64, :], b[k % slots], c)
                        T.signal(empty[k % slots], dst=0)
                    T.copy(C[by * 128 + (wg - 1) * 64, bx * 128], c)

    return roles


PROGRAMS: dict[str, Callable[[], Any]] = {
    "gemm f16": lambda: gemm("f16", out="f16"),
    "gemm f16 Bᵀ": lambda: gemm("f16", out="f16", turned=True),
    "gemm bf16": lambda: gemm("bf16"),
    "gemm fp8": lambda: gemm("f8e4m3", out="bf16", depth=128, turned=True),
    "gemm int8": lambda: gemm("i8", "i32", "i32", depth=128, turned=True),
    "flash attention": lambda: example("27").flash_attention(4, 32, 8, 4096, 128, bM=64, bN=64, dtype="f16"),
    "convolution": convolution,
    "softmax": lambda: example("25").softmax(4096, 4096),
    "warp groups": specialised,
}


def example_program(number: str) -> Any:
    """The program that an example runs, with its shapes."""
    module, found = example(number), []

    class Found(Exception):
        pass

    def keep(program: Any, *_: Any, **__: Any) -> None:
        found.append(program)
        raise Found

    class Public:
        run = staticmethod(keep)

        def __getattr__(self, name: str) -> Any:
            return getattr(mt, name)

    module.mt = Public()
    with suppress(Found):
        module.main()
    return found[0]


ONE_DEVICE = ("20", "21", "22", "23", "25", "26", "27", "28", "37", "38", "39")
PROGRAMS |= {f"example {number}": partial(example_program, number) for number in ONE_DEVICE}


def report(source: str, arch: str, folder: Path, env: dict[str, str]) -> tuple[Counter[str], int, int]:
    """Counts by kind; by ptxas, the registers of a thread and the bytes that it spills."""
    text, binary = folder / "kernel.cu", folder / "kernel.cubin"
    text.write_text(source, encoding="utf-8")
    made = subprocess.run(
        ["nvcc", "-std=c++17", f"-arch={arch}", "-cubin", "-Xptxas=-v", str(text), "-o", str(binary)],
        capture_output=True, text=True, check=True, env=env,
    )  # fmt: skip
    said = " ".join(line for line in made.stderr.splitlines() if "registers" in line or "spill" in line)
    registers = max(map(int, re.findall(r"Used (\d+) registers", said)), default=0)
    spilled = sum(map(int, re.findall(r"(\d+) bytes spill", said)))
    try:
        sass = subprocess.run(
            ["nvdisasm", "-c", str(binary)], capture_output=True, text=True, check=True, env=env
        )
    except FileNotFoundError:
        return Counter(), registers, spilled
    # Instructions under @!PT are never done.
    words = re.findall(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\d )?([A-Z][\w.]*)", sass.stdout, re.MULTILINE)
    found = Counter({kind: sum(bool(re.match(begin, w)) for w in words) for kind, begin in KINDS.items()})
    return found, registers, spilled


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help=f"of {', '.join(PROGRAMS)} (default: all)")
    parser.add_argument("--arch", default="sm_80")
    parser.add_argument("--path", default="", help="a folder with nvdisasm")
    arguments = parser.parse_args()
    env = {**os.environ, "PATH": os.pathsep.join(x for x in (arguments.path, os.environ["PATH"]) if x)}
    print(f"{arguments.arch:16}" + "".join(f"{kind.strip():>14}" for kind in KINDS) + "  registers spills")
    spilling = []
    for name in arguments.names or PROGRAMS:
        if name not in PROGRAMS:
            sys.exit(f"there is no '{name}'; there are {', '.join(PROGRAMS)}")
        try:
            source = mt.compile(PROGRAMS[name](), target="cuda").source
        except mt.MegatileError as problem:
            print(f"{name:16}{str(problem).splitlines()[0]}")
            continue
        with tempfile.TemporaryDirectory() as folder:
            counts, registers, spilled = report(source, arguments.arch, Path(folder), env)
        shown = "".join(f"{counts[kind]:14d}" for kind in KINDS)
        print(f"{name:16}{shown}  {registers:9d} {spilled:6d}", flush=True)
        if spilled:
            spilling.append(name)
    if spilling:
        sys.exit(f"registers are spilled: {', '.join(spilling)}")


if __name__ == "__main__":
    main()
