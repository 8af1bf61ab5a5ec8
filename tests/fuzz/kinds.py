"""What is fuzzed: for every kind, how input number n of a seed is made, and what is done with it.

A run may succeed or raise a `MegatileError`; everything else is a finding: another exception, a wrong answer
(`AssertionError`), or too much time or memory (watched by the runner).
"""

from __future__ import annotations

import atexit
import contextlib
import gzip
import io
import json
import linecache
import os
import random
import re
import sys
import tempfile
import traceback
import types
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np
from tests.fuzz import mutate
from tests.plan.test_levels import blocks_and_parts
from tests.sim.random_plans import random_plan

import megatile as mt
from megatile.core.errors import MegatileError
from megatile.core.limits import time_limit
from megatile.language.common import rewrite

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "src" / "megatile" / "hda" / "machines"


@dataclass(frozen=True)
class Kind:
    """``make`` an input from a generator and the number; ``run`` it; ``show`` it as text for a report."""

    make: Callable[[random.Random, int], Any]
    run: Callable[[Any], None]


KINDS: dict[str, Kind] = {}


@cache
def folder() -> Path:
    """One folder for the files of all inputs of this process, in memory where there is such a place."""
    memory = Path("/dev/shm")
    made = tempfile.TemporaryDirectory(prefix="megatile-fuzz-", dir=memory if memory.is_dir() else None)
    atexit.register(made.cleanup)
    return Path(made.name)


@cache
def known_machine(name: str) -> mt.HDA:
    return mt.machine(name)


def kind(name: str, make: Callable[[random.Random, int], Any]) -> Callable[[Callable[[Any], None]], None]:
    def register(run: Callable[[Any], None]) -> None:
        KINDS[name] = Kind(make, run)

    return register


# machines


@cache
def machine_texts() -> list[str]:
    small = [path.read_text(encoding="utf-8") for path in sorted(SHIPPED.glob("*.yaml"))]
    data = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "tests" / "data").glob("*.yaml"))]
    return [
        *small,
        *data,
        "extends: dgx-h100\nname: mine\nnetworks:\n  - {name: nvlink, bandwidth: 9 GB/s}\n",
    ]


def _machine(rng: random.Random, _: int) -> str:
    return mutate.text(rng, rng.choice(machine_texts()), machine_texts())


@kind("yaml", _machine)
def run_machine(text: str) -> None:
    from megatile.hda import HDA
    from megatile.hda.document import parse_document
    from megatile.report.machine_text import machine_json, summary_row

    hda = HDA.from_document(parse_document(text, "m.yaml"), {})
    json.dumps(machine_json(hda), default=str)
    assert summary_row(hda)["name"] == hda.name
    assert HDA.from_dict(hda.to_dict()) == hda
    leaf = hda.levels[0].name
    if hda.count(leaf) > 1:
        hda.route(f"{leaf}:0", f"{leaf}:{hda.count(leaf) - 1}")


# plans


@cache
def plans() -> list[Any]:
    made = [random_plan(seed) for seed in range(12)]
    made += [blocks_and_parts(), blocks_and_parts(None, 2, (2,), 1)]
    for operation, algorithm in (("all_reduce", "ring"), ("all_gather", "direct"), ("broadcast", "tree")):
        made.append(mt.collective(operation, machine="mi300x-8", nbytes=96, algorithm=algorithm))
    return made


@cache
def plan_texts() -> list[str]:
    return [str(plan) for plan in plans()]


@cache
def plan_documents() -> list[str]:
    return [plan.to_json() for plan in plans()]


def _run_plan(plan: mt.Plan) -> None:
    assert (
        mt.Plan.from_json(plan.to_json()).digest == plan.digest
    )  # a plan with nan in it is not equal to itself
    with budget(r"(range|while).*\d{5}", str(plan)):
        _use_plan(plan)


def budget(far: str, text: str) -> AbstractContextManager[None]:
    """What counts far is right to take its time, and ends when its time is over."""
    return time_limit(0.2 if re.search(far, text) else None)


def _use_plan(plan: mt.Plan) -> None:
    mt.check(plan)
    assert mt.Plan.from_text(str(plan)).digest == plan.digest
    if plan.units > 64 or any(tile.elements > 1 << 24 for tile in plan.tiles):
        return
    inputs = {
        tile.name: np.zeros((plan.units, *tile.shape), dtype=np.float32)
        for tile in plan.tiles
        if tile.role in ("input", "inout")
    }
    if sum(array.nbytes for array in inputs.values()) < 1 << 22:
        mt.execute(plan, inputs)
    mt.simulate(plan, machine=known_machine("cpu" if plan.scale == "core" else "mi300x-8"))


@kind("plan_text", lambda rng, _: mutate.text(rng, rng.choice(plan_texts()), plan_texts()))
def run_plan_text(text: str) -> None:
    _run_plan(mt.Plan.from_text(text))


