"""Kinds of programs: tile programs and ``tl`` kernels, as changed texts and as random ones with a meaning."""

from __future__ import annotations

import linecache
import random
import sys
import traceback
import types
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from tests.fuzz import mutate
from tests.fuzz.kinds import budget, folder, kind, known_machine

import megatile as mt
from megatile.core.errors import MegatileError
from megatile.language.common import rewrite


@cache
def modules_as_they_are() -> list[tuple[Any, dict[str, Any]]]:
    """What programs import, to put it back: a changed program may assign to it."""
    import megatile.language as T
    from megatile.language import tl

    return [(known, dict(vars(known))) for known in (np, mt, T, tl) if hasattr(known, "__dict__")]


def with_module(text: str, use: Callable[[Any], None]) -> None:
    """Import a module made of a text and use it; what Python itself says of the user's lines is not a finding."""
    path = str(folder() / "fuzzed.py")
    module: Any = types.ModuleType("fuzzed")
    module.__file__, module.text = path, text
    sys.modules["fuzzed"] = module
    modules_as_they_are()
    lines = text.encode("utf-8", "replace").decode().splitlines(keepends=True)
    linecache.cache[path] = (len(text), None, lines, path)
    try:
        exec(compile("".join(lines), path, "exec"), vars(module))
        use(module)
    except MegatileError:
        raise
    except Exception as error:
        # An error that Python raises in the user's own line is Python's to say.
        last = traceback.extract_tb(error.__traceback__)[-1]
        # So is one in the call that it makes, of a word of the language with wrong arguments, and a name it lacks.
        missing = isinstance(error, AttributeError) and last.filename.endswith("core/public.py")
        if last.filename != path and not missing and last.name not in ("with_module", "outermost"):
            raise
    finally:
        sys.modules.pop("fuzzed", None)
        for code in [code for code in rewrite._CACHE if code.co_filename == path]:
            del rewrite._CACHE[code]
        for known, names in modules_as_they_are():
            vars(known).update(names)


TILE_PROGRAMS = ['''
import numpy as np
import megatile as mt
import megatile.language as T


@T.program
def gemm(A: T.Tensor((32, 64), "f32"), B: T.Tensor((64, 16), "f32"), C: T.Tensor((32, 16), "f32")):
    with T.Kernel(device=2, block=(1, 2), threads=32) as (bx, by):
        with T.Scale("device"):
            a = T.view(A, layout=T.FullCol)
            b = T.view(B, layout=T.FullRow)
            c = T.view(C, layout=T.Replica)
        with T.Scale("block"):
            a_tile = T.alloc((16, 16), "f32", level="l1")
            b_tile = T.alloc((16, 16), "f32", level="l1")
            c_tile = T.alloc((16, 16), "f32", level="l0")
            T.clear(c_tile)
            for k in T.Pipelined(a.shape[1] // 16, num_stages=2):
                T.copy(a_tile, a[by * 16, k * 16])
                T.copy(b_tile, b[k * 16, bx * 16])
                T.gemm(a_tile, b_tile, c_tile)
            T.copy(c[by * 16, bx * 16], c_tile)
        with T.Scale("device"):
            T.allreduce(c)
''', '''
import megatile.language as T


@T.program
def add(A: T.Tensor((48,), "f32"), B: T.Tensor((48,), "f32"), C: T.Tensor((48,), "f32")):
    with T.Kernel(block=3, threads=16) as bx:
        x = T.alloc((16,), "f32", level="l1")
        y = T.alloc((16,), "f32", level="l1")
        T.copy(x, A[bx * 16])
        T.copy(y, B[bx * 16])
        for i in T.Parallel(16):
            x[i] = x[i] + y[i] * 2
        T.copy(C[bx * 16], x)
''']  # fmt: skip


def _tile(rng: random.Random, number: int) -> Any:
    if number % 8 == 0:
        return 1_000_000 + number  # the seed of a random program with its meaning in NumPy
    return mutate.tokens(rng, rng.choice(TILE_PROGRAMS), TILE_PROGRAMS)


@kind("tile_program", _tile)
def run_tile(case: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if isinstance(case, int):
            (_run_nested_program if case % 16 == 0 else _run_random_program)(case)
            return
        with_module(case, _use_programs)


def _use_programs(module: Any) -> None:
    with budget(r"(range|serial|Pipelined|Parallel|Kernel)\(.*\b\d{5}", module.text):
        _run_programs(module)


def _run_programs(module: Any) -> None:
    for program in [v for v in vars(module).values() if hasattr(v, "build")][:1]:
        shapes = [tuple(p.shape) for p in program.build().params]
        if (
            all(isinstance(d, int) and d >= 0 for s in shapes for d in s)
            and sum(map(_size, shapes)) < 1 << 20
        ):
            mt.run(program, *(np.ones(s, "f4") for s in shapes), output=lambda text: None)


def _size(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype=object)) if shape else 1


