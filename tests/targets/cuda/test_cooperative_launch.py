"""Blocks that wait for each other: cooperative launches, equal to the interpreter; a deadlock is said."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from tests.targets.cuda.test_examples import example

import megatile as mt
import megatile.language as T

MACHINE = "dgx-h100"


@T.program
def chain(x: T.Tensor((6, 64), "f32"), y: T.Tensor((6, 64), "f32")):
    """Each block adds what the one before it sends, and sends it on."""
    with T.Kernel(block=6, threads=64) as b:
        with T.Scale("block"):
            mine = T.view(x, layout=T.Shard(0))
            out = T.view(y, layout=T.Shard(0))
            here = T.alloc((1, 64), "f32")
            flag = T.alloc((1,), "i32")
            if b > 0:
                T.wait(flag, 1)
            else:
                T.clear(here)
            for i in T.Parallel(64):
                here[0, i] = here[0, i] + mine[0, i]
            T.copy(out, here)
            if b < 5:
                T.copy(here, here, dst=b + 1)
                T.signal(flag, dst=b + 1)


@T.program
def lines(x: T.Tensor((3, 8, 32), "f32"), y: T.Tensor((3, 8, 32), "f32")):
    """Blocks of a row exchange, blocks of a column reduce, and all meet."""
    with T.Kernel(block=(2, 3), threads=64) as (bx, by):
        with T.Scale("block"):
            a = T.alloc((4, 32), "f32")
            got = T.alloc((4, 32), "f32")
            T.copy(a, x[by, bx * 4 : bx * 4 + 4, 0:32])
            T.barrier(axis=0)
            T.copy(got, a, src=1 - bx, axis=0)
            T.barrier()
            T.allreduce(got, axis=1)
            T.copy(y[by, bx * 4 : bx * 4 + 4, 0:32], got)


@T.program
def persistent(
    x: T.Tensor((4, 128), "f32"), total: T.Tensor((4, 128), "f32"), tickets: T.Tensor((1,), "i32")
):
    """A few blocks go over the rows several times; between two times all meet."""
    with T.Kernel(block=4, threads=128) as b:
        with T.Scale("block"):
            row = T.alloc((128,), "f32")
            T.clear(row)
            for _ in T.serial(3):
                for k in T.serial(4):
                    for i in T.Parallel(128):
                        row[i] = row[i] + x[k, i] * (b + 1)
                T.barrier()
                for i in T.Parallel(128):
                    x[b, i] = row[i]
                T.atomic_add(tickets[0], 1)
                T.barrier()
            for i in T.Parallel(128):
                total[b, i] = row[i] + tickets[0]


@T.program
def stuck(x: T.Tensor((2, 32), "f32")):
    with T.Kernel(block=2, threads=32) as b:
        with T.Scale("block"):
            flag = T.alloc((1,), "i32")
            T.wait(flag, 1)
            T.copy(x[b, 0:32], x[b, 0:32])


PROGRAMS = {
    "chain": (chain, (6, 64), (6, 64)),
    "lines": (lines, (3, 8, 32), (3, 8, 32)),
    "persistent": (persistent, (4, 128), (4, 128), (1,)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_equal_to_the_interpreter(name: str) -> None:
    program, first, *others = PROGRAMS[name]
    random = np.random.default_rng(0).standard_normal(first, dtype="f4")
    found = []
    for run in (
        lambda *a: mt.run(program, *a, machine=MACHINE),
        mt.compile(program, "cuda", machine=MACHINE),
    ):
        arrays = [random.copy(), *(np.zeros(s, "i4" if s == (1,) else "f4") for s in others)]
        run(*arrays)
        found.append(arrays)
    for wanted, got in zip(*found, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


def test_blocks_are_launched_together() -> None:
    text = mt.compile(chain, "cuda", machine=MACHINE).source
    assert "LAUNCH_TOGETHER(chain_" in text
    assert "LAUNCH_TOGETHER(add" not in mt.compile(example("20").vector_add(100), "cuda").source


def test_a_deadlock_of_blocks_is_reported() -> None:
    with pytest.raises(mt.MegatileError, match="wait for each other, and none can go on"):
        mt.compile(stuck, "cuda", machine=MACHINE)(np.zeros((2, 32), "f4"))


def test_nvidias_compiler_takes_them(tmp_path: Path) -> None:
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("needs nvcc")
    for name in PROGRAMS:
        file = tmp_path / f"{name}.cu"
        file.write_text(mt.compile(PROGRAMS[name][0], "cuda", machine=MACHINE).source)
        done = subprocess.run(
            [nvcc, "-std=c++17", "-arch=sm_80", "-c", str(file), "-o", str(tmp_path / "made.o")],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[:1000]