@kind("plan_json", lambda rng, _: mutate.json_text(rng, rng.choice(plan_documents()), plan_documents()))
def run_plan_json(text: str) -> None:
    _run_plan(mt.Plan.from_json(text))


# traces


@cache
def trace_files() -> list[tuple[str, bytes]]:
    from megatile.trace import write_trace

    plan = mt.collective("all_reduce", machine="mi300x-8", nbytes=96, algorithm="ring", ranks=range(3))
    trace = mt.simulate(plan, machine="mi300x-8").trace
    names = ("t.json", "t.json.gz", "t.jsonl", "t.jsonl.gz")
    return [(name, write_trace(trace, folder() / name).read_bytes()) for name in names]


def _trace(rng: random.Random, _: int) -> tuple[str, bytes]:
    name, content = rng.choice(trace_files())
    if rng.random() < 0.3:
        return name, mutate.data(rng, content)
    text = (gzip.decompress(content) if name.endswith(".gz") else content).decode()
    if name.startswith("t.jsonl"):
        lines = text.split("\n")
        at = rng.choice((0, rng.randrange(len(lines) - 1)))
        lines[at] = mutate.json_text(rng, lines[at], lines[:-1])
        text = "\n".join(lines)
    else:
        text = mutate.json_text(rng, text, [text])
    changed = text.encode("utf-8", "replace")
    return name, gzip.compress(changed, 1) if name.endswith(".gz") else changed


@kind("trace", _trace)
def run_trace(case: tuple[str, bytes]) -> None:
    from megatile.report import summary, summary_json
    from megatile.trace import read_trace, why_slow, write_trace

    name, content = case
    file = folder() / name
    file.write_bytes(content)
    trace = read_trace(file)
    for other in ("u.json", "u.jsonl"):
        again = read_trace(write_trace(trace, folder() / other))
        assert len(again) == len(trace)
        assert again.columns["end_ps"].tolist() == trace.columns["end_ps"].tolist()
    assert summary(trace)
    assert why_slow(trace)
    json.dumps(summary_json(trace), allow_nan=False)


# ccl.yaml


@cache
def ccl_texts() -> list[str]:
    text = (ROOT / "src" / "megatile" / "compat" / "ccl" / "ccl.yaml").read_text(encoding="utf-8")
    entry = (
        "algorithms:\n  a:\n    module: megatile.collectives.kernels.ring_allreduce\n    topology: ring_1d\n"
    )
    return [text, entry, entry + "    n_slots: 2\n    slot_size: 64\n    mapper: all_pes\n    kernel_x: 3\n"]


@cache
def _entry_points(**asked: str) -> Any:
    """What is installed, looked up once for each name: it reads the files of every package."""
    return entry_points(**asked)


@kind("ccl", lambda rng, _: mutate.text(rng, rng.choice(ccl_texts()), ccl_texts()))
def run_ccl(text: str) -> None:
    from megatile.collectives import kernel_plan, load_ccl_config, resolve_algorithm_config
    from megatile.compat.ccl import config as reader

    vars(reader)["entry_points"] = _entry_points
    file = folder() / "ccl.yaml"
    file.write_text(text, encoding="utf-8", errors="replace")
    config = load_ccl_config(file)
    before = set(sys.modules)
    for name in list(config["algorithms"])[:3]:
        with contextlib.suppress(MegatileError):
            plan = kernel_plan(resolve_algorithm_config(config, name), known_machine("ahbm"))
            assert plan.units >= 1
    strange = {n for n in set(sys.modules) - before if not n.startswith(("megatile", "numpy", "yaml"))}
    assert not strange & {"os.system", "antigravity", "this"}


# command lines

LINES = [
    "machines", "machines --json", "machine show dgx-h100", "machine show h100-cluster --set nodes=4 --json",
    "machine show cpu --yaml", "machine check m.yaml", "machine diff dgx-h100 hgx-a100 --sources",
    "machine route dgx-h100 gpu:0 gpu:7",
    "collective all_reduce -m dgx-h100 -b 8 -e 1K -f 8 -a ring --no-check", "collective all_gather -b 64 --json -a ring",
    "collective broadcast -m mi300x-8 -b 4K -a tree --ranks 0,2,4-6 -d bf16 -o max -r 1",
    "plan show p.json", "plan show p.txt --json", "plan check p.json -m dgx-h100", "plan simulate p.json -m dgx-h100 --json",
    "trace show t.json --limit 3", "trace show t.json --json", "trace convert t.json u.jsonl",
    "attention plan -n 6 --schedule hamilton --causal --json", "attention plan -n 4 --seqlen 1K",
    "attention predict -m mi300x-8 --seqlen 1K --schedule ring,hamilton --json", "--version", "--help",
    "model list", "model memory Llama-3.2-1B -m dgx-h100 --tp 2 --requests 8 --context 4096 --json",
    "model predict Llama-3.2-1B -m dgx-h100 --tp 2 --batch 4 --isl 512 --osl 8 -d fp8 --csv u.csv",
    "model replay Llama-3.2-1B --batches s.jsonl -m h200-8 --table u.csv", "perfdb import r.csv -m dgx-h100 --db p.sqlite",
    "perfdb list --db p.sqlite --json", "perfdb export u.csv --db p.sqlite -d bf16",
]  # fmt: skip