def _run_random_program(seed: int) -> None:
    from tests.language.tile.random_programs import random_program

    case = random_program(seed)
    arrays, expected = case.arrays(), case.expected()
    schedule = ("round-robin", "random", "adversarial")[seed % 3]
    mt.run(case.program, *arrays, schedule=schedule, seed=seed, output=lambda text: None)
    for got, wanted in zip(arrays[4:], expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-4, err_msg=str(case.steps))


def _run_nested_program(seed: int) -> None:
    """Nodes, devices and blocks: the interpreter, the executed Plan and NumPy agree."""
    from tests.language.tile.random_nodes import nested_program

    case = nested_program(seed)
    x, y = case.arrays(seed)
    wanted, schedule = case.wanted(x), ("round-robin", "random", "adversarial")[seed // 16 % 3]
    mt.run(case.program, x.copy(), y, machine="h100-cluster", schedule=schedule, seed=seed)
    np.testing.assert_array_equal(y, wanted, err_msg=str(case.steps))
    lowered = mt.lower(case.program, x, y, machine="h100-cluster")
    mt.check(lowered)
    np.testing.assert_array_equal(mt.execute(lowered, x, 0 * y)["Y"], wanted, err_msg=str(case.steps))


KERNELS = ['''
from megatile.language import tl


def kernel(t_ptr, n_elem, world_size, tl):
    mine = t_ptr + tl.program_id(0) * n_elem * 2
    total = current = tl.load(mine, shape=(n_elem,), dtype="f16")
    for _ in range(world_size - 1):
        tl.send(dir="E", src=current)
        current = tl.recv(dir="W", shape=(n_elem,), dtype="f16")
        total = total + current
    tl.store(mine, total)
''', '''
from megatile.language import tl


def kernel(t_ptr, n_elem, world_size, tl):
    rank = tl.program_id(0)
    mine = t_ptr + rank * n_elem * 2
    x = tl.load(mine, shape=(n_elem,), dtype="f16")
    if rank > 0:
        x = x + tl.recv(dir="W", shape=(n_elem,), dtype="f16")
    if rank < world_size - 1:
        tl.send(dir="E", src=x)
    for step in range(3):
        x = tl.maximum(x, step) * 2
    tl.store(mine, x)
''']  # fmt: skip
STEPS = ("branch", "shift", "ring", "count", "chain", "memory")


def _kernel(rng: random.Random, number: int) -> Any:
    if number % 8 == 0:
        steps = [(rng.choice(STEPS), rng.randrange(4)) for _ in range(rng.randrange(1, 6))]
        return rng.randrange(2, 6), steps, rng.randrange(2, 5)
    return mutate.tokens(rng, rng.choice(KERNELS), KERNELS)


@kind("tl_kernel", _kernel)
def run_kernel(case: Any) -> None:
    if isinstance(case, str):
        with_module(case, _use_kernel)
    else:
        _run_random_kernel(*case)


def _use_kernel(module: Any) -> None:
    from megatile.language import tl

    if not callable(getattr(module, "kernel", None)):
        return
    with budget(r"range\([^)\n]*?\d{5}", module.text):
        plan = tl.read_kernel(module.kernel, [tl.Tensor("t", (8,)), 8, 4], world_size=4)
        mt.check(plan)
        x = np.arange(32, dtype="f2").reshape(4, 8)
        done = mt.execute(plan, {"t": x})["t"]
        timed = mt.simulate(plan, {"t": x}, machine=known_machine("ahbm"))
        assert timed.time_ps >= 0
        np.testing.assert_array_equal(np.asarray(timed.outputs["t"]), done)


def _run_random_kernel(units: int, steps: list[Any], slots: int) -> None:
    from tests.language.kernel.test_random_kernels import ELEMENTS, kernel

    from megatile.language import tl
    from megatile.language.kernel.mock import run_kernel_in_mock

    x = np.random.default_rng(units).integers(-3, 4, (units, ELEMENTS)).astype("f2")
    plan = tl.read_kernel(kernel, [tl.Tensor("t", (ELEMENTS,)), steps], world_size=units, n_slots=slots)
    mt.check(plan)
    expected = np.stack(run_kernel_in_mock(kernel, units, "ring_1d", list(x), (steps,)))
    np.testing.assert_array_equal(mt.execute(plan, {"t": x})["t"], expected)
