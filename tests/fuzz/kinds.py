"""What is fuzzed: for every kind, how input number n of a seed is made, and what is done with it.

A run may succeed or raise a `MegatileError`; everything else is a finding: another exception, a wrong answer
(`AssertionError`), or too much time or memory (watched by the runner). Other kinds are in the files beside this.
"""

from __future__ import annotations

import atexit
import contextlib
import gzip
import json
import random
import re
import sys
import tempfile
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

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "src" / "megatile" / "hda" / "machines"


@dataclass(frozen=True)
class Kind:
    """``make`` an input from a generator and the number, and ``run`` it."""

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