@cache
def folder_of_files() -> Path:
    """A folder with the files that the lines name."""
    here = folder() / "lines"
    here.mkdir()
    plan = mt.collective("all_reduce", machine="dgx-h100", nbytes=64, algorithm="ring")
    (here / "p.json").write_text(plan.to_json())
    (here / "p.txt").write_text(str(plan))
    (here / "m.yaml").write_text(mt.machine("cpu").to_yaml())
    (here / "s.jsonl").write_text("[[128, 0], [1, 4096]]\n[[1, 17]]\n")
    (here / "r.csv").write_text(TABLES[0])
    mt.simulate(plan, machine="dgx-h100").write_trace(here / "t.json")
    return here


def _line(rng: random.Random, _: int) -> list[str]:
    words = sorted({word for line in LINES for word in line.split()})
    words += [
        "--png",
        "a.png",
        "--plot",
        "--table",
        "c.json",
        "--explain",
        "--check",
        "--units",
        "all",
        "auto",
    ]
    line = mutate.arguments(rng, rng.choice(LINES).split(), words)
    return [part for part in line if part not in ("bench", "--install-completion", "--show-completion")]


@cache
def build_once() -> None:
    """Typer makes its commands anew at every call; here they are made once."""
    import typer.main

    from megatile.cli import main as commands

    typer.main.get_command = cache(typer.main.get_command)
    commands.load_command = cache(commands.load_command)


@kind("command_line", _line)
def run_line(line: list[str]) -> None:
    from megatile.cli.main import main

    build_once()
    before, argv = Path.cwd(), sys.argv
    said = io.StringIO()
    sys.argv = ["megatile", *line]
    os.chdir(folder_of_files())
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            main()
        code: Any = 0
    except SystemExit as stopped:
        code = stopped.code or 0
    finally:
        os.chdir(before)
        sys.argv = argv
    assert code in (0, 1, 2, 130), (code, said.getvalue()[-2000:])
    assert "Traceback" not in said.getvalue(), said.getvalue()[-2000:]
    assert code == 0 or said.getvalue().strip(), "a failure says nothing"


# programs


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


# measured times

TABLES = [
    "gemm_dtype,m,n,k,us\nbfloat16,128,128,128,5.5\nbfloat16,64,128,128,5\nfp8,64,128,256,7\n",
    "kernel_source,batch_size,isl,step,num_heads,num_key_value_heads,head_dim,window_size,us\n"
    "fa3,32,1,255,64,1,64,0,12.1\nfa3,2,128,0,64,8,128,128,20.5\n",
    "machine,operation,dtype,implementation,shape,time_us,source\n"
    'dgx-h100,all_reduce,f16,"a, b",ranks=8 bytes=64,9.5,someone\nh,gemm,bf16,,m=1 n=1 k=2,3,x\n',
    """# nThread 1 nGpus 2 minBytes 8 maxBytes 64
# Rank  0 Group  0 Pid 1 on host device  0 [0x07] NVIDIA H100
# Rank  1 Group  0 Pid 2 on host device  1 [0x0f] NVIDIA H100
# Collective test starting: all_reduce_perf
        1024           256     float     sum      -1    13.03    0.00    0.00      0    12.97    0.00    0.00      0
     1048576        262144      half    none      -1    40.00    0.00    0.00    N/A    41.00    0.00    0.00    N/A
""",
]


@cache
def database_bytes() -> bytes:
    from megatile.timing.database import Database, Measurement

    file = folder() / "seed.sqlite"
    with Database(file) as database:
        database.add(
            Measurement("dgx-h100", "gemm", "bf16", "", {"m": 2**i, "n": 64, "k": 64}, 3.0 + i, "seed")
            for i in range(20)
        )
    return file.read_bytes()


def _table(rng: random.Random, number: int) -> str | bytes:
    if number % 4 == 0:
        return mutate.data(rng, database_bytes())
    return mutate.text(rng, rng.choice(TABLES), TABLES)


@kind("measurements", _table)
def run_table(case: str | bytes) -> None:
    from megatile.timing.database import Database
    from megatile.timing.measurements import read_measurements

    hda = known_machine("dgx-h100")
    if isinstance(case, bytes):
        file = folder() / "t.sqlite"
        file.write_bytes(case)
    else:
        file = folder() / "t.csv"
        file.write_text(case, encoding="utf-8", errors="surrogatepass")
    with Database(file if isinstance(case, bytes) else ":memory:") as database:
        if isinstance(case, str):
            database.add(read_measurements(file, "dgx-h100"))
        list(database.rows())
        database.summary()
        found = mt.predict_kernel("gemm", m=100, n=64, k=64, machine=hda, database=database)
        assert found.time_us > 0
